"""`convert`, `stabilize` and `undo`: another library's model with this library's neurons, and back."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from steadyspike.core.spec import FAMILIES, one_of
from steadyspike.interop.adopted import Adopted
from steadyspike.interop.classes import Converted, converted_class
from steadyspike.interop.conversion import Conversion, Row
from steadyspike.interop.recognise import recognise
from steadyspike.interop.single_step import call_counts, checked
from steadyspike.nn.initial_potential import InitialPotential, resolve_init
from steadyspike.nn.native import EveryStepNetwork, OneCallEach, native
from steadyspike.nn.parametrization import learned_names

Model = TypeVar("Model", bound=nn.Module)
Report = Callable[[Conversion], object] | None


def adopted(model: nn.Module) -> dict[str, Adopted]:
    """Returns the converted neurons of a model, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Adopted)}


def convert(
    model: Model,
    example: Tensor | None = None,
    *,
    batch_dim: int = 1,
    skip: Collection[str] = (),
    report: Report = print,
) -> Model:
    """Replaces the neurons of another library's model by this library's, with the same dynamics; returns ``model``.

    V, tau, reset and surrogate stay the same, so outputs and gradients do too (up to rounding). Weights, names, hooks,
    device, dtype and training mode stay the same, and a ``state_dict`` has the same keys. Neurons that cannot be
    converted exactly are not changed; the report names them with the reason. `undo` restores the original. If an
    example is given, the calls of every neuron are counted. A neuron that one forward calls twice in multi-step mode
    cannot be converted.

    example: an input on which `ss.check_model` is run, [T, B, ...]; [B, ...] with batch_dim=0 for a model that makes
        its own time steps. A single-step model is checked in a loop over T.
    skip: names of neurons that are not converted
    report: a function that gets the `Conversion`, such as print; None: no output
    """
    rows = _convert(model, skip, example)
    _tell(model, rows, example, batch_dim, report)
    return model


def stabilize(
    model: Model,
    example: Tensor | None = None,
    *,
    gradient: str = "trsg",
    learn: Sequence[str] | str | bool = ("threshold", "tau"),
    init: str | float | InitialPotential = "mp",
    batch_dim: int = 1,
    skip: Collection[str] = (),
    report: Report = print,
) -> Model:
    """`convert`, then TrSG, learned V and tau, and MP-Init; changes and returns ``model``.

    Build the optimizer afterwards: V and tau are new parameters (``ss.parameter_groups`` keeps weight decay off them).
    The surrogate's shape and the reset stay those of the model. With TrSG a neuron's output is V*S instead of S.

    gradient, learn, init: as in `ss.LIF`

    The other options are as in `convert`.
    """
    one_of(gradient, FAMILIES, "gradient family")
    names = learned_names(learn, Adopted.LEARNABLE)
    rows = {row.layer: row for row in _convert(model, skip, example)}
    like = next((t for t in _tensors(model) if t.is_floating_point()), torch.zeros(()))
    for name, layer in adopted(model).items():
        if name in skip:
            continue
        notes = layer.stabilise(gradient, names, resolve_init(init, None), like)
        was = rows[name].was if name in rows else _was(layer)
        rows[name] = Row(name, was, _now(layer), (*_remarks(layer), *notes))
    _tell(model, list(rows.values()), example, batch_dim, report)
    return model


def to_native(model: nn.Module) -> nn.Module:
    """Returns a copy of another library's model that is made of this library's layers and takes frames [T, B, ...].

    Neurons with LIF dynamics become `LIF` or `IF` with the same constants, settings and initial potential. A model that
    takes one step per call gets all steps at once. `ss.deploy.fold`, `ss.stream` and the exports do this themselves. If
    a neuron cannot be replaced, a ValueError names it and the reason. If one forward calls a multi-step neuron twice,
    the error is raised in that forward.
    """
    copied = copy.deepcopy(model)
    rows = _convert(copied, (), None)
    fresh = [row.layer for row in rows if not isinstance(model.get_submodule(row.layer), Adopted)]
    left = [f"{row.layer or 'the model itself'}: {', '.join(row.remarks)}" for row in rows if row.left]
    if left:
        raise ValueError(f"these neurons have no layer here: {'; '.join(left)}")
    made = native(copied)
    multi_step = [name for name in fresh if getattr(model.get_submodule(name), "step_mode", "s") == "m"]
    OneCallEach(made.model if isinstance(made, EveryStepNetwork) else made, multi_step)
    return made


def undo(model: Model) -> Model:
    """Restores the original neurons of a converted or stabilised model; returns ``model``.

    Weights keep their trained values. Constants that `stabilize` made learnable get their original values.
    """
    for module in list(model.modules()):
        if isinstance(module, Converted):
            module.give_back()
    if isinstance(model.__dict__.get("conversion"), Conversion):
        del model.__dict__["conversion"]
    return model


def _convert(model: nn.Module, skip: Collection[str], example: Tensor | None) -> list[Row]:
    unknown = set(skip) - {name for name, _ in model.named_modules()}
    if unknown:
        raise ValueError(f"skip names {', '.join(sorted(unknown))}, which the model does not have")
    rows, fresh = [], set()
    for name, module in model.named_modules():
        if isinstance(module, Adopted):
            rows.append(Row(name, _was(module), _now(module), _remarks(module)))
        verdict = recognise(module)
        if verdict is None:
            continue
        was = _was(module)
        if name in skip or verdict.adopter is None:
            rows.append(Row(name, was, "", ("skipped on request" if name in skip else verdict.reason,)))
            continue
        module.__class__ = converted_class(type(module), verdict.adopter)
        assert isinstance(module, Adopted)
        module.take_over()
        fresh.add(name)
        rows.append(Row(name, was, _now(module), _remarks(module)))
    for module in model.modules():
        if type(module).__module__.startswith("norse."):
            import_module(f"{__package__}.norse").lift(module)
    calls = None if example is None else call_counts(model, example)
    return [_left_if_called_again(row, model, calls, row.layer in fresh) for row in rows]


def _left_if_called_again(row: Row, model: nn.Module, calls: Counter[nn.Module] | None, fresh: bool) -> Row:
    """Restores a multi-step neuron if one forward calls it several times, and names it.

    SpikingJelly starts the second call from the potential at the end of the first, but a converted neuron starts each
    call at its initial potential. Without an example, a neuron that is registered under several names is assumed to be
    called several times.
    """
    module = model.get_submodule(row.layer)
    if not isinstance(module, Adopted) or getattr(module, "step_mode", "s") != "m":
        return row
    places = [name for name, other in model.named_modules(remove_duplicate=False) if other is module]
    times = calls[module] if calls else len(places)
    if times < 2:
        return row
    where = f" (it is one object at {', '.join(places)})" if len(places) > 1 else ""
    if not fresh:
        remark = f"is called {times} times in one forward{where}: each call starts at the initial potential"
        return replace(row, remarks=(*row.remarks, remark))
    module.give_back()
    reason = (
        f"one forward calls it {times} times{where}, and each call continues from the potential of the previous call; "
        "give every call its own neuron"
    )
    return Row(row.layer, row.was, "", (reason,))


def _tell(model: nn.Module, rows: list[Row], example: Tensor | None, batch_dim: int, report: Report) -> None:
    conversion = Conversion(rows)
    if not rows:
        conversion.about.append("no neuron of SpikingJelly, snnTorch or Norse was found in this model")
    if example is not None:
        conversion.check = checked(model, example, batch_dim)
    if isinstance(getattr(model, "conversion", conversion), Conversion):  # the model may have an attribute of this name
        model.__dict__["conversion"] = conversion
    if report is not None:
        report(conversion)


def _was(module: nn.Module) -> str:
    """Describes the neuron with its constants, as its library names them; a plain repr for an unknown neuron."""
    cls = type(module).original if isinstance(module, Adopted) else type(module)
    for base in type(module).__mro__:
        library = base.__module__.split(".")[0]
        if library in ("spikingjelly", "snntorch", "norse"):
            break
    else:
        return cls.__name__
    describe: Callable[[Any], str] = import_module(f"{__package__}.{library}").describe
    try:
        return f"{library} {cls.__name__}({describe(module)})"
    except Exception:  # an unknown neuron need not have the attributes of the supported ones
        return f"{library} {cls.__name__}"


def _now(layer: Adopted) -> str:
    with torch.no_grad():
        return f"{type(layer).ours.__name__}({layer.extra_repr()})"


def _remarks(layer: Adopted) -> tuple[str, ...]:
    reason = layer.why_no_kernel()
    return () if reason is None else (f"runs on the PyTorch reference: {reason}",)


def _tensors(model: nn.Module) -> Iterable[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
