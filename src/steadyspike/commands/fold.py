"""`steadyspike fold`: makes the folded network of a run, proves it and compares the accuracies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from steadyspike.commands.common import ENDED, FAILED, console, errors, one_line_errors
from steadyspike.commands.options import DataDir, Run

if TYPE_CHECKING:
    from torch import Tensor


@one_line_errors
def command(
    folder: Run,
    data_dir: DataDir = None,
    mode: Annotated[
        str, typer.Option(help="Streams of unequal thresholds: exact (raise an error), split or graded.")
    ] = "exact",
    samples: Annotated[int | None, typer.Option(min=1, help="Compare on this many test samples; default: all.")] = None,
    float64: Annotated[
        bool, typer.Option("--float64", help="Also compare in float64, in which every decision must be the same.")
    ] = False,
) -> int:
    """Turn a run's model into an equivalent network of binary spikes, prove it, and save it in the run folder."""
    from steadyspike.commands.shared.deployed import (
        FILE,
        batches,
        decisions,
        decisions_in_float64,
        fold_run,
        missing_data,
    )
    from steadyspike.deploy.rewrite import MODES, Mode
    from steadyspike.train.run.loading import load_run

    if mode not in MODES:
        errors.print(f"error: unknown mode {mode!r}; known: {', '.join(MODES)}", style="red")
        return 2
    loaded = load_run(folder, data_dir)
    network = fold_run(loaded, cast(Mode, mode))
    for proof in network.proofs:
        console.print(str(proof), soft_wrap=True)
    reason, differ, exact, allowed = missing_data(loaded), 0, 0, 0
    if reason is not None:
        console.print(f"proved on noise, without accuracies: {reason}", style="yellow", soft_wrap=True, markup=False)
    else:
        with console.status("test accuracy of both"):
            expected, labels = decisions(loaded.model, batches(loaded, "test", samples))
            got, _ = decisions(network, batches(loaded, "test", samples))
        differ, allowed = _compare("test accuracy", expected, got, labels), max(1, len(labels) // 1000)
    if differ:
        console.print("rounding moved a spike; in float64 both decide alike (--float64 shows it)", style="yellow")
    if float64:
        with console.status("the same in float64"):
            expected, got, labels = decisions_in_float64(loaded, cast(Mode, mode), samples)
        exact = _compare("in float64", expected, got, labels)
    layers = len(network.graph.neurons())
    console.print(f"{layers} neuron layer{'s' * (layers != 1)} with binary spikes: {folder / FILE}", soft_wrap=True)
    return ENDED if exact == 0 and differ <= allowed else FAILED


def _compare(what: str, expected: Tensor, got: Tensor, labels: Tensor) -> int:
    """Prints both accuracies; returns how many samples are decided differently."""
    model, folded = (f"{100 * float((chosen == labels).double().mean()):.2f} %" for chosen in (expected, got))
    differ = int((expected != got).sum())
    text = f"{what}: model {model}, folded {folded}; {differ} of {len(labels)} samples decided differently"
    console.print(text, soft_wrap=True)
    return differ
