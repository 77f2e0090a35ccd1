"""IF: an integrate-and-fire neuron without leak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons.scan_options import ScanOptions, Unpack, as_spec, over
from steadyspike.nn.parametrization import RAW, SOFTPLUS, learned_names, per_layer_or_channel


class IF(Neuron):
    """Integrate-and-fire layer: M[t] = U[t-1] + I[t], fire and reset as in `LIF`. [T, B, ...] -> [T, B, ...].

    learn: ``("threshold",)`` or True trains V = softplus(k); ``()`` or False fixes it

    The other options and their defaults are those of `LIF`, except that decay_input is always False: the leak is 0 and
    would multiply the input by 0.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("k",)
    LEARNABLE: ClassVar[tuple[str, ...]] = ("threshold",)
    PUBLISHED: ClassVar[ScanOptions] = {"decay_input": False}

    def __init__(
        self,
        threshold: float | Sequence[float] = 1.0,
        init: str | float | InitialPotential = "mp",
        learn: Sequence[str] | str | bool = ("threshold",),
        channels: int | None = None,
        **options: Unpack[ScanOptions],
    ) -> None:
        merged = over(self.PUBLISHED, options)
        if merged["decay_input"]:
            raise ValueError("an IF neuron has leak 0, so decay_input=True would multiply its input by 0; use False")
        super().__init__(as_spec(merged), init, channels, merged.get("backend", "auto"))
        thresholds = per_layer_or_channel(threshold, channels, "threshold")
        learned = "threshold" in learned_names(learn, self.LEARNABLE)
        self.add_constant("threshold", "k", SOFTPLUS, thresholds, learned=learned)
        self.add_constant("leak", None, RAW, [0.0], learned=False)
