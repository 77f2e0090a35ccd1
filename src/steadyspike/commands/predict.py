"""`steadyspike predict`: the class of image or event files, and the time step of the decision."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steadyspike.commands.common import ENDED, console, one_line_errors
from steadyspike.commands.options import DataDir, RunOrFile
from steadyspike.data.errors import DataError
from steadyspike.disk.plain_text import plain


@one_line_errors
def command(
    source: RunOrFile,
    files: Annotated[list[Path], typer.Argument(help="Images, event recordings; detection: also folders of images.")],
    data_dir: DataDir = None,
    top: Annotated[int, typer.Option(min=1, help="The number of classes to show.")] = 1,
    confidence: Annotated[
        float | None,
        typer.Option(
            min=1e-9, max=1, help="Stop at the first step with this confidence, such as 0.9; detection: smallest score."
        ),
    ] = None,
    resize: Annotated[bool, typer.Option("--resize", help="Scale images to the size the network takes.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Detection: folder for pictures and JSON.")] = None,
) -> int:
    """Predict the class of image or event files, or the boxes in them; print the step of the decision."""
    from steadyspike.train.files.folder import RunFolder
    from steadyspike.train.recipe import kinds

    if source.is_dir() and (kind := kinds.kind_of(RunFolder(source).read_recipe())).predict:
        kinds.imported(kind.predict)(source, files, confidence, out, console)
        return ENDED
    if out is not None:
        raise DataError(f"--out is for detection runs; {source} is a classification run")
    import torch
    from rich.table import Column, Table

    from steadyspike.commands.shared.deployed import check_facts, folded
    from steadyspike.data.input_files import read_input
    from steadyspike.deploy import Confidence, stream

    network, facts = folded(source, data_dir)
    check_facts(source, facts, network)
    names = facts["classes"]
    one = stream(network, None if confidence is None else Confidence(confidence))
    table = Table(Column("file", overflow="fold"), "class", "confidence", "decided at step")
    if top > 1:
        table.add_column("then", overflow="fold")
    for file in files:
        x = read_input(file, facts, resize)
        static = facts["timesteps"] is None
        steps = network.graph.timesteps if static else x.shape[0]
        with torch.no_grad():
            logits, decided = one.run(x, steps if static else None)
        share, best = logits[0].softmax(-1).topk(min(top, len(names)))
        row = [plain(file), plain(names[best[0]]), f"{share[0]:.1%}", f"{int(decided[0])} of {steps}"]
        if top > 1:
            row.append(", ".join(f"{plain(names[i])} {p:.1%}" for i, p in zip(best[1:].tolist(), share[1:].tolist())))
        table.add_row(*row)
    console.print(table)
    return ENDED
