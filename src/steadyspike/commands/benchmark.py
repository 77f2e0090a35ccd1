"""`steadyspike benchmark`: another instrument's numbers for a run, beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steadyspike.commands.common import ENDED, console, one_line_errors
from steadyspike.commands.options import DataDir, Run

if TYPE_CHECKING:
    from steadyspike.deploy.neurobench import Comparison


def command(
    folder: Run,
    neurobench: Annotated[bool, typer.Option("--neurobench", help="Measure with NeuroBench (the default).")] = True,
    data_dir: DataDir = None,
    samples: Annotated[int, typer.Option(min=1, help="Test samples to measure on.")] = 256,
) -> None:
    """Measure a run's folded network with NeuroBench, and explain every difference from our own counts."""
    raise typer.Exit(run(folder, data_dir=data_dir, samples=samples))


@one_line_errors
def run(folder: Path, *, data_dir: Path | None, samples: int) -> int:
    import torch

    from steadyspike.commands.shared.deployed import batches, folded
    from steadyspike.deploy.neurobench import compare
    from steadyspike.train.run.loading import load_run

    network, _ = folded(folder, data_dir)
    loaded = list(batches(load_run(folder, data_dir), "test", samples))
    axis = 1 if network.graph.input.timed else 0
    x, y = torch.cat([x for x, _ in loaded], axis), torch.cat([y for _, y in loaded])
    with console.status("NeuroBench"):
        comparison = compare(network, x, y)
    console.print(table(comparison), soft_wrap=True)
    return ENDED


def table(comparison: Comparison) -> str:
    """The metrics side by side, then the parts of the difference, per sample."""
    theirs, ours, n = comparison.theirs, comparison.ours, comparison.samples
    operations = theirs["SynapticOperations"]
    rows = [
        ("footprint (bytes)", ours["Footprint"], theirs["Footprint"]),
        ("connection sparsity", ours["ConnectionSparsity"], theirs["ConnectionSparsity"]),
        ("activation sparsity", ours["ActivationSparsity"], theirs["ActivationSparsity"]),
        ("ACs", ours["ACs"], operations["Effective_ACs"]),
        ("MACs", ours["MACs"], operations["Effective_MACs"]),
        ("dense operations", ours["Dense"], operations["Dense"]),
    ]
    lines = [f"{'per sample':<22}{'ours':>18}{'NeuroBench':>18}"]
    lines += [f"{name:<22}{mine:>18,.6g}{other:>18,.6g}" for name, mine, other in rows]
    parts = {
        "padded borders of dense counts": sum(s.borders for s in comparison.synapses),
        "inputs or weights that are 0": sum(s.zeros for s in comparison.synapses),
        "ACs of sums and averages, MACs there": sum(
            s.acs for s in comparison.synapses if s.kind in ("counts", "pooled")
        ),
        "ACs that are not in a layer": comparison.unseen[0] * n,
    }
    lines += ["", "what lies between, operations per sample:"]
    lines += [f"  {name}: {value / n:,.0f}" for name, value in parts.items() if value]
    accuracy = theirs["ClassificationAccuracy"]
    return "\n".join([*lines, "", f"{n} test samples, accuracy {accuracy:.2%}; docs/energy.md explains each part"])
