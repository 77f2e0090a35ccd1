"""`steadyspike train`."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadyspike.commands.box_report import map_table
from steadyspike.commands.common import ENDED, console, one_line_errors, record_number
from steadyspike.nn.memory.heap import keep_freed_memory
from steadyspike.train.session.signals import Signals, Stopped, exit_code

if TYPE_CHECKING:
    from steadyspike.report.live import LiveReport


@one_line_errors
def run(
    name: str,
    settings: list[str],
    data_dir: Path | None,
    devices: int | None,
    resume: bool,
    out: Path | None,
    record: bool = False,
) -> int:
    """Exit code of a training run; ``record``: its number goes into the recipe's file."""
    with Signals(commands=True) as signals:
        try:
            code, root = _run(name, settings, data_dir, devices, resume, out, signals)
            if record and code == ENDED and root is not None:
                record_number(root, name)
            return code
        except Stopped as stop:
            number = signal.Signals(stop.number)
            console.print(f"stopped by {number.name} before the run began: run the same command again", style="yellow")
            return exit_code(number)


def _run(
    name: str,
    settings: list[str],
    data_dir: Path | None,
    devices: int | None,
    resume: bool,
    out: Path | None,
    signals: Signals,
) -> tuple[int, Path | None]:
    """The exit code and, in the one process that reports about the run, its folder."""
    from steadyspike.train.recipe import RecipeError, find_recipe, load_recipe
    from steadyspike.train.recipe.origin import origin

    extra = [f"train.devices={devices}"] if devices is not None else []
    recipe = load_recipe(name, [*settings, *extra])
    stem, made = find_recipe(name).name, origin(name, [*settings, *extra])
    try:
        return _checked_run(recipe, made, stem, data_dir, resume, out, signals)
    except RecipeError as error:
        raise RecipeError(f"{stem}: {error}") from None


def _checked_run(
    recipe: Any,
    made: dict[str, Any],
    stem: str,
    data_dir: Path | None,
    resume: bool,
    out: Path | None,
    signals: Signals,
) -> tuple[int, Path | None]:
    from steadyspike.train.building.dry_run import check_recipe
    from steadyspike.train.building.lightning_data import batch_per_process
    from steadyspike.train.files.folder import RunError, new_folder, open_folder, resumable
    from steadyspike.train.run.accelerator import accelerator_of
    from steadyspike.train.run.processes import under_torchrun

    keep_freed_memory()  # the process is ours: large activations need no new pages at every step
    check_recipe(recipe)
    accelerator_of(recipe)
    processes = int(os.environ["WORLD_SIZE"]) if under_torchrun() else recipe.train.devices
    batch_per_process(recipe, processes)
    if under_torchrun():
        if out is None:
            raise RunError("under torchrun every process must know the run folder: give it with --out")
        code = _under_torchrun(recipe, made, data_dir, resume, out, stem, signals)
        return code, out if os.environ["RANK"] == "0" else None
    folder = open_folder(out, stem) if resume else new_folder(out, stem)
    try:
        with folder.locked():
            if resume and (folder.root / "recipe.toml").exists():
                resumable(folder, recipe)
                ended = _ended_before(folder)
                if ended is not None:
                    return ended, folder.root
            _write_origin(folder, made)
            result = _start(recipe, folder, data_dir, resume, signals)
    except Exception:
        if not resume and out is None:
            folder.remove_if_unused()
        raise
    draw(result, folder)
    _last_report(recipe, folder, data_dir)
    return report(result, folder.root), folder.root


def _write_origin(folder: Any, made: dict[str, Any]) -> None:
    """origin.json, which is only shown: what keeps it from being written is told by the next file that is needed."""
    from steadyspike.train.files.atomic import CheckpointError
    from steadyspike.train.recipe.origin import ORIGIN

    with suppress(CheckpointError, OSError):
        folder.write_json(ORIGIN, made)


def _ended_before(folder: Any) -> int | None:
    """The exit code of a run that has ended; None where there is something to resume, or a file to write again."""
    from steadyspike.train.files.intact import intact_result

    result = intact_result(folder)
    if result is None:
        return None
    console.print("this run has ended already", style="yellow")
    return report(result, folder.root)


def _start(recipe: Any, folder: Any, data_dir: Path | None, resume: bool, signals: Signals) -> dict[str, Any]:
    from steadyspike.train.run.conclusion import interrupted
    from steadyspike.train.run.training import train

    try:
        if recipe.train.devices > 1:
            return _start_several(recipe, folder, data_dir, resume, signals)
        from steadyspike.train.callbacks.display import Display

        look = _live(recipe, folder)
        return train(
            recipe, folder, data_dir=data_dir, resume=resume, display=Display, signals=signals, after_epoch=look
        )
    except Stopped as stop:
        return interrupted(recipe, folder, stop.number, signals.where)


def _start_several(recipe: Any, folder: Any, data_dir: Path | None, resume: bool, signals: Signals) -> dict[str, Any]:
    from steadyspike.train.building.lightning_data import load_data
    from steadyspike.train.callbacks.after_epoch import Sparingly
    from steadyspike.train.run.conclusion import interrupted
    from steadyspike.train.run.processes import launch

    data_dir = data_dir or (folder.data_dir() if resume else None)
    load_data(recipe.data, data_dir)  # downloads and caches once, before several processes need it
    folder.write_recipe(recipe)
    (folder.root / "result.json").unlink(missing_ok=True)  # of the time before
    look = _live(recipe, folder)
    update = Sparingly(look, _no_report) if look is not None else None

    def meanwhile() -> None:
        if look is not None and update is not None and look.news():
            update()

    launch(folder, recipe.train.devices, data_dir, resume, signals, meanwhile)
    if signals.number is not None and not (folder.root / "result.json").exists():
        return interrupted(recipe, folder, signals.number, "before the first step")
    result: dict[str, Any] = folder.read_json("result.json")
    if signals.number is not None and result["status"] == "interrupted":
        result["signal"] = signals.number  # the processes are always told by SIGTERM
    return result


def _under_torchrun(
    recipe: Any, made: dict[str, Any], data_dir: Path | None, resume: bool, out: Path, stem: str, signals: Signals
) -> int:
    from steadyspike.train.callbacks.display import Display
    from steadyspike.train.files.folder import RunFolder, new_folder, resumable
    from steadyspike.train.run.trainer import Processes, leave_group
    from steadyspike.train.run.training import train

    rank, local, world = (int(os.environ[key]) for key in ("RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    # Only rank 0 checks that the folder is free: when the others start, it may already have written to it.
    folder = new_folder(out, stem) if rank == 0 and not resume else RunFolder(out)
    if resume and (out / "recipe.toml").exists():
        resumable(folder, recipe)
        ended = _ended_before(folder)
        if ended is not None:
            return ended
    processes = Processes(local, world // local)
    with folder.locked() if rank == 0 else nullcontext():
        if rank == 0:
            _write_origin(folder, made)
        result = train(
            recipe,
            folder,
            data_dir=data_dir,
            resume=resume,
            processes=processes,
            rank=rank,
            display=Display,
            signals=signals,
            after_epoch=_live(recipe, folder) if rank == 0 else None,
        )
    leave_group()
    if rank == 0:
        draw(result, folder)
        _last_report(recipe, folder, data_dir)
    return report(result, out) if rank == 0 else _code(result)


def _live(recipe: Any, folder: Any) -> LiveReport | None:
    """What writes report.html while the run trains; None where nobody asked for it."""
    if not recipe.train.report:
        return None
    from steadyspike.report.live import LiveReport

    return LiveReport(folder.root)


def _last_report(recipe: Any, folder: Any, data_dir: Path | None) -> None:
    """The report of the run as it is now. As the figure, it is a service and fails nothing."""
    if not recipe.train.report:
        return
    try:
        from steadyspike.commands.report import add_details
        from steadyspike.report.live import PAGE
        from steadyspike.report.run_view import read_run
        from steadyspike.report.write_page import write_report

        view = read_run(folder.root)
        add_details(view, data_dir, False)
        write_report([view], folder.root / PAGE)
    except Exception as error:
        _no_report(f"{type(error).__name__}: {error}")


def _no_report(text: str) -> None:
    console.print(f"no report: {text}", style="yellow", markup=False, soft_wrap=True)


def _code(result: dict[str, Any]) -> int:
    return exit_code(result["signal"]) if result["status"] == "interrupted" else ENDED


def draw(result: dict[str, Any], folder: Any) -> None:
    """Draws the run's figure. A figure that cannot be drawn is reported and does not make the run fail."""
    if result["status"] == "interrupted":
        return
    try:
        from steadyspike.train.files.run_figure import draw_runs

        draw_runs({f"{folder.root.parent.name}/{folder.root.name}": folder}, folder.root / "figure.png")
    except Exception as error:
        console.print(f"no figure: {type(error).__name__}: {error}", style="yellow", markup=False, soft_wrap=True)


def report(result: dict[str, Any], root: Path) -> int:
    """Says how a run ended."""
    status = result["status"]
    if status == "interrupted":
        name = signal.Signals(result["signal"]).name
        console.print(
            f"stopped by {name} {result['where']}; the same command with --resume continues in {root}",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
        return _code(result)
    if status != "finished":
        console.print(f"\n{status}: {result['message']}", style="bold red", markup=False, soft_wrap=True)
    test = result["test"]
    if "accuracy" in test:
        accuracy, steps = ", ".join(f"{a:.2f}" for a in test["accuracy"]), len(test["accuracy"])
        console.print(
            f"\ntest accuracy after 1..{steps} time steps: [bold]{accuracy}[/] %  ({result['weights']})", soft_wrap=True
        )
    else:
        console.print(f"\ntest part, {result['weights']}:")
        console.print(map_table(test))
    if (paper := result.get("paper")) is not None and paper.get("value") is not None:
        spread = f" ± {paper['spread']}" if paper.get("spread") is not None else ""
        note = f"; {paper['note']}" if paper.get("note") else ""
        console.print(f"the paper: {paper['value']}{spread} {paper['unit']} ({paper['where']}){note}", soft_wrap=True)
    if (root / "figure.png").exists():
        console.print(f"figure: {root / 'figure.png'}", markup=False, soft_wrap=True)
    if (root / "report.html").exists():
        console.print(f"report: {root / 'report.html'}", markup=False, soft_wrap=True)
    console.print(f"everything is in {root}", markup=False, soft_wrap=True)
    return ENDED
