"""A model in float64 although its own code converts to float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

LOWER = (torch.float32, torch.float16, torch.bfloat16)


class StaysDouble(TorchFunctionMode):
    """While it lasts, ``x.float()`` and ``x.to(torch.float32)`` of a float64 tensor leave it in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        x = args[0] if args else None
        if isinstance(x, Tensor) and x.dtype == torch.float64:
            if name in ("float", "half", "bfloat16"):
                return x.double()
            if name == "to":
                args = (x, *(_double(a) for a in args[1:]))
                kwargs = {key: _double(value) for key, value in kwargs.items()}
        return func(*args, **kwargs)


def _double(wanted: Any) -> Any:
    return torch.float64 if isinstance(wanted, torch.dtype) and wanted in LOWER else wanted
