"""Classes that combine a class of this library with one of another library, made at run time for a converted module."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn


class Converted(nn.Module):
    """Base class for adopted modules of another library. ``original`` is the class that the module had."""

    original: ClassVar[type[nn.Module]]
    ours: ClassVar[type[Converted]]

    def give_back(self) -> None:
        """Restores the original module."""
        self.__class__ = self.original  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Lets copies and pickles name the two classes that this class combines."""
        state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__
        return new_converted, (self.original, self.ours), state


class Between(nn.Module):
    """Ends the chain of ``super()`` calls of this library's classes before the methods of the other library."""

    _apply = nn.Module._apply
    _load_from_state_dict = nn.Module._load_from_state_dict
    _save_to_state_dict = nn.Module._save_to_state_dict
    extra_repr = nn.Module.extra_repr


_made: dict[tuple[type, type], type[Converted]] = {}


def converted_class(original: type[nn.Module], ours: type[Converted]) -> type[Converted]:
    """Returns a class that inherits from ``ours`` and ``original``, named ConvertedX; the same class at every call."""
    if (original, ours) not in _made:
        body = {"original": original, "ours": ours, "__module__": ours.__module__}
        _made[original, ours] = type(f"Converted{original.__name__}", (ours, Between, original), body)
    return _made[original, ours]


def new_converted(original: type[nn.Module], ours: type[Converted]) -> Converted:
    """Makes an empty instance, for copies and pickles."""
    made = converted_class(original, ours)
    return made.__new__(made)
