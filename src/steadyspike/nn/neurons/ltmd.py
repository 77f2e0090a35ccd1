"""LTMD (Wang et al., 2022): a learned threshold V = tanh(w)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from steadyspike.core.surrogate import Rect
from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons.scan_options import ScanOptions, Unpack, as_spec, check_retention, over
from steadyspike.nn.parametrization import RAW, TANH, learned_names, per_layer_or_channel


class LTMD(Neuron):
    """The neuron of LTMD, with a learned V = tanh(w). [T, B, ...] -> [T, B, ...].

        M[t] = retention U[t-1] + I[t];  S = 1(M > V);  hard reset, not detached;  rect gradient of M - V ("as")

    threshold: the starting V, in (-1, 1); tanh(0.5) = 0.462 in the authors' code. V stays below 1 and may cross 0, so
        the gradients that divide by V ("rs", "trsg") raise an error.
    retention: fixed, 0.25 in the authors' code
    learn: ``("threshold",)``, or ``()`` to fix V as well

    The authors' output layer (real-valued spikes with a lateral convolution) is not part of this neuron.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("w",)
    LEARNABLE: ClassVar[tuple[str, ...]] = ("threshold",)
    PUBLISHED: ClassVar[ScanOptions] = {
        "gradient": "as",
        "surrogate": Rect(1.0),
        "reset": "hard",
        "strict": True,
        "decay_input": False,
    }

    def __init__(
        self,
        threshold: float | Sequence[float] = math.tanh(0.5),
        retention: float = 0.25,
        init: str | float | InitialPotential = "zero",
        learn: Sequence[str] | str | bool = ("threshold",),
        channels: int | None = None,
        **options: Unpack[ScanOptions],
    ) -> None:
        merged = over(self.PUBLISHED, options)
        spec = as_spec(merged)
        if spec.family != "as":
            raise ValueError(
                f"LTMD's threshold tanh(w) may cross 0 and the {spec.family!r} gradient divides by V; use 'as'"
            )
        values = per_layer_or_channel(threshold, channels, "threshold")
        if not all(-1 < v < 1 for v in values):
            raise ValueError(f"LTMD's threshold is tanh(w) and must be in (-1, 1); got {threshold}")
        retention = check_retention(retention, merged)
        super().__init__(spec, init, channels, merged.get("backend", "auto"))
        learned = "threshold" in learned_names(learn, self.LEARNABLE)
        self.add_constant("threshold", "w", TANH, values, learned=learned)
        self.add_constant("leak", None, RAW, [1 - retention], learned=False)
