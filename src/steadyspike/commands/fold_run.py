"""`steadyspike fold`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from steadyspike.commands.common import ENDED, FAILED, console, errors, one_line_errors


@one_line_errors
def run(folder: Path, data_dir: Path | None, mode: str, samples: int | None) -> int:
    """Exit code 1 if the folded network gets another number of samples right than the model."""
    from steadyspike.commands.deployed import FILE, batches, correct, fold_run
    from steadyspike.deploy.rewrite import MODES, Mode
    from steadyspike.train.run.loading import load_run

    if mode not in MODES:
        errors.print(f"error: unknown mode {mode!r}; known: {', '.join(MODES)}", style="red", markup=False)
        return 2
    loaded = load_run(folder, data_dir)
    network = fold_run(loaded, cast(Mode, mode))
    for proof in network.proofs:
        console.print(str(proof), soft_wrap=True, markup=False)
    with console.status("test accuracy of both"):
        right, total = correct(loaded.model, batches(loaded, "test", samples))
        also, _ = correct(network, batches(loaded, "test", samples))
    console.print(
        f"test accuracy: model {100 * right / total:.2f} %, folded {100 * also / total:.2f} % ({total} samples)"
    )
    console.print(f"{len(network.graph.neurons())} neuron layers with binary spikes: {folder / FILE}", soft_wrap=True)
    if right != also:
        console.print(f"{abs(right - also)} samples differ: rounding moved a spike", style="yellow")
    return ENDED if abs(right - also) <= max(1, total // 1000) else FAILED
