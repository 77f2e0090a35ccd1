"""`steadyspike benchmark`: another tool's numbers for a run, next to ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from steadyspike.commands.common import ENDED, console, one_line_errors
from steadyspike.commands.options import DataDir, Run

if TYPE_CHECKING:
    from steadyspike.deploy.neurobench import Comparison


@one_line_errors
def command(
    folder: Run,
    neurobench: Annotated[
        bool, typer.Option("--neurobench", help="Also measure with NeuroBench, and explain every difference.")
    ] = False,
    data_dir: DataDir = None,
    samples: Annotated[int, typer.Option(min=1, help="Test samples to measure on.")] = 256,
) -> int:
    """Measure a run's folded network by NeuroBench's metrics: size, sparsity, operations."""
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
    """Prints the metrics by our own counts."""
    lines = [f"{'per sample':<22}{'ours':>18}", *(f"{name:<22}{_shown(key, ours[key])}" for name, key in ROWS.items())]
    return "\n".join([*lines, "", f"{samples} test samples; --neurobench adds NeuroBench's own numbers"])


def table(comparison: Comparison) -> str:
    """Prints the metrics next to each other, then how our number of operations leads to NeuroBench's, per sample."""
    ours, operations = comparison.ours, comparison.theirs["SynapticOperations"]
    theirs = {**comparison.theirs, "ACs": operations["Effective_ACs"], "MACs": operations["Effective_MACs"],
              "Dense": operations["Dense"]}  # fmt: skip
    lines = [f"{'per sample':<22}{'ours':>18}{'NeuroBench':>18}"]
    lines += [f"{name:<22}{_shown(key, ours[key])}{_shown(key, theirs[key])}" for name, key in ROWS.items()]
    for name, key in ROWS.items():
        parts = {cause: value for cause, value in comparison.differences().get(key, {}).items() if value}
        lines += ["", f"{name}, from ours to NeuroBench's:"] if parts else []
        lines += [f"{value:>+18,.2f}  {cause}" for cause, value in parts.items()]
    accuracy = theirs["ClassificationAccuracy"]
    ending = f"{comparison.samples} test samples, accuracy {accuracy:.2%}; docs/energy.md explains each part"
    return "\n".join([*lines, "", ending])


def _shown(key: str, value: float) -> str:
    digits = 6 if key.endswith("Sparsity") else 0 if key == "Footprint" else 2
    return f"{value:>18,.{digits}f}"
