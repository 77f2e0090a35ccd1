"""`steadyspike energy`: counts the operations of a folded network and estimates their energy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steadyspike.commands.common import ENDED, console, one_line_errors
from steadyspike.commands.options import DataDir, RunOrFile

if TYPE_CHECKING:
    from torch import Tensor

    from steadyspike.deploy import FoldedNetwork
    from steadyspike.deploy.energy import EnergyReport


@one_line_errors
def command(
    source: RunOrFile,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Images or event recordings to count on; default: the run's test data.")
    ] = None,
    data_dir: DataDir = None,
    samples: Annotated[int, typer.Option(min=1, help="Test samples to count on.")] = 256,
    strict: Annotated[bool, typer.Option("--strict", help="Count layers that read averages as MACs.")] = False,
    every_step: Annotated[bool, typer.Option("--every-step", help="Count the first layer at every step.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also include memory, and compare with a quantised twin.")
    ] = False,
) -> int:
    """Count the operations of a folded network and their energy."""
    files = files or []
    from steadyspike.commands.shared.deployed import folded
    from steadyspike.deploy.energy import count_operations, show_energy

    network, facts = folded(source, data_dir)
    data = _of_files(source, files, facts, network) if files else _of_run(source, data_dir, samples)
    with console.status("counting operations"):
        report = count_operations(network, data, pool_as_synapse=not strict, stem_every_step=every_step)
    if source.is_dir() and not files:
        _keep(source, report, strict, every_step)
    console.print(str(report), soft_wrap=True)
    estimate = show_energy(report.energy(estimate=True))
    console.print(f"with ACs as papers count them (rate x dense): {estimate} at 45 nm fp32")
    console.print(f"{report.samples} {'files' if files else 'test samples'}, {report.timesteps} time steps; the first "
                  f"layer counts {'at every step' if every_step else 'once per static image'}; averages of spikes are "
                  f"{'MACs' if strict else 'ACs'}", soft_wrap=True)  # fmt: skip
    if memory:
        from steadyspike.deploy.memory_energy import verdict

        console.print(str(verdict(network.graph, report)), soft_wrap=True)
    return ENDED


def _of_files(source: Path, files: list[Path], facts: dict[str, Any], network: FoldedNetwork) -> Iterator[Tensor]:
    from steadyspike.commands.shared.deployed import check_facts
    from steadyspike.data.input_files import read_input

    check_facts(source, facts, network)
    return (read_input(file, facts, resize=False) for file in files)


def _of_run(source: Path, data_dir: Path | None, samples: int) -> Iterator[Tensor]:
    from steadyspike.commands.shared.deployed import batches
    from steadyspike.deploy import CannotFold
    from steadyspike.train.run.loading import load_run

    if source.is_file() and not (source.parent / "recipe.toml").exists():
        raise CannotFold(
            f"{source} is not in a run folder, so there is no test data to count on: add the names of input files"
        )
    loaded = load_run(source if source.is_dir() else source.parent, data_dir)
    return (x for x, _ in batches(loaded, "test", samples))


def _keep(root: Path, report: EnergyReport, strict: bool, every_step: bool) -> None:
    """Writes energy.json, which the report of the run shows; not if the run folder is read-only."""
    from steadyspike.deploy.energy import TABLES
    from steadyspike.disk.checksum import file_sha256
    from steadyspike.train.files.atomic import CheckpointError
    from steadyspike.train.files.folder import RunFolder

    folder = RunFolder(root)
    content = {
        "weights": file_sha256(folder.weights), "samples": report.samples, "timesteps": report.timesteps,
        "strict": strict, "every_step": every_step, "energy": {table: report.energy(table) for table in TABLES},
        **{what: report.total(what) for what in ("acs", "macs", "estimate", "dense")},
    }  # fmt: skip
    with suppress(CheckpointError, OSError):
        folder.write_json("energy.json", content)
