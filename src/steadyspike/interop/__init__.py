"""Models of SpikingJelly, snnTorch and Norse with this library's neurons (docs/from-*.md)."""

from steadyspike.interop.conversion import Conversion
from steadyspike.interop.convert import convert, stabilize, to_native, undo
from steadyspike.interop.window import window

__all__ = ["Conversion", "convert", "stabilize", "to_native", "undo", "window"]


def __dir__() -> list[str]:
    return sorted(__all__)
