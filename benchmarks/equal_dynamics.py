"""One layer and one small network in every installed SNN library, with the same constants: what differs.

    python -m benchmarks.equal_dynamics            # print the tables
    python -m benchmarks.equal_dynamics --write    # and write them into docs/equal-dynamics.md

Constants: V = 1, tau = 2 (a decay of 0.5 a step), input times 0.5, potential 0 at the start, and the derivative of a
sigmoid of slope 4 as surrogate, in every library that has one. The reference is our layer with the same reset: its
spikes, and its gradient of sum(output * w) for a fixed w. Libraries that are not installed have no row.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

import steadyspike as ss

PAGE = Path(__file__).resolve().parent.parent / "docs" / "equal-dynamics.md"
MARKS = ("<!-- equal dynamics table begins -->", "<!-- equal dynamics table ends -->")
TAU, STEPS, BATCH, NEURONS, REPEATS = 2.0, 8, 16, 1024, 5
Layer = Callable[[Tensor], Tensor]  # a current [T, B, N] to spikes [T, B, N], from rest


def ours(reset: str, detach: str = "none") -> Layer:
    from steadyspike.core.spec import Reset
    from steadyspike.core.surrogate import Sigmoid

    return ss.LIF(1.0, TAU, init="zero", learn=(), gradient="as", surrogate=Sigmoid(0.25), reset=Reset(reset, detach))  # type: ignore[arg-type]


def spikingjelly(reset: str, detach: bool = False) -> Layer:
    from spikingjelly.activation_based import neuron, surrogate

    node = neuron.LIFNode(
        TAU, v_reset=None if reset == "soft" else 0.0, surrogate_function=surrogate.Sigmoid(4.0), step_mode="m",
        detach_reset=detach,
    )  # fmt: skip

    def run(x: Tensor) -> Tensor:
        node.reset()
        return node(x)

    return run


def snntorch(reset: str, delay: bool) -> Layer:
    import snntorch
    from snntorch import surrogate

    kind = "subtract" if reset == "soft" else "zero"
    leaky = snntorch.Leaky(
        1 - 1 / TAU, spike_grad=surrogate.sigmoid(4), reset_mechanism=kind, reset_delay=delay, init_hidden=False
    )  # fmt: skip

    def run(x: Tensor) -> Tensor:
        membrane, spikes = torch.zeros_like(x[0]), []
        for current in x:
            out, membrane = leaky(current / TAU, membrane)
            spikes.append(out)
        return torch.stack(spikes)

    return run


def norse(reset: str) -> Layer:
    from norse.torch.functional.lif_box import LIFBoxFeedForwardState, LIFBoxParameters, lif_box_feed_forward_step
    from norse.torch.functional.reset import reset_subtract, reset_value

    parameters = LIFBoxParameters(
        tau_mem_inv=torch.tensor(1 / (TAU * 1e-3)), v_th=torch.tensor(1.0), method="tanh", alpha=2.0,
        reset_method=reset_subtract if reset == "soft" else reset_value,
    )  # fmt: skip

    def run(x: Tensor) -> Tensor:
        state, spikes = LIFBoxFeedForwardState(v=torch.zeros_like(x[0])), []
        for current in x:
            out, state = lif_box_feed_forward_step(current, state, parameters)
            spikes.append(out)
        return torch.stack(spikes)

    return run


def norse_current() -> Layer:
    """Norse's LIF with its synaptic current, whose time constant is one step: the current waits a step."""
    from norse.torch.functional.lif import LIFFeedForwardState, LIFParameters, lif_feed_forward_step

    parameters = LIFParameters(
        tau_syn_inv=torch.tensor(1e3), tau_mem_inv=torch.tensor(1 / (TAU * 1e-3)), v_th=torch.tensor(1.0),
        method="tanh", alpha=torch.tensor(2.0),
    )  # fmt: skip

    def run(x: Tensor) -> Tensor:
        zero = torch.zeros_like(x[0])
        state, spikes = LIFFeedForwardState(v=zero, i=zero), []
        for current in x:
            out, state = lif_feed_forward_step(current, state, parameters)
            spikes.append(out)
        return torch.stack(spikes)

    return run


def sinabs(reset: str) -> Layer:
    import sinabs.activation as act
    import sinabs.layers

    node = sinabs.layers.LIF(
        tau_mem=1 / math.log(2), spike_threshold=1.0, spike_fn=act.SingleSpike, norm_input=True, train_alphas=False,
        reset_fn=act.MembraneSubtract() if reset == "soft" else act.MembraneReset(),
    )  # fmt: skip

    def run(x: Tensor) -> Tensor:
        node.reset_states()
        return node(x.transpose(0, 1)).transpose(0, 1)

    return run


@dataclass(frozen=True)
class Contender:
    """label: of the row. package: that it needs. make: the layer. like: our layer that it is compared with."""

    label: str
    package: str
    make: Callable[[], Layer]
    like: Callable[[], Layer]


def contenders() -> list[Contender]:
    rows = []
    for reset in ("soft", "hard"):
        plain, cut = partial(ours, reset), partial(ours, reset, "spike")
        jelly, torch_ = "SpikingJelly LIFNode", "snnTorch Leaky"
        rows += [
            Contender(f"SteadySpike, {reset}", "steadyspike", plain, plain),
            Contender(f"{jelly}, {reset}", "spikingjelly", partial(spikingjelly, reset), plain),
            Contender(f"{jelly}, {reset}, detach_reset", "spikingjelly", partial(spikingjelly, reset, True), cut),
            Contender(f"{torch_}, {reset} (its default)", "snntorch", partial(snntorch, reset, True), plain),
            Contender(f"{torch_}, {reset}, reset_delay=False", "snntorch", partial(snntorch, reset, False), plain),
            Contender(f"Norse LIFBox, {reset}", "norse", partial(norse, reset), plain),
            Contender(f"sinabs LIF, {reset} (its surrogate)", "sinabs", partial(sinabs, reset), plain),
        ]
    rows.append(Contender("Norse LIF, hard (synaptic current)", "norse", norse_current, partial(ours, "hard")))
    return [row for row in rows if find_spec(row.package) is not None]


class Network(nn.Module):
    """Linear, layer, linear, layer; weights from one seed."""

    def __init__(self, layers: tuple[Layer, Layer]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)
        nn.init.uniform_(self.first.weight, -0.3, 0.34)
        nn.init.uniform_(self.second.weight, -0.24, 0.256)
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](self.second(self.layers[0](self.first(x))))


@dataclass
class Result:
    """different: share of spikes that differ from ours. gradient: largest difference relative to our largest; cosine.

    milliseconds: CPU time of forward and backward. kept: bytes that the forward keeps for the backward, per neuron and
    step.
    """

    different: float
    gradient: float
    cosine: float
    milliseconds: float
    kept: float


def gradients(run: Layer, x: Tensor, parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
    weight = torch.randn(x.shape[0], x.shape[1], 1, generator=torch.Generator().manual_seed(2))
    out = run(x)
    got = torch.autograd.grad((out * weight).sum(), parameters)
    return out.detach(), torch.cat([g.flatten() for g in got])


def kept_bytes(run: Layer, x: Tensor) -> float:
    """Bytes of distinct memory that autograd holds after a forward; parameters do not count."""
    held: dict[int, int] = {}
    weights = {p.untyped_storage().data_ptr() for p in run.parameters()} if isinstance(run, nn.Module) else set()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run(x)  # alive until all is counted, so that no memory is used twice
    return sum(held.values()) / out.numel()


def measure(run: Layer, like: Layer, x: Tensor, parameters: list[Tensor], others: list[Tensor]) -> Result:
    out, gradient = gradients(run, x, parameters)
    expected, reference = gradients(like, x, others)
    times = []
    for _ in range(REPEATS):
        start = time.thread_time()
        gradients(run, x, parameters)
        times.append(time.thread_time() - start)
    cosine = float(torch.nn.functional.cosine_similarity(gradient, reference, dim=0))
    difference = float((gradient - reference).abs().max() / reference.abs().max())
    changed = float((out != expected).double().mean())
    return Result(changed, difference, cosine, 1e3 * sorted(times)[REPEATS // 2], kept_bytes(run, x))


def layer_results() -> dict[str, Result]:
    torch.manual_seed(1)
    x = (3 * torch.rand(STEPS, BATCH, NEURONS) - 0.3).requires_grad_()
    return {c.label: measure(c.make(), c.like(), x, [x], [x]) for c in contenders()}


def network_results() -> dict[str, Result]:
    torch.manual_seed(1)
    x = torch.rand(STEPS, BATCH, 64)
    results = {}
    for c in contenders():
        mine, like = Network((c.make(), c.make())), Network((c.like(), c.like()))
        results[c.label] = measure(mine, like, x, list(mine.parameters()), list(like.parameters()))
    return results


def table(title: str, results: dict[str, Result]) -> str:
    head = [title, "spikes that differ", "gradient: largest difference", "cosine", "CPU ms", "bytes kept"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for label, r in results.items():
        cells = [f"{r.different:.2%}", f"{r.gradient:.1e}", f"{r.cosine:.4f}", f"{r.milliseconds:.1f}", f"{r.kept:.1f}"]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def versions() -> str:
    names = []
    for package in ("torch", *dict.fromkeys(c.package for c in contenders())):
        try:
            names.append(f"{package} {version(package)}")
        except PackageNotFoundError:  # a source tree that is not installed
            names.append(package)
    return ", ".join(names)


def render() -> str:
    layer = table(f"one layer, [{STEPS}, {BATCH}, {NEURONS}]", layer_results())
    network = table(f"64-256-64 network, [{STEPS}, {BATCH}, 64]", network_results())
    return f"{layer}\n\n{network}\n\n{versions()}; {time.strftime('%Y-%m-%d')}; one thread."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/equal-dynamics.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    text = render()
    print(text)
    if args.write:
        before, _, rest = PAGE.read_text().partition(MARKS[0])
        PAGE.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


if __name__ == "__main__":
    main()
