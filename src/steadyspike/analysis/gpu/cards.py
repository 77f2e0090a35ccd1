"""GPUs and the numbers that their vendors state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """A GPU: memory in GB (10^9 bytes), bandwidth in GB/s, dense teraflop/s and board power in watt.

    half: float16 and bfloat16 on tensor cores with float32 accumulation, without sparsity
    single: float32 convolutions, which torch runs as TF32 if the card supports it
    """

    name: str
    memory: float
    bandwidth: float
    half: float
    single: float
    watts: float

    def teraflops(self, precision: str) -> float:
        """Returns the stated rate of convolutions and matrix products at a recipe's precision."""
        return self.single if precision == "fp32" else self.half


CARDS = {
    card.name: card
    for card in (
        Card("3090", 24, 936, 71, 35.6, 350),
        Card("4090", 24, 1008, 165.2, 82.6, 450),
        Card("5090", 32, 1792, 209.5, 104.8, 575),
        Card("a100-40", 40, 1555, 312, 156, 400),
        Card("a100", 80, 2039, 312, 156, 400),
        Card("h100", 80, 3350, 989, 494, 700),
    )
}


def card(name: str) -> Card:
    """Returns the card of that name, in small or large letters; raises ValueError with the known names otherwise."""
    name = name.lower()
    if name not in CARDS:
        raise ValueError(f"unknown card {name!r}; known: {', '.join(CARDS)}")
    return CARDS[name]
