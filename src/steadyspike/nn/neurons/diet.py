"""DIET-SNN (Rathi and Roy, 2023): leak and threshold are learned directly, without a mapping such as softplus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from steadyspike.core.spec import Reset
from steadyspike.core.surrogate import Triangle
from steadyspike.nn.initial_potential import InitialPotential
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons.scan_options import ScanOptions, Unpack, as_spec, over
from steadyspike.nn.parametrization import AT_MOST_ONE, RAW, learned_names, per_layer_or_channel


class DIET(Neuron):
    """The neuron of DIET-SNN, with learned V and learned retention lam. [T, B, ...] -> [T, B, ...].

        M[t] = lam U[t-1] + I[t];  S = 1(M/V - 1 > 0);  U = M - V sg(S);  gradient 0.3 max(0, 1 - |M/V - 1|) / V

    retention: the starting lam, 1 in the authors' code
        The authors clamp the parameter to at most 1 after each step of the optimizer. Here the next training forward
        does it. There is no lower limit.
    threshold: the starting V. Nothing keeps the learned V above 0 (check_model reports a collapse). The authors compute
        the starting V from a trained network: `percentile_threshold`.
    learn: which of ``"threshold"`` and ``"retention"`` are trained
    ``decay_input=True`` scales the input by 1 - lam (lam must start below 1); ``strict=False`` also fires at M = V.

    The authors' ImageNet script fires one step later, on the potential before integration; here the neuron fires in the
    same step.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("lam", "v")
    LEARNABLE: ClassVar[tuple[str, ...]] = ("threshold", "retention")
    PUBLISHED: ClassVar[ScanOptions] = {
        "gradient": "rs",
        "surrogate": Triangle(1.0, scale=0.3),
        "reset": Reset("soft", detach="spike"),
        "strict": True,
        "decay_input": False,
    }

    def __init__(
        self,
        threshold: float | Sequence[float] = 1.0,
        retention: float | Sequence[float] = 1.0,
        init: str | float | InitialPotential = "zero",
        learn: Sequence[str] | str | bool = ("threshold", "retention"),
        channels: int | None = None,
        **options: Unpack[ScanOptions],
    ) -> None:
        merged = over(self.PUBLISHED, options)
        super().__init__(as_spec(merged), init, channels, merged.get("backend", "auto"))
        thresholds = per_layer_or_channel(threshold, channels, "threshold")
        retentions = per_layer_or_channel(retention, channels, "retention")
        if not all(v > 0 for v in thresholds):
            raise ValueError(f"threshold must start above 0, got {threshold}")
        if not all(0 <= lam <= 1 for lam in retentions):
            raise ValueError(f"retention must start in [0, 1], got {retention}")
        if self.spec.decay_input and any(lam == 1 for lam in retentions):
            raise ValueError("decay_input=True scales the input by 1 - retention, which is 0; start retention below 1")
        names = learned_names(learn, self.LEARNABLE)
        self.add_constant("threshold", "v", RAW, thresholds, learned="threshold" in names)
        self.add_constant("retention", "lam", AT_MOST_ONE, retentions, learned="retention" in names)

    @property
    def leak(self) -> Tensor:
        return 1 - self.constant("retention")


@torch.no_grad()
def percentile_threshold(current: Tensor, percentile: float = 99.7, scale: float = 0.3) -> float:
    """A starting threshold: ``scale`` times a ``percentile`` of a trained network's pre-activations ``current``.

    The authors use the percentile 99.7 of one batch, layer by layer, and scales from 0.2 to 0.3.
    """
    if not 0 < percentile <= 100:
        raise ValueError(f"percentile must be in (0, 100], got {percentile}")
    # Not torch.quantile, which raises an error for more than 2^24 values.
    values = current.detach().flatten()
    k = max(1, round(percentile / 100 * values.numel()))
    return scale * float(values.kthvalue(k).values)
