"""The constants of a neuron layer (V, 1/tau): learned ones are parameters, fixed ones are stored exactly.

A learned constant is computed from a parameter by a `Link` (V from k, 1/tau from w). A fixed constant is a buffer
``fixed_<name>`` that holds the number itself, so that the scan compares with exactly the given number.
Both are part of ``state_dict``.

- Casting: a fixed constant is stored in at least float32, and ``layer.double()`` restores all digits of the given
  number.
- Loading: a state dict with a learned constant can be loaded into a layer with a fixed one, and the other way round.
  The value is rounded to the nearest number that the layer can represent.
- Parametrizing: ``torch.nn.utils.parametrize`` may compute k or w of a learned constant from another parameter. It may
  also compute ``fixed_<name>`` of a fixed constant, which is then cast like a parameter.
- Freezing: ``layer.k.requires_grad_(False)`` freezes a learned constant at its current value. `Constants.set_learned`
  makes a fixed constant learned, before an optimizer is built, or a learned one fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.core.transforms import is_transformed
from steadyspike.kernels.eager import is_ordinary
from steadyspike.nn.parametrization import Link


class Constant(NamedTuple):
    """A named constant of a layer.

    raw: name of its parameter; None if it can never be learned
    link: computes the constant from the parameter
    asked: the values that the user gave
    """

    raw: str | None
    link: Link
    asked: tuple[float, ...]


class Constants(nn.Module):
    """A module with named constants, each learned or fixed."""

    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[str, Constant] = {}

    def add_constant(self, name: str, raw: str | None, link: Link, values: Sequence[float], *, learned: bool) -> None:
        """Adds the constant ``name`` with starting ``values`` ([1] or [C]); ``raw`` names its parameter."""
        self._constants[name] = Constant(raw, link, tuple(values))
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
        for value in values:
            start = link.inverse(value)  # raises an error for a value that float32 cannot represent, learned or fixed
            if learned and not link.low * (1 + 1e-6) - 1e-6 <= start <= link.high * (1 + 1e-6):
                raise ValueError(
                    f"a learned {name} has a smaller range than a fixed one, and {value} is outside it; choose a less "
                    "extreme value, or do not learn it"
                )
        fixed = None if learned else torch.tensor(values, dtype=dtype)
        self.register_buffer(f"fixed_{name}", fixed)
        if raw is not None:
            self.register_parameter(raw, nn.Parameter(link.nearest(values)) if learned else None)

    def constant_parameter(self, name: str) -> Tensor | None:
        """Returns the parameter of a learned constant, or the tensor that `torch.nn.utils.parametrize` computes instead
        of it; None if the constant is fixed.
        """
        raw = self._constants[name].raw
        if raw is None:
            return None
        return self._parameters[raw] if raw in self._parameters else getattr(self, raw)

    def constant(self, name: str) -> Tensor:
        """Returns the value of a constant, [1] or [C], in float32 or better."""
        parameter = self.constant_parameter(name)
        if parameter is not None:
            return self._constants[name].link.value(parameter)
        key = f"fixed_{name}"
        fixed = self._buffers.get(key)
        if fixed is None:  # torch.nn.utils.parametrize computes it
            computed: Tensor = getattr(self, key)
            fixed = computed.to(torch.promote_types(computed.dtype, torch.float32))
        return fixed

    def raw_constant(self, name: str) -> tuple[Tensor, Link | None]:
        """Returns the parameter of a learned constant; None if the constant is fixed.

        If `torch.nn.utils.parametrize` computes the parameter, this is the computed tensor.
        """
        parameter = self.constant_parameter(name)
        return (self.constant(name), None) if parameter is None else (parameter, self._constants[name].link)

    def fixed_constants(self) -> list[Tensor]:
        """Returns the buffers of the fixed constants, or the tensors from which a parametrization computes them."""
        values: list[Tensor | None] = []
        for key in (f"fixed_{name}" for name in self._constants):
            if key in self._buffers:
                values.append(self._buffers[key])
            else:
                values += self.get_submodule(f"parametrizations.{key}").buffers()
        return [b for b in values if b is not None]

    def is_learned(self, name: str) -> bool:
        """Returns True if the constant is trained: its parameter, or those of the parametrization that computes it."""
        return self.raw_constant(name)[0].requires_grad

    @torch.no_grad()
    def set_constant(self, name: str, values: Sequence[float] | Tensor) -> None:
        """Sets a learned or fixed constant to new values in place; a single value is used for all channels."""
        raw, link, _ = self._constants[name]
        numbers = values.detach().double().tolist() if isinstance(values, Tensor) else list(values)
        parameter, fixed = self.constant_parameter(name), self._buffers.get(f"fixed_{name}")
        if parameter is not None and raw not in self._parameters:
            start = link.nearest(numbers, parameter.dtype).expand_as(parameter).clone()
            setattr(self, str(raw), start)  # by the parametrization's right_inverse
        elif parameter is not None:
            parameter.copy_(link.nearest(numbers, parameter.dtype))
        elif fixed is not None:
            self._constants[name] = Constant(raw, link, tuple(numbers) * (fixed.numel() // len(numbers)))
            fixed.copy_(torch.tensor(numbers, dtype=fixed.dtype))
        else:
            now: Tensor = getattr(self, f"fixed_{name}")
            setattr(self, f"fixed_{name}", torch.tensor(numbers, dtype=now.dtype).expand_as(now).to(now.device))

    @torch.no_grad()
    def set_learned(self, name: str, learned: bool = True) -> None:
        """Makes a constant learned or fixed; its value stays the same. Build optimizers afterwards."""
        raw, link, _ = self._constants[name]
        if raw is None:
            raise ValueError(f"{type(self).__name__} cannot learn its {name}")
        for key, own in ((raw, self._parameters), (f"fixed_{name}", self._buffers)):
            if key not in own:
                raise ValueError(
                    f"{key} is computed by torch.nn.utils.parametrize; call remove_parametrizations(layer, {key!r}) "
                    "before set_learned"
                )
        parameter = self._parameters[raw]
        if parameter is not None and learned:
            parameter.requires_grad_(True)
        if (parameter is not None) == learned:
            return
        value = self.constant(name).detach().clone()
        self._constants[name] = Constant(raw, link, tuple(value.double().tolist()))
        start = link.nearest(value.double().tolist(), value.dtype).to(value.device)
        self._parameters[raw] = nn.Parameter(start) if learned else None
        self._buffers[f"fixed_{name}"] = None if learned else value

    def limit_constants(self) -> None:
        """Sets learned parameters that have left their range to the end of the range (`Link.limit`)."""
        ordinary = is_ordinary()
        if not torch.is_grad_enabled() or (not ordinary and is_transformed()):
            return
        for raw, link, _ in self._constants.values():
            parameter = self._parameters.get(raw) if raw is not None else None  # not a parameter that is computed
            if parameter is None or not parameter.requires_grad:
                continue
            # Reading one number in Python takes a tenth of the time of an operator.
            if not (ordinary and type(parameter) is nn.Parameter and parameter.is_cpu and link.contains(parameter)):
                link.limit(parameter)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Constants:
        before = {name: self._buffers.get(f"fixed_{name}") for name in self._constants}
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers.get(f"fixed_{name}")
            if old is None or new is None:
                continue
            # Half precision would change V: a fixed threshold of 0.1 would become another number. So the old value is
            # moved to the new device.
            if new.dtype.itemsize < 4:
                self._buffers[f"fixed_{name}"] = old.to(new.device)
            elif new.dtype == torch.float64 != old.dtype and not old.is_meta and not new.is_meta:
                # From float32 to float64: use all digits that the user gave, unless the value was changed since.
                asked = torch.tensor(self._constants[name].asked, dtype=torch.float64, device=new.device)
                if asked.shape == new.shape:
                    self._buffers[f"fixed_{name}"] = torch.where(asked.to(old.dtype) == new, asked, new)
        return self

    @torch.no_grad()
    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, (raw, link, _) in self._constants.items():
            raw_key, fixed_key = f"{prefix}{raw}", f"{prefix}fixed_{name}"
            learned = self.constant_parameter(name) is not None
            # The state has a fixed constant and this layer a learned one: compute the parameter from the value.
            if learned and fixed_key in state and raw_key not in state:
                values = state.pop(fixed_key)
                state[raw_key] = link.nearest(
                    values.double().tolist(), torch.promote_types(values.dtype, torch.float32)
                )
            elif not learned and raw_key in state and fixed_key not in state:
                state[fixed_key] = link.value(state.pop(raw_key))
        super()._load_from_state_dict(state, prefix, *rest)
