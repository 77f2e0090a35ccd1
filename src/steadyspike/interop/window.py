"""`window`: an explicit stream through a converted model, for loops over time that the user writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from steadyspike.interop.adopted import Adopted


@contextmanager
def window(model: nn.Module) -> Iterator[None]:
    """One sequence through ``model``: it starts at the initial potential, and all calls inside continue it.

        with ss.window(net):
            for x_t in x:
                out = out + net(x_t)

    At the end the statistics of MP-Init are updated (in training mode) and the state is forgotten. A loop that calls
    the library's own reset (``functional.reset_net(net)``, ``snntorch.utils.reset(net)``) needs no window.
    """
    layers = [module for module in model.modules() if isinstance(module, Adopted)]
    for layer in layers:
        layer.close_window()
        layer.end_state()
        layer._carries = True
    try:
        yield
    finally:
        for layer in layers:
            layer._carries = False
            layer.close_window()
            layer.end_state()
