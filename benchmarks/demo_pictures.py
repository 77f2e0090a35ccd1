"""README's figure, the report's picture and the recorded numbers of the demo, all from the same runs.

    python -m benchmarks.demo_pictures RUNS    # a folder with demo/001, demo/002 (seed 1) and demo-baseline/001

Writes docs/figures/demo.png and report.png and prints the entries of results/recipes.json. Each picture carries the
test accuracies of its runs as a text chunk, which tests/docs/test_demo_pictures.py compares with the recorded numbers.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from steadyspike.report.run_figure import draw_runs
from steadyspike.report.run_view import read_run
from steadyspike.report.write_page import write_report
from steadyspike.results.recording import record
from steadyspike.train.files.folder import RunFolder

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
SHOWN = {"baseline": "demo-baseline/001", "MP-Init + TrSG": "demo/001"}


def stamp(picture: Path, accuracies: dict[str, float]) -> None:
    """Writes the accuracies into the PNG as the text ``accuracies``."""
    note = PngInfo()
    note.add_text("accuracies", json.dumps(accuracies))
    with Image.open(picture) as image:
        image.load()
        image.save(picture, pnginfo=note, optimize=True)


def photograph(page: Path, picture: Path) -> None:
    """The top of a report in Chromium, in four fifths of its size."""
    sys.path.insert(0, str(ROOT))
    from tests.report.browser import Browser

    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(Path(profile))
        try:
            browser.screen(1200, 1250, "light")
            browser.open(page)
            browser.picture(picture, whole=False)
        finally:
            browser.close()
    with Image.open(picture) as image:
        image.convert("RGB").resize((960, 1000), Image.Resampling.LANCZOS).save(picture)


def main(root: Path) -> None:
    folders = {name: RunFolder(root / name) for name in ("demo/001", "demo/002", "demo-baseline/001")}
    accuracies = {name: f.read_json("result.json")["test"]["accuracy"][-1] for name, f in folders.items()}
    draw_runs({label: folders[name] for label, name in SHOWN.items()}, FIGURES / "demo.png")
    views = [read_run(folder.root) for folder in folders.values()]
    photograph(write_report(views, root / "three.html", baseline=views[-1]), FIGURES / "report.png")
    for picture in ("demo.png", "report.png"):
        stamp(FIGURES / picture, accuracies)
    for name in SHOWN.values():
        print(record(folders[name], name.partition("/")[0]).text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
