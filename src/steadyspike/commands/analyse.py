"""`steadyspike analyse`: does a trained network suffer from temporal covariate shift?"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from steadyspike.commands.common import ENDED, console, one_line_errors
from steadyspike.commands.options import DataDir, run_argument
from steadyspike.disk.plain_text import duration

if TYPE_CHECKING:
    from torch import Tensor

_FRAMES = 1024  # the largest number of frames in a batch, because long windows need more memory in large batches


@one_line_errors
def command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", parser=run_argument, help="A run, a name of the zoo, or a file RUN/checkpoints/*.ckpt."
        ),
    ],
    data_dir: DataDir = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    samples: Annotated[int, typer.Option(min=2, help="How many samples to run.")] = 512,
    timesteps: Annotated[int | None, typer.Option(min=2, help="Still images: repeat them for this many steps.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw the distributions, as .png, .pdf or .svg.")] = None,
) -> int:
    """Measure how far membrane, input and firing rate drift over time: one number per layer, and one verdict."""
    from steadyspike.analysis.networks.observe import observe
    from steadyspike.analysis.networks.shift import report_of, start_of
    from steadyspike.commands.analyse import with_progress
    from steadyspike.commands.shared.deployed import BATCH, batches
    from steadyspike.nn.neuron import neurons
    from steadyspike.train.recipe import RecipeError

    loaded = _load(source, data_dir)
    if not any(layer.spiking for layer in neurons(loaded.model).values()):
        raise RecipeError("this network has no spiking neurons, so nothing drifts over time")
    steps = loaded.data.timesteps or timesteps or loaded.recipe.data.timesteps
    if timesteps is not None and loaded.data.timesteps not in (None, timesteps):
        raise RecipeError(f"--timesteps {timesteps}: the data are clips of {loaded.data.timesteps} frames")
    if steps < 2:
        raise RecipeError("a drift over time needs at least 2 time steps: give --timesteps 4")
    samples = min(samples, len(loaded.data.indices(part)))
    several = batches(loaded, part, samples, max(1, min(BATCH, _FRAMES // steps)))
    with closing(with_progress(several, samples, console)) as shown:
        seen = observe(loaded.model, shown, timesteps=timesteps)
    report = report_of(seen, start_of(loaded.model))
    status = loaded.result["status"]
    if status not in ("finished", "checkpoint"):
        text = f"this run did not finish its training ({status}): {loaded.result['message']}\n"
        console.print(text, style="bold red", soft_wrap=True)
    console.print(str(report), soft_wrap=True)
    if figure is not None:
        _draw(seen, figure)
    return ENDED


def _load(source: Path, data_dir: Path | None) -> Any:
    from steadyspike.train.run.loading import load_checkpoint, load_run

    if source.suffix == ".ckpt":
        return load_checkpoint(source, data_dir)
    return load_run(source.parent if source.is_file() else source, data_dir)


def _draw(seen: Any, path: Path) -> None:
    from steadyspike.paper.figures.over_steps import step_distributions
    from steadyspike.paper.figures.style import save

    layers = {name: layer.membrane_shares.numpy() for name, layer in seen.layers.items() if layer.active}
    save(step_distributions(layers, "U[t] / V", (-2.0, 2.0)), path)
    console.print(f"figure: {path}", soft_wrap=True)


_SELDOM = 10.0  # seconds between two lines if the output goes to a file or another program


def with_progress(
    batches: Iterable[tuple[Tensor, Tensor]], samples: int, console: Console
) -> Generator[tuple[Tensor, Tensor], None, None]:
    """Yields the batches; shows on the console how many of all ``samples`` have run when the next one is requested.

    Close the generator if an error may end the work, because it animates a line on the terminal until then.
    """
    started = last_print = time.monotonic()
    done = 0
    with console.status(f"running {samples} samples") as status:
        for x, y in batches:
            yield x, y
            done += len(y)
            now = time.monotonic()
            line = f"{done} of {samples} samples, about {duration((now - started) / done * (samples - done))} left"
            status.update(line)
            if not console.is_terminal and done < samples and now - last_print >= _SELDOM:
                console.print(line, soft_wrap=True)
                last_print = now
