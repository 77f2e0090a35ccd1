"""What is measured: shapes and networks, and the figures to reach."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.contenders import COMPILED, COPIES, COPY, LEAN, NETWORKS, NEURONS, OURS, PLIF, RELU, SNNTORCH

IN_CACHE, OUT_OF_CACHE = 2**20, 2**28  # bytes of x; five such tensors are touched


@dataclass(frozen=True)
class NeuronCase:
    """One layer of learned V and tau on x [steps, batch, 64, 16, 16] in float32, ``size`` bytes in all.

    kept: every process has called `keep_freed_memory`, so that large tensors are not mapped afresh.
    """

    steps: int
    size: int
    kept: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.steps, max(1, self.size // (4 * self.steps * 64 * 256)), 64, 16, 16

    @property
    def contenders(self) -> list[str]:
        return [*COPIES, *NEURONS]

    @property
    def slow(self) -> bool:
        return False

    def __str__(self) -> str:
        location = "in cache" if self.size == IN_CACHE else "out of cache"
        kept = ", freed memory kept" if self.kept else ""
        return f"neuron, T={self.steps}, {self.size // 2**20} MiB ({location}{kept})"


@dataclass(frozen=True)
class NetworkCase:
    """ResNet-19 with tdBN on CIFAR-sized images, channels_last throughout, the same but for the neuron.

    network: the name in the zoo, or the folder, of one that learned (learned.py): its weights and its test images, so
        that the layers fire as in a trained network; its channels are repeated if ``width`` is larger than its width.
        "": random weights and input.
    """

    width: float
    batch: int
    kept: bool = False
    steps: int = 4
    network: str = ""

    @property
    def contenders(self) -> list[str]:
        if self.network:
            return [OURS, LEAN, PLIF, RELU]
        return [name for name in NETWORKS if name != RELU] if self.width < 1 and self.batch < 64 else [OURS, LEAN, PLIF]

    @property
    def slow(self) -> bool:
        """Half as many rounds are enough where a run takes many seconds."""
        return self.width == 1 or self.batch >= 64

    def __str__(self) -> str:
        kept = ", freed memory kept" if self.kept else ""
        trained = ", trained" if self.network else ""
        return f"ResNet-19, width {self.width:g}, B={self.batch}, T={self.steps}{trained}{kept}"


Case = NeuronCase | NetworkCase


@dataclass(frozen=True)
class Goal:
    """``metric`` of ``other`` divided by that of ``ours`` should be at least ``least``."""

    metric: str
    other: str
    least: float
    ours: str = OURS


def goals(case: Case) -> list[Goal]:
    """The figures of the project's plan that this case is held against; times and bytes, other / ours."""
    if isinstance(case, NeuronCase):
        rows = [Goal("train", PLIF, 10), Goal("train", SNNTORCH, 20), Goal("train", COMPILED, 3)]
        return rows + [Goal("train", COPY, 1 / 1.3)] * (case.size == OUT_OF_CACHE)
    narrow = case.width < 1
    if case.network:
        times = [Goal("train", PLIF, 2.6 if narrow else 3), Goal("forward", PLIF, 4.5 if narrow else 6)]
        times += [Goal("train", RELU, 1 / 2), Goal("forward", RELU, 1.0 if case.steps <= 2 else 1 / 1.3)]
        return [*times, Goal("train", OURS, 1.0, LEAN), Goal("peak", PLIF, 3, LEAN)]
    train, evaluate = (1.5, 1.7) if narrow else (1.1, 1.3)
    times = [Goal(m, PLIF, least, o) for m, least in (("train", train), ("forward", evaluate)) for o in (OURS, LEAN)]
    return [*times, Goal("peak", PLIF, 2, LEAN)]


def trained_cases(network: str, width: float, quick: bool) -> list[NetworkCase]:
    """Those of `trained.py`, for a network of this width."""
    if quick:
        return [NetworkCase(width, 8, kept=True, steps=2, network=network)]
    return [
        *(NetworkCase(width, 64, kept=True, steps=steps, network=network) for steps in (4, 2)),
        NetworkCase(1.0, 16, kept=True, network=network),
    ]


def all_cases(quick: bool) -> list[Case]:
    if quick:
        return [NeuronCase(4, IN_CACHE), NeuronCase(4, 2**26), NetworkCase(0.25, 16)]
    sizes = ((IN_CACHE, False), (OUT_OF_CACHE, False), (OUT_OF_CACHE, True))
    neurons = [NeuronCase(steps, size, kept) for size, kept in sizes for steps in (4, 10)]
    networks = [NetworkCase(width, batch) for width in (0.25, 1.0) for batch in (16, 64)]
    return [*neurons, *networks, NetworkCase(0.25, 64, kept=True)]
