"""`spike_conv2d` and `spike_linear`: torch's functions for inputs that are spikes; None if torch's own should run.

Only bits are kept for the backward: those of the input and, if a scan wrote it, those of the elements whose gradient is
needed (`needed_places`). The scan's note or the values decide whether the input is spikes. The output
and all gradients equal those of the dense function up to the rounding of sums; the input's gradient only at the needed
elements.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadyspike.kernels.conv.call import (
    ConvInput,
    conv_full_input_gradient,
    conv_input_gradient,
    conv_weight_gradient,
    instruction_set,
    pack_weight,
    supports,
)
from steadyspike.kernels.conv.geometry import ConvGeometry, Pair, conv_geometry, linear_geometry
from steadyspike.kernels.conv.rule import (
    COSTS,
    Costs,
    forward_by_events,
    input_gradient_by_places,
    input_gradient_in_full,
    weight_gradient_by_events,
)
from steadyspike.kernels.eager import runs_directly
from steadyspike.kernels.once import once, trace_of
from steadyspike.kernels.sizes_only import has_no_values
from steadyspike.kernels.spikes.note import Watch, known_spikes, needed_places, noted_steps
from steadyspike.kernels.spikes.packed import PackedSpikes, pack_spikes

NOT_TWICE = (
    "the spike convolution cannot be differentiated twice; for second derivatives use the dense layers "
    "(steadyspike.use_dense(model)) and neurons with backend='reference'"
)


def steps_aside(*tensors: Tensor | None) -> bool:
    """Returns True if torch's own function must run: compilers, autocast, torch.func, other dtypes, other devices."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return True
    there = [t for t in tensors if t is not None]
    for t in there:
        if t.dtype != torch.float32 or not t.is_cpu:
            return True
    return not runs_directly(*there)


class _Plan(NamedTuple):
    """The decisions about a call before it runs."""

    geometry: ConvGeometry
    spikes: PackedSpikes
    forward: bool  # True: by events; False: dense
    weight_gradient: bool
    watch: Watch | None  # the elements for which the input gradient is computed, if nothing else reads it; None: all
    full: bool  # True: the input gradient at all elements is computed here; False: by torch
    source: Tensor | None = None  # identifies the input, of which only bits are kept


def _planned(x: Tensor, source: Tensor, geometry: ConvGeometry, trained: bool, costs: Costs | None) -> _Plan | None:
    """Returns the plan of a call.

    x: the layer's input ``source`` as [T, B, C, ...] of the geometry; T may be 1

    None means torch's own function, which keeps x for the backward. All parts of a plan may be dense; if the bits are
    available, they are then kept instead of x.
    """
    costs = costs or COSTS.get(instruction_set())
    if costs is None:
        return None
    costs = costs.for_threads(torch.get_num_threads())
    spikes = known_spikes(x)
    noted = spikes is not None
    # If even an input without any spike would be dense, the values need not be checked.
    events = forward_by_events(geometry, 0, costs, noted)
    if not (events or (trained and weight_gradient_by_events(geometry, 0, costs))):
        return _dense_plan(geometry, spikes if trained else None, costs)
    if not supports(geometry):
        return None
    spikes = spikes or pack_spikes(x)
    if spikes is None:
        return None
    count = spikes.total
    forward = forward_by_events(geometry, count, costs, noted)
    weight_gradient = trained and weight_gradient_by_events(geometry, count, costs)
    watch = needed_places(source) if trained else None
    if watch is not None and not input_gradient_by_places(geometry, watch.total, costs):
        watch = None
    if not (forward or weight_gradient or watch):
        return _dense_plan(geometry, spikes if trained else None, costs)
    return _Plan(geometry, spikes, forward, weight_gradient, watch, input_gradient_in_full(geometry, costs))


def _dense_plan(geometry: ConvGeometry, spikes: PackedSpikes | None, costs: Costs) -> _Plan | None:
    """Returns the plan of a call without events."""
    full = supports(geometry) and input_gradient_in_full(geometry, costs)
    return None if spikes is None else _Plan(geometry, spikes, False, False, None, full)


def spike_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    *,
    costs: Costs | None = None,
) -> Tensor | None:
    """Computes ``torch.nn.functional.conv2d`` of spikes x [N, C, H, W] (0 or one level, or one per channel) in float32.

    Returns None if torch's own convolution should run: if x is not spikes, if a hook needs that operator, or if the
    layer is not trained and x fires too much. A trained layer that is dense keeps the bits of x, not x.

    costs: another rule than that of this machine's instruction set
    """
    if steps_aside(x, weight, bias):
        return None
    trained = _trained(weight)
    steps = noted_steps(x) if trained else 1  # only the weight gradient takes steps in pairs
    geometry = conv_geometry(x, weight, stride, padding, dilation, steps)
    plan = None if geometry is None else _planned(x.unflatten(0, (steps, -1)), x, geometry, trained, costs)
    return None if plan is None else _run(x, weight, bias, plan)


def conv_input(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair
) -> ConvInput | None:
    """Returns the call of C++ for `spike_conv2d` without gradients, which has not run yet.

    For tensors for which `steps_aside` is False. Returns None if torch's own convolution should run.
    """
    geometry = conv_geometry(x, weight, stride, padding, dilation)
    plan = None if geometry is None else _planned(x.unsqueeze(0), x, geometry, False, None)
    if plan is None:
        return None
    packed = _packed(plan, weight)
    return None if packed is None else _input(plan, packed, bias)


def spike_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, costs: Costs | None = None) -> Tensor | None:
    """Computes ``torch.nn.functional.linear`` of spikes x [..., features]; None as for `spike_conv2d`."""
    if steps_aside(x, weight, bias):
        return None
    geometry = linear_geometry(x, weight)
    if geometry is None:
        return None
    plan = _planned(x.reshape(1, -1, x.shape[-1]), x, geometry, _trained(weight), costs)
    if plan is None:
        return None
    # Rows become the pixels of one image, and features its channels; the memory is the same.
    image = x.reshape(1, 1, -1, x.shape[-1]).permute(0, 3, 1, 2)
    out = _run(image, weight[:, :, None, None], bias, plan)
    return None if out is None else out.permute(0, 2, 3, 1).reshape(*x.shape[:-1], weight.shape[0])


def _trained(weight: Tensor) -> bool:
    return torch.is_grad_enabled() and weight.requires_grad


def _run(x: Tensor, weight: Tensor, bias: Tensor | None, plan: _Plan) -> Tensor | None:
    packed = None
    if plan.forward:
        packed = _packed(plan, weight)
        if packed is None:
            return None
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return _SpikeConv.apply(x, weight, bias, plan._replace(source=trace_of(x)), packed)
    return _forward(x, weight, bias, plan, packed)


@torch.no_grad()
def _packed(plan: _Plan, weight: Tensor) -> Tensor | None:
    """Returns the packed weight; None if it is not finite, because only the dense convolution gives the right NaN."""
    level = plan.spikes.level
    return pack_weight(plan.geometry, weight.detach(), level if level.numel() > 1 else None)


def _input(plan: _Plan, packed: Tensor, bias: Tensor | None) -> ConvInput:
    level = plan.spikes.level
    scale = 1.0 if level.numel() > 1 or has_no_values(level) else float(level)
    bias = None if bias is None else bias.detach().contiguous()
    return ConvInput(plan.geometry, plan.spikes.words, packed, scale, bias)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, plan: _Plan, packed: Tensor | None) -> Tensor:
    g = plan.geometry
    if packed is None:
        return torch.conv2d(x, weight, bias, g.stride, g.padding, g.dilation)
    return _input(plan, packed, bias).run()


class _SpikeConv(torch.autograd.Function):
    """Saves the weight and the bits. x is an argument because the graph and the dense parts need it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, plan: _Plan, packed: Tensor | None) -> Tensor:
        ctx.source = plan.source
        ctx.geometry, ctx.by_events, ctx.watch, ctx.full = plan.geometry, plan.weight_gradient, plan.watch, plan.full
        ctx.shape, ctx.stride = plan.spikes.shape, plan.spikes.stride
        ctx.save_for_backward(weight, plan.spikes.words, plan.spikes.level)
        return _forward(x, weight, bias, plan, packed)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        weight, words, level = ctx.saved_tensors
        spikes = PackedSpikes(words, level, ctx.shape, ctx.stride)
        with torch.no_grad():
            dx, dw, db = _gradients(ctx, g, weight, spikes)
        # dx and db depend on g and the weight, dw on g and the input, so a second derivative by any of these is an
        # error.
        dx, db = once((dx, db), NOT_TWICE, g, weight)
        (dw,) = once((dw,), NOT_TWICE, g, ctx.source)
        return dx, dw, db, None, None


def _gradients(
    ctx: Any, g: Tensor, weight: Tensor, spikes: PackedSpikes
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    geometry: ConvGeometry = ctx.geometry
    wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
    plain = runs_directly(g, weight)
    dx = dw = None
    if plain:
        g = geometry.laid_out(g)
        if wants_weight and ctx.by_events:
            dw = conv_weight_gradient(geometry, spikes.words, g, spikes.level, weight)
        # If a hook reads the gradient of the input, it would get zeros at unneeded elements; so compute all of it.
        if wants_x and ctx.watch is not None and ctx.watch.alone(ctx.next_functions[1][0]):
            dx = conv_input_gradient(geometry, ctx.watch.words.view(geometry.steps, -1), g, weight)
        elif wants_x and ctx.full:
            dx = conv_full_input_gradient(geometry, g, weight)
    mask = (wants_x and dx is None, wants_weight and dw is None, False)
    if any(mask):
        dense_x, dense = _dense_gradients(geometry, g, weight, spikes, mask)
        dx, dw = dense_x if mask[0] else dx, dense if mask[1] else dw
    db = g.sum((0, 2, 3)) if wants_bias else None
    return dx, dw, db


def _dense_gradients(
    geometry: ConvGeometry, g: Tensor, weight: Tensor, spikes: PackedSpikes, mask: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The dense gradients by input and by weight, each if ``mask`` is set."""
    x = _image(spikes.block(), geometry) if mask[1] else geometry.empty_input()
    if geometry.skips_pixels:
        return _gradients_of_read_pixels(geometry, g, x, weight, mask)
    gradients = torch.ops.aten.convolution_backward(
        g, x, weight, None, geometry.stride, geometry.padding, geometry.dilation, False, (0, 0), 1, mask
    )
    return gradients[0], gradients[1]


def _gradients_of_read_pixels(
    geometry: ConvGeometry, g: Tensor, x: Tensor, weight: Tensor, mask: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """`_dense_gradients` of a 1x1 convolution with a stride, as one without, of the pixels that it reads.

    torch's own takes twice the time for the input. For the weight it damages the heap with some shapes (torch 2.13,
    two threads, 5 images of 8 channels and 16 x 16 pixels).
    """
    rows, columns = geometry.stride
    read = x[:, :, ::rows, ::columns].contiguous(memory_format=torch.channels_last)
    gradients = torch.ops.aten.convolution_backward(
        g, read, weight, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, mask
    )
    if not mask[0]:
        return None, gradients[1]
    dx = geometry.empty_input().zero_()
    dx[:, :, ::rows, ::columns] = gradients[0]
    return dx, gradients[1]


def _image(block: Tensor, g: ConvGeometry) -> Tensor:
    """Returns [images, C, H, W] from the values in memory order."""
    if g.channels_last:
        return block.view(g.images, g.height, g.width, g.in_channels).permute(0, 3, 1, 2)
    return block.view(g.images, g.in_channels, g.height, g.width)
