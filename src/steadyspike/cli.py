"""`steadyspike`: the command line. Commands import what they need when they run, so that --help is quick."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change a key of the recipe; may be given several times."),
]


def _run(text: str) -> Path:
    from steadyspike.commands.common import run_or_name

    return run_or_name(text)


Run = Annotated[Path, typer.Argument(metavar="RUN", parser=_run, help="A run folder, or a name of `steadyspike zoo`.")]
RunOrFile = Annotated[
    Path,
    typer.Argument(metavar="RUN", parser=_run, help="A run folder, a name of the zoo, or a folded network's file."),
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder that holds data sets.")]


def _version(wanted: bool) -> None:
    if wanted:
        import steadyspike

        typer.echo(f"steadyspike {steadyspike.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Stable direct training of spiking neural networks: MP-Init and threshold-robust surrogate gradients."""


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A name that `steadyspike recipes` lists, or a .toml file.")],
    settings: Settings = None,
    data_dir: DataDir = None,
    devices: Annotated[int | None, typer.Option(help="Processes: GPUs, or CPU processes without one.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped or killed.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder; default: runs/RECIPE/001.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="RUN", help="Start with these weights: a run, a name of the zoo.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Add the test numbers to the recipe's results, which `recipes` shows.")
    ] = False,
) -> None:
    """Train a recipe. Exit codes: 0 ended (also a run that diverged), 130 and 143 stopped by a signal: use --resume."""
    from steadyspike.commands.train import run

    weights = [] if start is None else [f"train.start={start}"]
    raise typer.Exit(run(recipe, [*(settings or []), *weights], data_dir, devices, resume, out, record))


@app.command()
def evaluate(
    folder: Run,
    data_dir: DataDir = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    split: Annotated[str | None, typer.Option(help="Another split than the run's; warns.")] = None,
    record: Annotated[
        bool, typer.Option("--record", help="If the number came out again, write it into the recipe's file.")
    ] = False,
    recipe: Annotated[str | None, typer.Option(help="With --record: the recipe, if it is not packaged.")] = None,
    early_exit: Annotated[
        bool, typer.Option("--early-exit", help="Also accuracy against average steps, when samples stop early.")
    ] = False,
) -> None:
    """Evaluate the weights of a run and compare with the number it logged."""
    from steadyspike.commands.evaluate import run, show_early_exit

    code = run(folder, data_dir, part, split, record, recipe)
    raise typer.Exit(code or (show_early_exit(folder, data_dir, part) if early_exit else 0))


@app.command()
def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Recipes with all these words in name or description, or of a FILE.toml."),
    ] = None,
    where: Annotated[str, typer.Option(help="Only those the paper has here: 'table 2', 'figure 9'.")] = "",
    show: Annotated[str | None, typer.Option(metavar="NAME", help="Print one resolved recipe, explained.")] = None,
    settings: Settings = None,
    every: Annotated[bool, typer.Option("--all", help="Also each recipe of the large grids.")] = False,
    bases: Annotated[bool, typer.Option("--bases", help="Also those that others only build on.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Print all keys of a recipe as Markdown.")] = False,
) -> None:
    """List the recipes with the paper's number and the measured ones, or explain one."""
    from steadyspike.commands import recipes as command

    if keys:
        raise typer.Exit(command.show_keys())
    if show is not None:
        raise typer.Exit(command.show(show, settings or []))
    raise typer.Exit(command.run(words or [], where, bases, every))


@app.command()
def doctor(
    recipe: Annotated[str | None, typer.Option(help="Check that this recipe can run here.")] = None,
    settings: Settings = None,
    devices: Annotated[int | None, typer.Option(help="Check for this many devices.")] = None,
    backend: Annotated[str | None, typer.Option(help="Check for this kernel: reference, cpu or triton.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Versions, devices, kernels and data found. Exits with 1 if something that was asked for cannot run."""
    from steadyspike.commands.doctor import run

    raise typer.Exit(run(recipe, settings or [], devices, backend, data_dir))


@app.command()
def fold(
    folder: Run,
    data_dir: DataDir = None,
    mode: Annotated[
        str, typer.Option(help="Streams of unequal thresholds: exact (refuse), split or graded.")
    ] = "exact",
    samples: Annotated[int | None, typer.Option(min=1, help="Compare on so many test samples; default: all.")] = None,
    float64: Annotated[
        bool, typer.Option("--float64", help="Compare in float64 too, where every decision must be the same.")
    ] = False,
) -> None:
    """Make the network of binary spikes that a run's model equals, prove it, and save it in the run folder."""
    from steadyspike.commands.fold_run import run

    raise typer.Exit(run(folder, data_dir, mode, samples, float64))


@app.command()
def export(
    place: RunOrFile,
    to: Annotated[str, typer.Option(help="nir, onnx, int8, c or page.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file (c: the folder); default: beside the network.")
    ] = None,
    data_dir: DataDir = None,
    mode: Annotated[str, typer.Option(help="NIR: faithful (exact), shift (exact, hard reset) or lif.")] = "faithful",
    streaming: Annotated[bool, typer.Option("--streaming", help="ONNX: one time step with explicit state.")] = False,
    samples: Annotated[int | None, typer.Option(min=1, help="int8: compare on so many test samples.")] = None,
    precision: Annotated[str, typer.Option(help="c: int8 or float32.")] = "int8",
    main: Annotated[bool, typer.Option("--main", help="c: add a program that reads inputs, for tests.")] = False,
) -> None:
    """Export a folded network to NIR, ONNX, integers, a C file that needs no library, or a page that runs it."""
    from steadyspike.commands.export_run import run

    raise typer.Exit(run(place, to, out, data_dir, mode, streaming, samples, precision, main))


@app.command()
def energy(
    place: RunOrFile,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Images or event recordings to count on; default: the run's test data.")
    ] = None,
    data_dir: DataDir = None,
    samples: Annotated[int, typer.Option(min=1, help="Test samples to count on.")] = 256,
    strict: Annotated[bool, typer.Option("--strict", help="What reads an average of spikes multiplies.")] = False,
    every_step: Annotated[bool, typer.Option("--every-step", help="Count the first layer at every step.")] = False,
) -> None:
    """Count the operations of a folded network and their energy."""
    from steadyspike.commands.energy_run import run

    raise typer.Exit(run(place, files or [], data_dir, samples, strict, every_step))


@app.command()
def predict(
    place: RunOrFile,
    files: Annotated[list[Path], typer.Argument(help="Images, event recordings; detection: also folders of images.")],
    data_dir: DataDir = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 1,
    confidence: Annotated[
        float | None,
        typer.Option(min=1e-9, max=1, help="Stop at the first step with this confidence: 0.9; detection: least score."),
    ] = None,
    resize: Annotated[bool, typer.Option("--resize", help="Scale images to the size the network takes.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Detection: folder for pictures and JSON.")] = None,
) -> None:
    """Predict the class of image or event files, or find the boxes in them, and say at which step it was decided."""
    from steadyspike.commands.predict import run

    raise typer.Exit(run(place, files, data_dir, top, confidence, resize, out))


@app.command()
def analyse(
    place: Annotated[
        Path,
        typer.Argument(metavar="RUN", parser=_run, help="A run, a name of the zoo, or a file RUN/checkpoints/*.ckpt."),
    ],
    data_dir: DataDir = None,
    part: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    samples: Annotated[int, typer.Option(min=2, help="How many samples to run.")] = 512,
    timesteps: Annotated[int | None, typer.Option(min=2, help="Still images: show them for so many steps.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Also draw the distributions, as .png, .pdf or .svg.")] = None,
) -> None:
    """Measure how far membrane, input and firing rate drift over time: one number per layer, one verdict."""
    from steadyspike.commands.analyse import run

    raise typer.Exit(run(place, data_dir, part, samples, timesteps, figure))


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="A name of --list, or a place: table-2, figure-9.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List every table and figure with what it needs.")] = False,
    scale: Annotated[
        str, typer.Option(help="mini (minutes on a CPU), deep (hours on a CPU) or paper (the full experiment).")
    ] = "mini",
    data: Annotated[str, typer.Option(help="mini: another data set than the embedded digits, such as cifar10.")] = "",
    data_dir: DataDir = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each configuration; default: 3, mini 2.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where runs and pages are kept.")] = Path("reproduced"),
    show: Annotated[bool, typer.Option("--show", help="Train nothing: show what is there.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Add the numbers to the recipes' results, which `recipes` shows.")
    ] = False,
) -> None:
    """Make a table or figure of the paper. It can be stopped and started again; what was computed is kept."""
    from steadyspike.commands import reproduce as command

    if listed or name is None:
        raise typer.Exit(command.show_list())
    raise typer.Exit(command.run(name, scale, data, data_dir, seeds, out, not show, record))


@app.command()
def runs(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that holds runs.")] = Path("runs"),
    words: Annotated[
        list[str] | None, typer.Argument(help="Only runs with all these words in their path or recipe.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(help="Only running, stopped, killed, finished, diverged, silent, collapsed or damaged."),
    ] = None,
    sort: Annotated[str, typer.Option(help="changed, accuracy or name; the highest comes last.")] = "changed",
    last: Annotated[int | None, typer.Option(min=1, help="Only so many, from the end of the list.")] = None,
) -> None:
    """List all runs below a folder: recipe, state, accuracy, when and how long."""
    from steadyspike.commands.runs import run

    if sort not in ("changed", "accuracy", "name"):
        raise typer.BadParameter(f"{sort!r} is not changed, accuracy or name", param_hint="--sort")
    raise typer.Exit(run(root, words or [], state, sort, last))


@app.command()
def show(
    folder: Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Look again until the run ends.")] = False,
) -> None:
    """One run at a glance: numbers, curves, layers, health; with --follow live while it trains."""
    from steadyspike.commands.show_run import run

    raise typer.Exit(run(folder, follow))


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN [RUN...]", parser=_run, help="Run folders.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file; default: report.html in the run, or beside the runs.")
    ] = None,
    data_dir: DataDir = None,
    no_data: Annotated[
        bool, typer.Option("--no-data", help="Leave out what needs the data: confusion, samples, membranes.")
    ] = False,
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Several runs: which one to compare with; default: the first.")
    ] = None,
) -> None:
    """Write one HTML file about a run, or several runs side by side: it needs no network."""
    from steadyspike.commands.report import run

    raise typer.Exit(run(folders, out, data_dir, no_data, baseline))


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", parser=_run, help="Run folders.")],
) -> None:
    """Compare runs: best first, what differs between their recipes, and the spread over seeds."""
    from steadyspike.commands.compare import run

    raise typer.Exit(run(folders))


@app.command()
def zoo(
    name: Annotated[str | None, typer.Argument(help="Show the card of this network, or of a saved folder.")] = None,
    add: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Make an entry of a finished run; NAME is its name.")
    ] = None,
    data_dir: DataDir = None,
    to: Annotated[Path | None, typer.Option(help="With --add: a folder of entries; default: the library's.")] = None,
) -> None:
    """List the trained networks that come with the library: score, size, firing rate, energy, time."""
    from steadyspike.commands import zoo as command

    if add is not None:
        raise typer.Exit(command.add_run(add, name, data_dir, to))
    raise typer.Exit(command.show_list() if name is None else command.show_card(name))


def _mount_data() -> None:
    from steadyspike.commands.data import app as data_app

    app.add_typer(data_app, name="data")


_mount_data()


def main() -> None:
    """The entry point."""
    try:
        app()
    finally:  # the outcome is known and said; a signal while Python winds up must not change the exit code
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
