"""One call of a torch function while a model is traced: finds its handler, which makes a node, or raises an error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from steadyspike.deploy.trace import Recorder

Handler = Callable[..., None]
HANDLERS: dict[str, Handler] = {}
IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__")
READS_VALUES = ("item", "__bool__", "__float__", "__int__", "tolist", "numpy", "__index__", "__array__", "equal",
                "allclose", "is_nonzero")  # fmt: skip
# Names that torch gives to arguments, with the names that the handlers use.
KEYWORDS = {"input": "x", "axis": "dim", "other": "b"}


def handles(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def _tensors(thing: Any) -> list[Tensor]:
    if isinstance(thing, Tensor):
        return [thing]
    if isinstance(thing, dict):
        return [t for item in thing.values() for t in _tensors(item)]
    if isinstance(thing, (list, tuple)):
        return [t for item in thing for t in _tensors(item)]
    return []


def handle(rec: Recorder, func: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """Records one call of a torch function and returns its result."""
    if not any(rec.find(t) is not None for t in _tensors((args, kwargs))):
        return out
    name = getattr(func, "__name__", str(func))
    if not _tensors(out):
        if name in READS_VALUES:
            raise rec.refuse(f"{name.strip('_')}() reads values: what the model does must not depend on them")
        if name == "__setitem__":
            raise rec.refuse("fold does not support assignment to a part of a tensor (x[...] = y)")
        return out
    if name == "__get__" and isinstance(out, Tensor):
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    handler = HANDLERS.get(name)
    if handler is None:
        raise rec.refuse(f"fold does not support the operation {name!r}")
    named = {KEYWORDS.get(key, key): value for key, value in kwargs.items()}
    try:
        call = inspect.signature(handler).bind(rec, *args, **{**named, "out": out})
    except TypeError:
        call = None
    if call is None or "out" in kwargs:
        given = f" with {', '.join(kwargs)}" if kwargs else ""
        raise rec.refuse(f"fold does not support the operation {name!r} called{given or ' this way'}")
    _forget_shared(rec, name, args, named)
    handler(*call.args, **call.kwargs)
    return out


def _forget_shared(rec: Recorder, name: str, args: Any, kwargs: Any) -> None:
    """An in-place operation also changes the views of its tensor, whose recorded values are then outdated."""
    in_place = (name.endswith("_") and not name.endswith("__")) or name in IN_PLACE or kwargs.get("inplace")
    changed = args[0] if args else kwargs.get("x")
    if not in_place or name == "requires_grad_" or rec.find(changed) is None:
        return
    memory = changed.untyped_storage().data_ptr()
    for key, value in rec.values.items():
        if value.tensor is not changed and value.tensor.untyped_storage().data_ptr() == memory:
            rec.stale[key] = name
