"""`steadyspike benchmark`: another tool's numbers for a run, next to ours."""

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
    neurobench: Annotated[
        bool, typer.Option("--neurobench", help="Also measure with NeuroBench, and explain every difference.")
    ] = False,
    data_dir: DataDir = None,
    samples: Annotated[int, typer.Option(min=1, help="Test samples to measure on.")] = 256,
) -> None:
    """Measure a run's folded network by NeuroBench's metrics: size, sparsity, operations."""
    raise typer.Exit(run(folder, neurobench=neurobench, data_dir=data_dir, samples=samples))


@one_line_errors
def run(folder: Path, *, neurobench: bool, data_dir: Path | None, samples: int) -> int:
    from importlib.util import find_spec

    import torch

    from steadyspike.commands.shared.deployed import batches, folded
    from steadyspike.deploy.energy import count_operations
    from steadyspike.deploy.errors import MissingPackage
    from steadyspike.deploy.neurobench import compare, own_metrics
    from steadyspike.train.run.loading import load_run

    if neurobench and find_spec("neurobench") is None:
        # Its requirements would replace a CPU build of torch.
        raise MissingPackage("this needs NeuroBench: pip install --no-deps neurobench==2.3.0 snntorch tqdm")
    network, _ = folded(folder, data_dir)
    loaded = list(batches(load_run(folder, data_dir), "test", samples))
    axis = 1 if network.graph.input.timed else 0
    x, y = torch.cat([x for x, _ in loaded], axis), torch.cat([y for _, y in loaded])
    if not neurobench:
        console.print(own_table(own_metrics(network, count_operations(network, [x])), len(y)), soft_wrap=True)
        return ENDED
    with console.status("NeuroBench"):
        comparison = compare(network, x, y)
    console.print(table(comparison), soft_wrap=True)
    return ENDED


ROWS = {
    "footprint (bytes)": "Footprint", "connection sparsity": "ConnectionSparsity",
    "activation sparsity": "ActivationSparsity", "ACs": "ACs", "MACs": "MACs", "dense operations": "Dense",
}  # fmt: skip


def own_table(ours: dict[str, float], samples: int) -> str:
    """The metrics by our own counts."""
    lines = [f"{'per sample':<22}{'ours':>18}", *(f"{name:<22}{ours[key]:>18,.6g}" for name, key in ROWS.items())]
    return "\n".join([*lines, "", f"{samples} test samples; --neurobench adds NeuroBench's own numbers"])


def table(comparison: Comparison) -> str:
    """The metrics side by side, then the parts of the difference, per sample."""
    ours, n = comparison.ours, comparison.samples
    operations = comparison.theirs["SynapticOperations"]
    theirs = {**comparison.theirs, "ACs": operations["Effective_ACs"], "MACs": operations["Effective_MACs"],
              "Dense": operations["Dense"]}  # fmt: skip
    lines = [f"{'per sample':<22}{'ours':>18}{'NeuroBench':>18}"]
    lines += [f"{name:<22}{ours[key]:>18,.6g}{theirs[key]:>18,.6g}" for name, key in ROWS.items()]
    parts = {
        "padded borders of dense counts": sum(s.borders for s in comparison.synapses),
        "inputs or weights that are 0": sum(s.zeros for s in comparison.synapses),
        "further spikes of a sum or average, which is one input there": sum(s.shared for s in comparison.synapses),
        "inputs that are sums or averages: ACs here, MACs there": sum(
            s.their_macs for s in comparison.synapses if s.kind in ("counts", "pooled")
        ),
        "ACs that are not in a layer": comparison.unseen[0] * n,
    }
    lines += ["", "differences, operations per sample:"]
    lines += [f"  {name}: {value / n:,.0f}" for name, value in parts.items() if value]
    accuracy = theirs["ClassificationAccuracy"]
    return "\n".join([*lines, "", f"{n} test samples, accuracy {accuracy:.2%}; docs/energy.md explains each part"])
