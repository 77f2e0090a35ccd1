"""`steadyspike gpu`: what the kernels need on a GPU that is not available, and measurements on one that is."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steadyspike.commands.common import ENDED, FAILED, console, errors, exits, one_line_errors

if TYPE_CHECKING:
    from steadyspike.analysis.gpu.bench import Row

app = typer.Typer(no_args_is_help=True, help="Check the GPU kernels without a GPU, or measure them on one.")


@app.command()
@exits
@one_line_errors
def kernels(
    timesteps: Annotated[int, typer.Option("-T", "--timesteps", min=1, help="Time steps of the layer.")] = 4,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    channels_last: Annotated[bool, typer.Option("--channels-last", help="The memory layout of the layer.")] = False,
) -> int:
    """Compile every kernel of a layer for six GPUs; print registers, spills, shared memory and occupancy."""
    import torch

    from steadyspike.analysis.gpu.compiled_kernels import CARDS, TARGETS, compiled, layer_launches, usage

    if dtype not in ("bfloat16", "float16", "float32"):
        raise typer.BadParameter(f"unknown type {dtype!r}; known: bfloat16, float16, float32", param_hint="--dtype")
    spilled = 0
    layer = partial(layer_launches, timesteps, getattr(torch, dtype), channels_last=channels_last)
    launches = layer()
    launches["backward, shortcut"] = layer(shortcut="spikes")["backward"]
    launches["... with a norm"] = layer(shortcut="norm")["backward"]
    console.print(f"{'GPU':<16}{'kernel':<20}{'registers':>10}{'spilled':>9}{'shared':>8}{'occupancy':>11}")
    for target in TARGETS:
        for name, (launch, config) in launches.items():
            used = usage(compiled(launch, target, config), target, config[1])
            numbers = f"{used.registers:>10}{used.spilled:>9}{used.shared:>8}{used.occupancy:>11.0%}"
            console.print(f"{f'{CARDS[target]} {target}':<16}{name:<20}{numbers}", markup=False, highlight=False)
            spilled += used.spilled
    return FAILED if spilled else ENDED


@app.command()
@exits
@one_line_errors
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Networks; default: all registered ones.")] = None,
) -> int:
    """Run networks on tensors of the device "cuda" without values: needs a CUDA build of torch, but no card."""
    from steadyspike import models
    from steadyspike.analysis.gpu.device_check import check_network, why_not_here

    if (reason := why_not_here()) is not None:
        errors.print(f"error: {reason}", markup=False, soft_wrap=True)
        return FAILED
    failed = 0
    for name in names or models.names():
        for mixed in (False, True):
            problems = check_network(name, mixed=mixed)
            kind = "bfloat16 autocast" if mixed else "float32"
            console.print(f"{name:<32}{kind:<20}{'; '.join(problems) or 'right'}", markup=False, soft_wrap=True)
            failed += bool(problems)
    return FAILED if failed else ENDED


@app.command()
@exits
@one_line_errors
def bench(
    output: Annotated[Path, typer.Option("-o", "--output", help="The file for the numbers.")] = Path("gpu-bench.json"),
    device: Annotated[str, typer.Option(help="The device, such as cuda or cuda:1.")] = "cuda",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    small: Annotated[bool, typer.Option("--small", help="Use tiny sizes, to try the command on any computer.")] = False,
) -> int:
    """Measure kernels and training steps on this computer's GPU, against SpikingJelly, torch.compile and a copy."""
    import torch

    from steadyspike.analysis.gpu.bench import FULL, SMALL
    from steadyspike.analysis.gpu.bench import bench as rows_of
    from steadyspike.train.files.environment import environment

    if dtype not in ("bfloat16", "float16", "float32"):
        raise typer.BadParameter(f"unknown type {dtype!r}; known: bfloat16, float16, float32", param_hint="--dtype")
    on = torch.device(device)
    if on.type == "cuda" and not torch.cuda.is_available():
        errors.print("error: this computer has no GPU that torch can use; --device cpu --small tries the command")
        return FAILED
    rows = []
    for row in rows_of(on, SMALL if small else FULL, getattr(torch, dtype), 0.0 if small else 0.5):
        console.print(_line(row), markup=False, soft_wrap=True)
        rows.append(row.as_dict())
    device_name = torch.cuda.get_device_name(on) if on.type == "cuda" else "cpu"
    about = {"device": device_name, "dtype": dtype, "small": small, "environment": environment()}
    output.write_text(json.dumps({"format": 1, **about, "rows": rows}, indent=1) + "\n")
    console.print(
        f"\nwritten: {output}. It contains no names, and no paths except the command line. To share it, open an issue "
        "of the project and attach the file; it replaces the predictions of docs/kernels-gpu.md.",
        soft_wrap=True,
    )
    return ENDED


def _line(row: Row) -> str:
    """Formats one measurement as a line of text."""
    if row.median is None:
        return f"{row.group:<22}{row.name:<44}{'-':>10}   {row.why_not}"
    predicted = "" if row.predicted is None else f"   predicted {row.predicted:.3f}"
    return f"{row.group:<22}{row.name:<44}{row.median:>10.3f} ms ({row.low:.3f} to {row.high:.3f}){predicted}"
