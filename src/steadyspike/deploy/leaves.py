"""Neurons and norms as constants: a trace records each of these layers as one node."""

from __future__ import annotations

import torch
from torch import Tensor

from steadyspike.deploy.errors import CannotFold
from steadyspike.deploy.graph import Node
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons import MPDAGL, RateLIF, Readout, ReLU
from steadyspike.nn.norm import BNTT, TAB, TDBN, TEBN
from steadyspike.nn.norm.base import TimeNorm
from steadyspike.nn.norm.bn import StepBN


def neuron_node(layer: Neuron, name: str, x: Tensor, source: str, shape: tuple[int, ...]) -> Node:
    """Returns the ``lif`` node of a neuron layer in evaluation mode, for input ``x`` [T, B, ...]."""
    # Rate-based and MPD-AGL neurons differ from LIF only in their gradient.
    plain = type(layer).run is Neuron.run or type(layer) in (RateLIF, MPDAGL)
    plain = plain and type(layer).forward is Neuron.forward
    if isinstance(layer, ReLU):
        raise CannotFold(
            f"{name}: an ordinary network (neuron 'relu') has no spikes, and only spiking networks are folded, for "
            "prediction, energy and export too; train a spiking network that starts with its weights (train.start)"
        )
    if not (plain or type(layer) is Readout) or "run" in layer.__dict__:
        raise CannotFold(
            f"{name}: {type(layer).__name__} has other dynamics than a plain LIF layer; "
            "fold networks of LIF, PLIF, IF, LTMD, DIET, RateLIF, MPDAGL or Readout neurons"
        )
    spec = layer.spec
    emit = "potential" if not layer.spiking else "scaled" if spec.family == "trsg" else "spikes"
    start = layer.init.potential(x).detach()
    if start.ndim > 1 and start.shape[0] != 1:
        raise CannotFold(f"{name}: its initial potential differs from sample to sample")
    options = {
        "reset": spec.reset.kind,
        "strict": spec.strict,
        "decay_input": spec.decay_input,
        "emit": emit,
        "neuron": type(layer).__name__,
    }
    tensors = {"threshold": layer.threshold, "leak": layer.leak, "start": start}
    kept = {key: tensor.detach().clone() for key, tensor in tensors.items()}
    return Node(name, "lif", (source,), shape, True, options, kept)


def norm_constants(norm: TimeNorm, steps: int) -> dict[str, Tensor]:
    """Returns gain and bias of a norm in evaluation mode, [C], or [T, C] if the norm differs from step to step."""
    if type(norm) not in (TDBN, TEBN, BNTT, TAB, StepBN):
        raise CannotFold(f"{type(norm).__name__} cannot be folded; fold supports TDBN, TEBN, BNTT, TAB and StepBN")
    dtype = torch.promote_types(norm.weight.dtype, torch.float32)
    mean, var, weight = (t.detach().to(dtype) for t in (norm.running_mean, norm.running_var, norm.weight))
    gain = weight * getattr(norm, "factor", 1.0) / torch.sqrt(var + norm.eps)
    bias = -mean * gain if norm.bias is None else norm.bias.detach().to(dtype) - mean * gain
    if isinstance(norm, TEBN):
        p = norm.p.detach().to(dtype)[:, None]
        gain, bias = gain * p, bias * p
    if isinstance(norm, TAB):
        p = norm.p.detach().to(dtype)[:, None].square()
        gain, bias = gain * p, bias * p
    return {"gain": gain, "bias": bias} if gain.ndim == 1 else {"gain": gain[:steps], "bias": bias[:steps]}
