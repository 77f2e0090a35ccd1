"""Records a model's forward as a `Graph` by running it once on an example.

If Python code branches, the branch that the example takes is recorded. Neurons and time-aware norms are each recorded
as one node. Every other torch function that gets a recorded value must have a handler in `handlers`; otherwise the
trace stops with an error that names it and its module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from steadyspike.core.torch_private import without_torch_function
from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.graph import Graph, Node
from steadyspike.deploy.leaves import neuron_node, norm_constants
from steadyspike.deploy.replaced import replaced
from steadyspike.deploy.tensor_axes import LEADING, Layout, choose_batch, is_timed, sample_shape
from steadyspike.nn.input_convention import in_evaluation
from steadyspike.nn.neuron import Neuron, neurons
from steadyspike.nn.norm.base import TimeNorm


class Value:
    """A traced tensor: the node it came from, and its axes of time and batch."""

    __slots__ = ("layout", "name", "tensor")

    def __init__(self, name: str, layout: str, tensor: Tensor) -> None:
        self.name, self.layout, self.tensor = name, layout, tensor

    @property
    def timed(self) -> bool:
        return is_timed(self.layout)

    @property
    def shape(self) -> tuple[int, ...]:
        return sample_shape(self.tensor.shape, self.layout)

    @property
    def lead(self) -> int:
        return LEADING[self.layout]


class Recorder:
    """The graph so far and the recorded values, by the identity of their tensors (which are kept alive)."""

    def __init__(self, layout: Layout, neurons: Collection[str] = ()) -> None:
        self.layout, self.neurons = layout, neurons
        self.graph = Graph(layout.steps)
        self.values: dict[int, Value] = {}
        self.stale: dict[int, str] = {}  # values that an in-place operation changed through a view, and its name
        self.path: list[str] = []

    @property
    def where(self) -> str:
        """Returns the running module, by its name in the model."""
        return self.path[-1] if self.path and self.path[-1] else "the model itself"

    def leave(self) -> None:
        self.path.pop()

    def find(self, thing: Any) -> Value | None:
        if not isinstance(thing, Tensor):
            return None
        if id(thing) in self.stale:
            raise self.refuse(
                f"{self.stale[id(thing)]} changed a tensor in place, and this value is a view of that tensor"
            )
        return self.values.get(id(thing))

    def need(self, thing: Any) -> Value:
        value = self.find(thing)
        assert value is not None
        return value

    def remember(self, tensor: Tensor, name: str, layout: str) -> None:
        self.stale.pop(id(tensor), None)
        self.values[id(tensor)] = Value(name, layout, tensor)

    def node(
        self,
        op: str,
        out: Tensor,
        layout: str,
        *inputs: str,
        name: str | None = None,
        options: dict[str, Any] | None = None,
        tensors: dict[str, Tensor] | None = None,
    ) -> None:
        """Adds a node whose value is ``out``."""
        label = name or f"{self.path[-1] if self.path else ''}:{op}".lstrip(":")
        # A neuron's node has the name of its module, by which the proof finds it, so no other node may get that name.
        label = f"{label}:{op}" if label in self.neurons else label
        kept = {k: t.detach().clone() for k, t in (tensors or {}).items()}
        node = Node(label, op, inputs, sample_shape(out.shape, layout), is_timed(layout), options or {}, kept)
        self.remember(out, self.graph.add(node), layout)

    def refuse(self, what: str) -> CannotFold:
        return CannotFold(f"{what} (in {self.where})")


class _Watch(TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        import steadyspike.deploy.handlers
        import steadyspike.deploy.pixel_handlers  # noqa: F401 (both fill the table of handlers)
        from steadyspike.deploy.dispatch import handle

        out = func(*args, **(kwargs or {}))
        return handle(self.recorder, func, args, kwargs or {}, out)


def _wrap_neuron(
    recorder: Recorder, layer: Neuron, name: str, forward: Callable[[Tensor], Tensor]
) -> Callable[..., Tensor]:
    def traced(x: Tensor) -> Tensor:
        value = recorder.find(x)
        with without_torch_function():
            out = forward(x)
        if value is None:
            return out
        if value.layout != "frames":
            raise recorder.refuse(f"the neuron takes [T, B, ...] and got {list(x.shape)}: fold expects time first")
        node = neuron_node(layer, name, x, value.name, value.shape)
        recorder.remember(out, recorder.graph.add(node), "frames")
        return out

    return traced


def _wrap_spikes(recorder: Recorder, layer: Neuron, spikes: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def traced(out: Tensor) -> Tensor:
        value = recorder.find(out)
        with without_torch_function():
            s = spikes(out)
        if value is not None:
            recorder.node("spikes", s, value.layout, value.name)
        return s

    return traced


def _wrap_norm(
    recorder: Recorder, norm: TimeNorm, name: str, forward: Callable[[Tensor], Tensor]
) -> Callable[..., Tensor]:
    def traced(x: Tensor) -> Tensor:
        value = recorder.find(x)
        with without_torch_function():
            y = forward(x)
        if value is not None:
            constants = norm_constants(norm, x.shape[0])
            recorder.node("affine", y, value.layout, value.name, name=name, tensors=constants)
        return y

    return traced


@contextmanager
def _recording(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Inside the block, neurons and norms record themselves, and the name of the running module is available."""
    with ExitStack() as stack:
        for name, module in model.named_modules():
            enter = module.register_forward_pre_hook(lambda m, args, name=name: recorder.path.append(name))
            leave = module.register_forward_hook(lambda m, args, out: recorder.leave())
            stack.callback(enter.remove)
            stack.callback(leave.remove)
            if isinstance(module, Neuron):
                stack.enter_context(replaced(module, "forward", _wrap_neuron(recorder, module, name, module.forward)))
                stack.enter_context(replaced(module, "spikes", _wrap_spikes(recorder, module, module.spikes)))
            elif isinstance(module, TimeNorm):
                stack.enter_context(replaced(module, "forward", _wrap_norm(recorder, module, name, module.forward)))
        stack.enter_context(_Watch(recorder))
        yield


def trace(model: nn.Module, example: Tensor, *, timed: bool, timesteps: int) -> Graph:
    """The graph of ``model`` in evaluation mode on ``example``: [T, B, ...] if ``timed``, otherwise [B, ...]."""
    layout = Layout(timesteps, choose_batch(timesteps))
    first = example[:, :1] if timed else example[:1]
    x = torch.cat([first] * layout.batch, 1 if timed else 0)
    recorder = Recorder(layout, neurons(model))
    recorder.node("input", x, "frames" if timed else "still", name="input")
    try:
        with in_evaluation(model), _recording(model, recorder):
            out = model(x)
    except CannotFold:
        raise
    except Exception as error:  # the model's own error, for example if the example does not match batch_dim
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise CannotFold(f"the model does not run on the example: {what} (in {recorder.where})") from error
    value = recorder.find(out)
    if value is None:
        raise CannotFold(f"the model must return one tensor that depends on its input, got {type(out).__name__}")
    if value.layout not in ("frames", "still"):
        raise CannotFold(
            f"the model must return [T, B, ...] or [B, ...], got {list(out.shape)} "
            f"for T = {layout.steps}, B = {layout.batch}"
        )
    recorder.graph.output = value.name
    return recorder.graph.pruned()
