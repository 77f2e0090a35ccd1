"""`steadyspike energy`."""

from __future__ import annotations

from pathlib import Path

from steadyspike.commands.common import ENDED, console, one_line_errors


@one_line_errors
def run(folder: Path, data_dir: Path | None, samples: int, strict: bool, every_step: bool) -> int:
    from steadyspike.commands.deployed import batches, folded
    from steadyspike.deploy.energy import count_operations, show_energy
    from steadyspike.train.run.loading import load_run

    network, _ = folded(folder, data_dir)
    loaded = load_run(folder, data_dir)
    with console.status("counting operations"):
        data = (x for x, _ in batches(loaded, "test", samples))
        report = count_operations(network, data, pool_as_synapse=not strict, stem_every_step=every_step)
    console.print(str(report), markup=False, soft_wrap=True)
    estimate = show_energy(report.energy(estimate=True))
    console.print(f"with ACs as papers count them (rate x dense): {estimate} at 45 nm fp32")
    console.print(f"{report.samples} test samples, {report.timesteps} time steps; the first layer counts "
                  f"{'at every step' if every_step else 'once per static image'}; averages of spikes are "
                  f"{'MACs' if strict else 'ACs'}", soft_wrap=True)  # fmt: skip
    return ENDED
