"""A matplotlib figure as a file that is there as a whole, or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from steadyspike.train.files.atomic import write_atomically


def save_figure(figure: Any, path: Path, **options: Any) -> Path:
    """Writes a figure as the file's ending says, .png without one; the path. options: those of ``Figure.savefig``.

    It is drawn in memory first: on a full disk matplotlib leaves a part of a file, and an error that names none.
    """
    path = path if path.suffix else path.with_name(f"{path.name}.png")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:].lower(), **options)
    write_atomically(path, lambda file: file.write(drawn.getvalue()))
    return path
