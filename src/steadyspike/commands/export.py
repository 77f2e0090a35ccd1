"""`steadyspike export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steadyspike.commands.common import ENDED, console, errors, one_line_errors
from steadyspike.commands.options import DataDir, RunOrFile

if TYPE_CHECKING:
    from steadyspike.train.run.loading import LoadedRun

TARGETS = ("nir", "onnx", "int8", "c", "page")
PAGE_SAMPLES = 12  # the number of test samples in the page
PRECISIONS = ("int8", "float32")


@one_line_errors
def command(
    source: RunOrFile,
    to: Annotated[str, typer.Option(help="nir, onnx, int8, c or page.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file (c: the folder); default: next to the network.")
    ] = None,
    data_dir: DataDir = None,
    mode: Annotated[str, typer.Option(help="NIR: faithful (exact), shift (exact, hard reset) or lif.")] = "faithful",
    streaming: Annotated[bool, typer.Option("--streaming", help="ONNX: one time step with explicit state.")] = False,
    samples: Annotated[int | None, typer.Option(min=1, help="int8: compare on this many test samples.")] = None,
    precision: Annotated[str, typer.Option(help="c: int8 or float32.")] = "int8",
    main: Annotated[bool, typer.Option("--main", help="c: add a program that reads inputs, for tests.")] = False,
) -> int:
    """Export a folded network to NIR, ONNX, integers, a C file that needs no library, or a page that runs it."""
    from steadyspike.commands.shared.deployed import folded
    from steadyspike.deploy.to_nir import MODES

    if to not in TARGETS:
        errors.print(f"error: cannot export to {to!r}; known: {', '.join(TARGETS)}", style="red")
        return 2
    if mode not in MODES:
        errors.print(f"error: unknown mode {mode!r}; known: {', '.join(MODES)}", style="red")
        return 2
    if precision not in PRECISIONS:
        errors.print(f"error: unknown precision {precision!r}; known: {', '.join(PRECISIONS)}", style="red")
        return 2
    if out is not None and not out.parent.is_dir():
        errors.print(f"error: {out.parent} is not a folder", style="red")
        return 2
    network, facts = folded(source, data_dir)
    root = source if source.is_dir() else source.parent
    if to == "int8":
        return _integers(source, network, facts, data_dir, samples, out or root / "int8.safetensors")
    if to == "c":
        return _c_file(network, facts, out or root / "c", precision, main)
    if to == "page":
        return _page(source, network, facts, out or root / "network.html", data_dir)
    if to == "nir":
        from steadyspike.deploy.to_nir import export_nir

        path = export_nir(network, out or root / "network.nir", mode)
    else:
        from steadyspike.deploy.to_onnx import export_onnx

        with console.status("exporting: torch traces the network, which takes a minute for a large one"):
            target = out or root / ("step.onnx" if streaming else "network.onnx")
            path = export_onnx(network, target, streaming=streaming, extra=facts)
    console.print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)
    if to == "onnx":
        from steadyspike.deploy.onnx_facts import read_facts, usage

        console.print("to run it with NumPy and onnxruntime alone:\n", soft_wrap=True)
        console.print(usage(str(path), read_facts(path)), highlight=False, soft_wrap=True)
    return ENDED


def _page(source: Path, network, facts, target: Path, data_dir: Path | None) -> int:  # type: ignore[no-untyped-def]
    from steadyspike.commands.shared.deployed import batches
    from steadyspike.report.network_page.write import write_network_page

    samples, labels = None, []
    if (loaded := _with_data(source, data_dir)) is not None:
        samples, classes = next(iter(batches(loaded, "test", PAGE_SAMPLES)))
        labels = classes.tolist()
    path = write_network_page(network, target, facts, samples, labels)
    console.print(f"wrote {path} ({path.stat().st_size / 1e6:.2f} MB): open it in a browser", soft_wrap=True)
    return ENDED


def _with_data(source: Path, data_dir: Path | None) -> LoadedRun | None:
    """Returns the run ``source``; None for a file, and for a saved network whose data set is not available."""
    from steadyspike.commands.shared.deployed import missing_data
    from steadyspike.train.run.loading import load_run

    if not source.is_dir():
        return None
    loaded = load_run(source, data_dir)
    if (reason := missing_data(loaded)) is not None:
        console.print(f"without test samples: {reason}", style="yellow", soft_wrap=True, markup=False)
        return None
    return loaded


def _c_file(network, facts, folder: Path, precision: str, main: bool) -> int:  # type: ignore[no-untyped-def]
    from steadyspike.deploy.standalone.c_file import export_c

    name = str(facts.get("model") or "network")
    written = export_c(network, folder, name, integer=precision == "int8", main=main, facts=facts)
    console.print(f"wrote {written.source} and {written.header.name}", soft_wrap=True)
    console.print(
        f"RAM {written.ram:,} bytes, stack about {written.stack:,} bytes, flash {written.flash:,} bytes of constants; "
        f"{written.readme.name} explains how to compile it",
        soft_wrap=True,
    )
    return ENDED


def _integers(source: Path, network, facts, data_dir: Path | None, samples: int | None, target: Path) -> int:  # type: ignore[no-untyped-def]
    from steadyspike.commands.shared.deployed import batches, correct
    from steadyspike.deploy.hardware import CHIPS, chip_report
    from steadyspike.deploy.integers import IntegerNetwork

    integer = IntegerNetwork(network)
    for chip in CHIPS:
        console.print(chip_report(integer, chip), soft_wrap=True)
    if (loaded := _with_data(source, data_dir)) is not None:
        with console.status("accuracy in integers"):
            right, total = correct(network, batches(loaded, "test", samples))
            also, _ = correct(integer, batches(loaded, "test", samples))
        console.print(
            f"test accuracy: float {100 * right / total:.2f} %, int8 {100 * also / total:.2f} % ({total} samples)"
        )
    path = integer.save(target, facts)
    console.print(f"wrote {path}", soft_wrap=True)
    return ENDED
