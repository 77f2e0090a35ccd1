"""Measurements of `steadyspike gpu bench`: neuron kernels against others, a layer with its norm, whole training steps.

A measurement is a function that runs once, forward and backward; `measure` times it. If something cannot run here, its
row has the reason instead of a time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from steadyspike.analysis.gpu.cards import CARDS, Card
from steadyspike.analysis.gpu.step_costs import StepCosts, step_costs
from steadyspike.analysis.gpu.step_time import step_time
from steadyspike.models.model_registry import create
from steadyspike.nn.fused_norm import norm_neuron
from steadyspike.nn.lif import LIF
from steadyspike.nn.norm.tdbn import TDBN

Run = Callable[[], object]
Layer = Callable[[Tensor], Tensor]
_SECONDS = 0.5  # a measurement is repeated for at least this long


@dataclass(frozen=True)
class Size:
    """How much is measured: neurons of a scan, steps, [B, C, H, W] of a layer, networks with (batch, pixels)."""

    neurons: int
    timesteps: tuple[int, ...]
    layer: tuple[int, int, int, int]
    networks: dict[str, tuple[int, int]]
    compiled: bool = True  # also with torch.compile


# The numbers of neurons for which SpikingJelly has published times, so that rows can be compared with its table.
FULL = Size(4 * 1024 * 1024, (4, 8, 16, 32), (64, 128, 32, 32), {"resnet19": (128, 32), "sew_resnet34": (32, 224)})
SMALL = Size(512, (4,), (2, 4, 4, 4), {"resnet19_tiny": (2, 32)}, compiled=False)


@dataclass(frozen=True)
class Row:
    """One measurement in milliseconds, median and quartiles.

    predicted: by `step_time`, if the card is in the list
    """

    group: str
    name: str
    median: float | None = None
    low: float | None = None
    high: float | None = None
    predicted: float | None = None
    why_not: str | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def this_card(device: torch.device) -> Card | None:
    """Returns the entry of `CARDS` whose name is part of the device's name; None for other devices."""
    if device.type != "cuda":
        return None
    full = torch.cuda.get_device_name(device).lower().replace(" ", "")
    fits = [card for name, card in CARDS.items() if name.split("-")[0] in full]
    memory = torch.cuda.get_device_properties(device).total_memory / 1e9
    return min(fits, key=lambda card: abs(card.memory - memory), default=None)


def measure(run: Run, device: torch.device, seconds: float = _SECONDS) -> list[float]:
    """Returns the milliseconds of each repetition: by events of the device, or by the clock on a CPU."""
    for _ in range(3):  # compiles, tunes, fills caches
        run()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - started < seconds:
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            begin = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - begin))
    return times


def bench(device: torch.device, size: Size, dtype: torch.dtype, seconds: float = _SECONDS) -> Iterator[Row]:
    """Yields all rows as they are measured."""
    for group, name, make, predicted in _cases(device, size, dtype):
        try:
            times = measure(make(), device, seconds)
        # if a library is missing or does not run, its row shows this and the others continue
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            yield Row(group, name, why_not=reason[:200])
            continue
        low, median, high = statistics.quantiles(times, n=4)
        yield Row(group, name, median, low, high, predicted)


Case = tuple[str, str, Callable[[], Run], float | None]


def _cases(device: torch.device, size: Size, dtype: torch.dtype) -> Iterator[Case]:
    card, precision = this_card(device), "fp32" if dtype == torch.float32 else "bf16"

    def predicted(costs: StepCosts, neuron: str = "steadyspike") -> float | None:
        return None if card is None else 1e3 * step_time(costs, card, precision, neuron=neuron).total

    elements = size.neurons * max(size.timesteps)
    moved = 2 * elements * dtype.itemsize
    by_bandwidth = None if card is None else 1e3 * moved / (card.bandwidth * 1e9)
    yield "copy", f"{moved / 1e6:.0f} MB read and written", partial(_copy, elements, device, dtype), by_bandwidth
    for steps in size.timesteps:
        costs = StepCosts(neurons=size.neurons * steps, operations=1)
        for name, make in _neurons(device, size.compiled).items():
            theirs = "spikingjelly" if name.startswith("SpikingJelly") else "steadyspike"
            run = partial(_scan, make, (steps, size.neurons), device, dtype)
            yield f"neuron, T = {steps}", name, run, predicted(costs, theirs)
    for name, fused in (("norm and neuron fused", True), ("one after the other", False)):
        yield "layer, T = 4", name, partial(_layer, fused, (4, *size.layer), device, dtype), None
    for name, (batch, pixels) in size.networks.items():
        shape = (batch, 3, pixels, pixels)
        with torch.device("meta"):
            costs = step_costs(_network(name), torch.empty(shape))
        for compiled in (False, True)[: 1 + size.compiled]:
            label = f"{name}, batch {batch}" + (", torch.compile" if compiled else "")
            run = partial(_step, name, shape, compiled, device, dtype)
            yield "training step, T = 4", label, run, predicted(costs)


def _copy(elements: int, device: torch.device, dtype: torch.dtype) -> Run:
    source = torch.zeros(elements, device=device, dtype=dtype)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _neurons(device: torch.device, with_compiler: bool) -> dict[str, Callable[[], Layer]]:
    """Returns makers of neuron layers x -> spikes, by name.

    U[0] = 0 and constants are fixed, because all libraries support this.
    """

    def compiled() -> Layer:
        layer = LIF(init="zero", learn=(), backend="reference").to(device)
        return torch.compile(layer)

    def spikingjelly(**options: str) -> Layer:
        from spikingjelly.activation_based import functional, neuron

        layer = neuron.LIFNode(tau=2.0, step_mode="m", **options).to(device)

        def call(x: Tensor) -> Tensor:
            functional.reset_net(layer)
            return layer(x)

        return call

    return {
        "steadyspike": lambda: LIF(init="zero", learn=()).to(device),
        "steadyspike, MP-Init, learned V and tau": lambda: LIF().to(device),
        **({"torch.compile of the reference": compiled} if with_compiler else {}),
        # Version 2 uses the kernel that its environment variable names (native CUDA, or Triton if there is none).
        # Before version 2, the kernel is an argument.
        "SpikingJelly": spikingjelly,
        "SpikingJelly before 2.0, CuPy": lambda: spikingjelly(backend="cupy"),
    }


def _scan(make: Callable[[], Layer], shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Run:
    layer = make()
    x = torch.randn(shape, device=device, dtype=dtype).requires_grad_()
    g = torch.randn(shape, device=device, dtype=dtype)

    def run() -> None:
        x.grad = None
        layer(x).backward(g)

    return run


def _layer(fused: bool, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Run:
    norm, neuron = TDBN(shape[2]).to(device), LIF().to(device)

    def apart(y: Tensor) -> Tensor:
        return neuron(norm(y))

    def as_one(y: Tensor) -> Tensor:
        return norm_neuron(norm, neuron, y)

    return _scan(lambda: as_one if fused else apart, shape, device, dtype)


def _network(name: str) -> nn.Module:
    return create(name, num_classes=100, timesteps=4)


def _step(name: str, shape: tuple[int, ...], compiled: bool, device: torch.device, dtype: torch.dtype) -> Run:
    """Runs forward, backward and SGD of a whole network, with autocast unless the type is float32."""
    model = _network(name).to(device)
    call: Any = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    x, y = torch.randn(shape, device=device), torch.randint(100, shape[:1], device=device)
    mixed = nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)

    def run() -> None:
        with mixed:
            loss = nn.functional.cross_entropy(call(x).mean(0), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run
