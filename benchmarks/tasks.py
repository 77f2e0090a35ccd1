"""One case for one contender: what is run, how it is timed, and what it takes in memory."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks import learned
from benchmarks.cases import Case, NetworkCase, NeuronCase
from benchmarks.contenders import COPIES, COPY, LEAN, NETWORKS, NEURONS, OURS, RELU
from torch import Tensor, nn
from torch.nn import functional as F

from steadyspike import models, use_dense
from steadyspike.nn.memory.pack import save_memory

Runs = dict[str, Callable[[], object]]


def prepare(case: Case, contender: str) -> Runs:
    """``forward`` (evaluation, no gradients) and ``train`` (forward and backward), ready to be called."""
    torch.manual_seed(0)
    if contender in COPIES:
        return _copies(case, contender)
    return _neuron(case, contender) if isinstance(case, NeuronCase) else _network(case, contender)


def _copies(case: Case, contender: str) -> Runs:
    """A copy of as many bytes: the forward reads x and writes spikes, the backward reads x and g and writes dx.

    A layer has to allocate what it writes; `clone` does so too, `copy_` does not.
    """
    assert isinstance(case, NeuronCase)
    x = torch.randn(case.shape)
    half, target = x[: max(1, x.shape[0] // 2)], torch.empty_like(x)

    def copy(source: Tensor) -> object:
        return target[: source.shape[0]].copy_(source) if contender == COPY else source.clone()

    def both() -> None:
        kept = [copy(x), copy(x), copy(half)]
        del kept

    return {"forward": lambda: copy(x), "train": both}


def runs_of(module: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Runs:
    leaves = [x, *module.parameters()]

    def start(training: bool) -> None:
        for leaf in leaves:  # as an optimizer does; module.zero_grad() looks for the parameters in every call
            leaf.grad = None
        if module.training != training:
            module.train(training)

    def train() -> None:
        start(training=True)
        loss(module(x)).backward()

    def forward() -> None:
        start(training=False)
        with torch.no_grad():
            module(x)

    return {"forward": forward, "train": train}


class _Dot(torch.autograd.Function):
    """A loss whose gradient is a given tensor and which costs nothing itself."""

    @staticmethod
    def forward(ctx, out: Tensor, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(gradient)
        return out.new_zeros(())

    @staticmethod
    def backward(ctx, scale: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def, override]
        return ctx.saved_tensors[0], None


def _neuron(case: NeuronCase, contender: str) -> Runs:
    x = torch.randn(case.shape).add_(0.5).requires_grad_()
    gradient = torch.randn(case.shape)
    return runs_of(NEURONS[contender](), x, lambda out: _Dot.apply(out, gradient))


def _network(case: NetworkCase, contender: str) -> Runs:
    neuron = NETWORKS[contender]
    steps = 1 if contender == RELU else case.steps
    net = models.create("resnet19", neuron=neuron, width=case.width, timesteps=steps, dropout=0.0)
    net = net.to(memory_format=torch.channels_last)
    if contender not in (OURS, LEAN):
        use_dense(net)  # another library's network has torch's own convolutions
    x, y = torch.randn(case.batch, 3, 32, 32), torch.randint(0, 10, (case.batch,))
    if case.network:
        learned.load(net, case.network)
        x, y = learned.batch(case.network, case.batch)
    if contender == LEAN:
        save_memory(net)
    x = x.contiguous(memory_format=torch.channels_last)
    return runs_of(net, x, lambda out: F.cross_entropy(out.mean(0), y))


def seconds(run: Callable[[], object], budget: float) -> float:
    """The shortest of as many runs as fit into ``budget`` seconds, at least one."""
    best, end = float("inf"), time.perf_counter() + budget
    while True:
        start = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def give_back() -> None:
    """What is free goes back to the system: contenders share the machine's memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def peak(runs: Runs) -> int:
    """Bytes by which the process grows in a training step, gradients included (Linux only)."""
    runs["forward"]()  # leaves no gradients behind
    give_back()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    runs["train"]()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024
