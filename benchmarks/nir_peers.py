"""Which tools load which form of our NIR exports, and what they compute: the table of docs/deploy.md.

    python -m benchmarks.nir_peers            # print the table
    python -m benchmarks.nir_peers --write    # and write it into docs/deploy.md

Every network is exported and run by every tool; a cell is "exact" only if each of its spikes is ours.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.deploy import CannotFold, FoldedNetwork, fold
from steadyspike.deploy.to_nir import DT, MODES, Mode, to_nir
from steadyspike.nn.time import Folded

PAGE = Path(__file__).resolve().parent.parent / "docs" / "deploy.md"
MARKS = ("<!-- NIR table begins -->", "<!-- NIR table ends -->")


class LI(nn.Module):
    """NIR's leaky integrator from v = 0, one Euler step per call."""

    def __init__(self, node: Any) -> None:
        super().__init__()
        self.gain, self.r = DT / torch.as_tensor(node.tau).float(), torch.as_tensor(node.r).float()
        self.v_leak = torch.as_tensor(node.v_leak).float()

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        v = torch.zeros_like(x) if state is None else state
        v = v + self.gain * (self.v_leak + self.r * x - v)
        return v, v


class LIF(LI):
    """NIR's LIF node."""

    def __init__(self, node: Any) -> None:
        super().__init__(node)
        self.v_threshold, self.v_reset = (torch.as_tensor(n).float() for n in (node.v_threshold, node.v_reset))

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        v, _ = super().forward(x, state)
        s = v > self.v_threshold
        return s.float(), torch.where(s, self.v_reset, v)


class Pointwise(nn.Module):
    """NIR's Threshold and Scale."""

    def __init__(self, node: Any) -> None:
        super().__init__()
        self.fires = hasattr(node, "threshold")
        self.constant = torch.as_tensor(node.threshold if self.fires else node.scale).float()

    def forward(self, x: Tensor) -> Tensor:
        return (x > self.constant).float() if self.fires else x * self.constant


def _linear(node: Any) -> nn.Linear:
    # nirtorch's own map writes the bias to another attribute and loses it.
    layer = nn.Linear(node.weight.shape[1], node.weight.shape[0])
    layer.weight.data, layer.bias.data = torch.as_tensor(node.weight), torch.as_tensor(node.bias)
    return layer


def _conv(node: Any) -> nn.Conv2d:
    # nirtorch's own map exchanges the channels.
    out, ins, *kernel = node.weight.shape
    layer = nn.Conv2d(ins, out, tuple(kernel), node.stride, node.padding, node.dilation, node.groups)
    layer.weight.data, layer.bias.data = torch.as_tensor(node.weight), torch.as_tensor(node.bias)
    return layer


class _Flat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def by_nirtorch(graph: Any) -> nn.Module:
    import nir
    import nirtorch

    maps = {
        nir.LI: LI, nir.LIF: LIF, nir.Threshold: Pointwise, nir.Scale: Pointwise, nir.Affine: _linear,
        nir.Conv2d: _conv, nir.Flatten: lambda node: _Flat(),
    }  # fmt: skip
    return nirtorch.nir_to_torch(graph, maps)


def by_spikingjelly(graph: Any) -> nn.Module:
    from spikingjelly.activation_based.nir_exchange.from_nir import import_from_nir

    return import_from_nir(graph, dt=DT)


def by_snntorch(graph: Any) -> nn.Module:
    from snntorch.import_nir import import_from_nir

    return import_from_nir(graph)


def by_norse(graph: Any) -> nn.Module:
    import norse.torch

    return norse.torch.from_nir(graph, dt=DT)


TOOLS: dict[str, Callable[[Any], nn.Module]] = {
    "nirtorch": by_nirtorch, "SpikingJelly": by_spikingjelly, "snnTorch": by_snntorch, "Norse": by_norse,
}  # fmt: skip


def dense(reset: str, start: float = 0.0) -> tuple[FoldedNetwork, Tensor]:
    torch.manual_seed(0)
    options: dict[str, Any] = {"reset": reset, "init": start}
    model = nn.Sequential(
        nn.Linear(6, 12), ss.LIF(threshold=0.6, tau=1.7, **options), nn.Linear(12, 5), ss.LIF(gradient="rs", **options)
    )
    nn.init.uniform_(model[0].weight, 0, 0.5)  # type: ignore[arg-type]
    nn.init.uniform_(model[2].weight, -0.3, 0.6)  # type: ignore[arg-type]
    x = 2 * torch.rand(8, 16, 6)
    return fold(model.eval(), x, check=False), x


def pooled(reset: str) -> tuple[FoldedNetwork, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        Folded(nn.Conv2d(2, 6, 3, padding=1)), ss.LIF(reset=reset, init="zero"), Folded(nn.AvgPool2d(2)),
        nn.Flatten(2), nn.Linear(96, 5), ss.LIF(reset=reset, init="zero", gradient="rs"),
    )  # fmt: skip
    nn.init.uniform_(model[0].layer.weight, 0, 0.3)  # type: ignore[union-attr, arg-type]
    nn.init.uniform_(model[4].weight, -0.1, 0.2)  # type: ignore[arg-type]
    x = 2 * torch.rand(8, 16, 2, 8, 8)
    return fold(model.eval(), x, batch_dim=1, check=False), x


NETWORKS: dict[str, Callable[[], tuple[FoldedNetwork, Tensor]]] = {
    "hard reset": lambda: dense("hard"),
    "hard reset, U[0] = 0.29": lambda: dense("hard", 0.29),
    "soft reset": lambda: dense("soft"),
    "soft reset, U[0] = 0.29": lambda: dense("soft", 0.29),
    "hard reset, average pool": lambda: pooled("hard"),
}


def frames_through(net: nn.Module, x: Tensor) -> Tensor:
    state, outs = None, []
    for frame in x:
        result = net(frame) if state is None else net(frame, state)
        out, state = result if isinstance(result, tuple) else (result, None)
        outs.append(out)
    return torch.stack(outs)


def outcome(tool: str, network: FoldedNetwork, x: Tensor, mode: Mode) -> str:
    """What a tool does with an export: "exact", the share of spikes that differ, "does not load" or "does not run"."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            graph = to_nir(network, mode)
        except CannotFold:
            return "not exported"
        expected = network(x)
        try:
            net = TOOLS[tool](graph)
        except Exception:  # importers refuse with any exception
            return "does not load"
        try:
            out = frames_through(net, x)
        except Exception:
            return "does not run"
    if out.shape != expected.shape:
        return "does not run"
    differ = float((out != expected).double().mean())
    return "exact" if differ == 0 else f"{differ:.1%} of spikes differ"


def table() -> str:
    lines = [f"| network, mode | {' | '.join(TOOLS)} |", "|" + "---|" * (1 + len(TOOLS))]
    for label, make in NETWORKS.items():
        network, x = make()
        rows: dict[tuple[str, ...], list[str]] = {}
        for mode in MODES:
            cells = tuple(outcome(tool, network, x, mode) for tool in TOOLS)
            if "not exported" not in cells:
                rows.setdefault(cells, []).append(f"`{mode}`")
        lines += [f"| {label}: {', '.join(modes)} | {' | '.join(cells)} |" for cells, modes in rows.items()]
    return "\n".join(lines)


def rendered(page: str, text: str) -> str:
    before, _, rest = page.partition(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/deploy.md")
    args = parser.parse_args()
    text = table()
    print(text)
    if args.write:
        PAGE.write_text(rendered(PAGE.read_text(), text))


if __name__ == "__main__":
    main()
