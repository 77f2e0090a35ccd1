"""Several callbacks as one: Lightning calls every hook of every callback at every step, which costs time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch import Callback


class Together(Callback):
    """Calls the hooks of its members in order, and only those that a member has defined."""

    def __init__(self, members: Sequence[Callback]) -> None:
        for name in (name for name in vars(Callback) if name.startswith("on_") or name in ("setup", "teardown")):
            own = [
                hook for hook in (getattr(m, name) for m in members)
                if getattr(hook, "__func__", hook) is not getattr(Callback, name)
            ]  # fmt: skip
            if own:
                setattr(self, name, _in_order(own))


def _in_order(hooks: list[Callable[..., Any]]) -> Callable[..., None]:
    def call(*args: Any, **kwargs: Any) -> None:
        for hook in hooks:
            hook(*args, **kwargs)

    return call
