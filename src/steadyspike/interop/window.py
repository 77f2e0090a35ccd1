"""`window`: the start and the end of a sequence, for loops over time that the user writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from steadyspike.interop.adopted import Adopted
from steadyspike.nn.neuron import neurons
from steadyspike.nn.stream_window import StreamWindow, close_stream


@contextmanager
def window(model: nn.Module) -> Iterator[None]:
    """Runs one sequence through ``model``: it starts at the initial potential, and the calls inside continue it.

        with ss.window(net):                            with ss.window(net):
            for x_t in x:                                   for x_t in x:
                out = out + net(x_t)                            y, state = net.lif.scan(x_t[None], state)

    Converted neurons (left) store the state themselves. Neurons of this library (right) continue by `scan`, while each
    `forward` starts a new sequence. At the end the statistics of MP-Init are updated (in training mode), and converted
    neurons delete their state. A loop that calls the other library's own reset (``functional.reset_net(net)``,
    ``snntorch.utils.reset(net)``) needs no window.
    """
    layers = list(neurons(model).values())
    converted = [layer for layer in layers if isinstance(layer, Adopted)]
    # A window inside a window of the same layers (if a network opens one in its forward) is a separate sequence.
    outer = {layer: layer.stream_window for layer in layers if not isinstance(layer, Adopted)}
    for layer in outer:
        layer.stream_window = StreamWindow()
    for layer in converted:
        layer.close_window()
        layer.end_state()
        layer._carries = True
    try:
        yield
    finally:
        for layer in converted:
            layer._carries = False
            layer.close_window()
            layer.end_state()
        for layer, before in outer.items():
            close_stream(layer)
            layer.stream_window = before
