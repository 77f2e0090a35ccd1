"""A model one frame at a time, with explicit state and an optional early exit.

A stream runs any model of this library's neurons. For each frame the model is called with T = 1, and every neuron
continues from its potential after the previous frame. The logits of step t equal row t of the output for the whole
sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.state import LIFState
from steadyspike.deploy.leaves import norm_constants
from steadyspike.deploy.network import FoldedNetwork
from steadyspike.deploy.ops import lif_steps
from steadyspike.deploy.recurrent import Past
from steadyspike.deploy.replaced import replaced
from steadyspike.deploy.streamable import why_no_stream
from steadyspike.nn.input_convention import find_batch_dim
from steadyspike.nn.native import NotNative, native
from steadyspike.nn.neuron import Neuron, neurons
from steadyspike.nn.norm.base import TimeNorm


@dataclass(frozen=True)
class Confidence:
    """Decides when the softmax of the mean logits so far gives one class at least this probability."""

    probability: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ValueError(f"a confidence is a probability in (0, 1], got {self.probability}")

    def __call__(self, mean_logits: Tensor) -> Tensor:
        return mean_logits.softmax(-1).amax(-1) >= self.probability


@dataclass(frozen=True)
class Margin:
    """Decides when the best mean logit so far is at least this much above the second best."""

    difference: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.difference) and self.difference >= 0):
            raise ValueError(f"a margin is a number of at least 0, got {self.difference}")

    def __call__(self, mean_logits: Tensor) -> Tensor:
        best = mean_logits.topk(2, -1).values
        return best[..., 0] - best[..., 1] >= self.difference


Exit = Callable[[Tensor], Tensor]  # mean logits [B, classes] -> decided [B]


class Decision(NamedTuple):
    """Decisions of a stream: the mean logits [B, classes] at the step [B], from 1, at which each sample was decided."""

    logits: Tensor
    steps: Tensor


class Stream:
    """``stream(frame)``: the output of one time step, [B, ...] -> [B, classes]; only this object holds state.

    step: number of frames so far
    total: the sum of the outputs so far
    """

    def __init__(self, model: nn.Module, exit_when: Exit | None = None, batch_dim: int | None = None) -> None:
        if model.training:
            raise ValueError("a stream runs in evaluation mode; call model.eval() first")
        try:
            model = native(model)
        except NotNative as error:
            raise ValueError(f"{error}; use `with ss.window(model):` and a loop over its own calls") from None
        for name, layer in neurons(model).items():
            if type(layer).forward is not Neuron.forward or "forward" in layer.__dict__:
                raise ValueError(f"{name}: {type(layer).__name__} overrides forward, which cannot run step by step")
        why_not = why_no_stream(model.graph) if isinstance(model, FoldedNetwork) else None
        if why_not is not None:
            raise ValueError(f"the network cannot be streamed: {why_not}")
        self.model, self.exit_when, self.batch_dim = model, exit_when, batch_dim
        self.reset()

    def reset(self) -> None:
        """Starts a new stream from the initial potentials."""
        self.step = 0
        self.total: Tensor | None = None
        self.state: dict[str, LIFState | Tensor] = {}
        self.past = Past(self.model.graph) if isinstance(self.model, FoldedNetwork) else None

    @property
    def mean(self) -> Tensor:
        """Returns the mean output so far, [B, classes]."""
        if self.total is None:
            raise RuntimeError("the stream has got no frame yet")
        return self.total / self.step

    @property
    def decided(self) -> Tensor:
        """Returns which samples ``exit_when`` has decided, [B]."""
        if self.exit_when is None:
            raise RuntimeError(
                "this stream has no exit_when; give one, for example exit_when=ss.deploy.Confidence(0.9)"
            )
        return self.exit_when(self.mean)

    @torch.no_grad()
    def __call__(self, frame: Tensor) -> Tensor:
        if self.model.training:
            raise ValueError("a stream runs in evaluation mode; call model.eval() first")
        run = self._folded if isinstance(self.model, FoldedNetwork) else self._model
        out = run(frame)
        self.step += 1
        self.total = out.clone() if self.total is None else self.total + out
        return out

    def run(self, x: Tensor, timesteps: int | None = None) -> Decision:
        """Runs a new stream over frames [T, B, ...], or ``timesteps`` times over an image [B, ...], until decided.

        timesteps: of a static image; a folded network has the number with which it was folded


        Decided samples keep their logits. The stream ends when all are decided, or with the last frame.
        """
        self.reset()
        if timesteps is None and isinstance(self.model, FoldedNetwork) and self.model.takes_still(x):
            timesteps = self.model.graph.timesteps
        frames: Iterator[Tensor] = iter(x) if timesteps is None else (x for _ in range(timesteps))
        if (len(x) if timesteps is None else timesteps) < 1:
            raise ValueError("a stream needs at least one frame")
        logits, steps = torch.empty(0), torch.empty(0, dtype=torch.long)
        for frame in frames:
            self(frame)
            if self.step == 1:
                logits, steps = (
                    self.mean.clone(),
                    torch.zeros(len(self.mean), dtype=torch.long, device=self.mean.device),
                )
            open_ = steps == 0
            logits[open_] = self.mean[open_]
            if self.exit_when is not None:
                steps[open_ & self.decided] = self.step
                if bool((steps > 0).all()):
                    break
        steps[steps == 0] = self.step
        return Decision(logits, steps)

    def _model(self, frame: Tensor) -> Tensor:
        if self.batch_dim is None:
            self.batch_dim = _batch_dim(self.model, frame)
        with _one_step(self.model, self.state, self.step):
            try:
                out = self.model(frame[None] if self.batch_dim == 1 else frame)
            except RuntimeError as error:  # torch's error, if a layer after the first neuron needs all T steps
                if self.batch_dim == 1:
                    raise
                raise ValueError(
                    "the model makes its own time steps and cannot run one of them "
                    f"({' '.join(str(error).split())[:160]}); stream its folded network"
                ) from None
        return out[0] if out.ndim > 2 and out.shape[:2] == (1, len(frame)) else out

    def _folded(self, frame: Tensor) -> Tensor:
        network = self.model
        assert isinstance(network, FoldedNetwork)

        def neuron(name: str, x: Tensor) -> Tensor:
            before = self.state.get(name)
            assert before is None or isinstance(before, Tensor)
            if before is not None and before.shape != x.shape[1:]:
                raise ValueError(
                    f"the stream began with a batch of {len(before)} and the frame has {x.shape[1]}; call reset() first"
                )
            out, self.state[name] = lif_steps(network.node(name), x, before)
            return out

        return network.run_step(frame, self.step, neuron, self.past)


def _batch_dim(model: nn.Module, frame: Tensor) -> int:
    """1 for a model that takes a frame as [1, B, ...], 0 for one that takes it as [B, ...] and repeats it itself."""
    try:
        if find_batch_dim(model, frame[None]) == 1:
            return 1
    except ValueError:
        pass
    try:
        if find_batch_dim(model, frame) == 0:
            return 0
    except ValueError as error:
        reason = str(error)
    else:
        reason = "the model takes it as several time steps"
    raise ValueError(
        f"a stream takes one frame [B, ...] (a static batch: run(x, timesteps=T)), got {list(frame.shape)}: {reason}"
    )


@contextmanager
def _one_step(model: nn.Module, state: dict[str, LIFState | Tensor], step: int) -> Iterator[None]:
    """Inside the block, neurons continue from ``state``, and norms with constants per step use those of ``step``.

    A neuron that the model calls several times has one state per call: name, name:2, ...
    """
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, Neuron):
                stack.enter_context(replaced(module, "forward", _continues(module, name, state)))
                stack.enter_context(replaced(module, "scan", _refuse_scan(name)))
            elif isinstance(module, TimeNorm) and hasattr(module, "timesteps"):
                stack.enter_context(replaced(module, "forward", _at(module, step)))
        yield


def _refuse_scan(name: str) -> Callable[..., Tensor]:
    """The state of a loop inside the model is lost at the end of its forward, so a stream cannot continue it."""

    def scan(*args: Any, **kwargs: Any) -> Tensor:
        raise ValueError(
            f"{name}: the model loops over time itself and keeps the state that `scan` returns, which a stream cannot "
            "continue; run that loop with one frame at a time"
        )

    return scan


def _continues(layer: Neuron, name: str, state: dict[str, LIFState | Tensor]) -> Callable[[Tensor], Tensor]:
    calls, scan = 0, layer.scan

    def forward(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        key = name if calls == 1 else f"{name}:{calls}"
        if x.shape[0] != 1 and not torch.equal(x, x[:1].expand_as(x)):
            raise ValueError(
                f"{name} got {x.shape[0]} different time steps for one frame: the model makes them itself, so they "
                "cannot be run one by one"
            )
        x = x[:1]  # the current step, if the model repeats a static image
        before = state.get(key)
        assert before is None or isinstance(before, LIFState)
        out, state[key] = scan(x, before)
        return out

    return forward


def _at(norm: TimeNorm, step: int) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        limit = int(norm.timesteps)  # type: ignore[arg-type]
        if step >= limit:
            raise ValueError(
                f"{type(norm).__name__} has constants for {limit} time steps; the stream is at step {step + 1}"
            )
        constants = norm_constants(norm, limit)
        axes = [1] * (x.ndim - 3)
        y = x * constants["gain"][step].view(-1, *axes) + constants["bias"][step].view(-1, *axes)
        return y.to(x.dtype)

    return forward


def stream(model: nn.Module, exit_when: Exit | None = None, *, batch_dim: int | None = None) -> Stream:
    """Runs ``model`` one frame at a time: a model with this library's neurons, or a folded network, in evaluation mode.

    exit_when: `Confidence`, `Margin` or a function of the mean logits; see `Stream.run`
    batch_dim: 1 for a model that takes frames [T, B, ...], 0 for one that takes [B, ...] and makes its own time steps;
        None: found by trying with the first frame.
    """
    return Stream(model, exit_when, batch_dim)
