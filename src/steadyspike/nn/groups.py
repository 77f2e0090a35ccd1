"""Optimizer groups that keep weight decay away from neuron parameters."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from steadyspike.nn.neuron import neurons


def neuron_parameters(model: nn.Module) -> set[nn.Parameter]:
    """All parameters of neurons, and those that other modules list in ``no_decay`` (TEBN's and TAB's p, IMP's U[0]).

    For a neuron these are the layer's own parameters, such as k and w. Parameters of layers inside it (a norm, a
    convolution) are not included.
    """
    names: list[object] = []
    for module in model.modules():
        for name in getattr(module, "no_decay", ()):
            if is_parametrized(module, name):
                names += module.get_submodule(f"parametrizations.{name}").parameters()
            names.append(getattr(module, name, None))
    for layer in neurons(model).values():
        names += layer.parameters(recurse=False)
        if is_parametrized(layer):  # its own parameters and constants are computed from these
            names += layer.get_submodule("parametrizations").parameters()
    return {p for p in names if isinstance(p, nn.Parameter)}


def no_decay_names(model: nn.Module) -> set[str]:
    """Returns the names of `neuron_parameters`."""
    exempt = neuron_parameters(model)
    return {name for name, p in model.named_parameters() if p in exempt}


def parameter_kinds(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The trained parameters by kind: "weights", "norms" (scales), "biases" (also of norms), "neurons" (V, tau, ...).

    An optimizer that collects only attributes called weight and bias would leave out the neurons.
    """
    of_neurons = neuron_parameters(model)
    kinds: dict[str, list[nn.Parameter]] = {"weights": [], "norms": [], "biases": [], "neurons": []}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter in of_neurons:
            kinds["neurons"].append(parameter)
        elif name.rpartition(".")[2] == "bias":
            kinds["biases"].append(parameter)
        else:
            kinds["weights" if parameter.ndim >= 2 else "norms"].append(parameter)
    return {kind: parameters for kind, parameters in kinds.items() if parameters}


def parameter_groups(
    model: nn.Module, weight_decay: float, *, decay_neurons: bool = False, decay_norms: bool = True
) -> list[dict[str, Any]]:
    """Returns groups for ``torch.optim``: one with ``weight_decay``, one without.

    Weight decay on w and k would pull V to softplus(0) = 0.69 and tau to 2, so neuron parameters are exempt.

    decay_neurons: True gives the paper's released code, which decays them like any weight
    decay_norms: False also exempts norm parameters and biases (every parameter with fewer than two axes)
    """
    if not weight_decay >= 0:
        raise ValueError(f"weight_decay must not be negative, got {weight_decay}")
    of_neurons = neuron_parameters(model)
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        decays = decay_neurons if parameter in of_neurons else decay_norms or parameter.ndim >= 2
        (decayed if decays else free).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]
    return [g for g in groups if g["params"]]
