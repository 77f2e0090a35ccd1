"""Hashes 20 training steps of small networks, to see whether a change of the code changes a number.

Each line has a network and the hashes of all losses, of the last outputs and gradients in training, of all weights and
statistics at the end, and of an evaluation. ``--watch`` trains with the watchers of `steadyspike train`; its lines must
be equal to those without.

    python benchmarks/step_hashes.py > before.txt      # at one commit
    python benchmarks/step_hashes.py | diff before.txt -
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import steadyspike as ss
from steadyspike.train.watch.layers import LayerWatch

STEPS = 20


NETWORKS = {
    "cnn7_tiny": lambda: ss.models.create("cnn7_tiny", image_size=32),
    "resnet19_tiny": lambda: ss.models.create("resnet19_tiny", image_size=32),
    "sew_resnet34_tiny": lambda: ss.models.create("sew_resnet34_tiny", image_size=32),
    "spikformer_tiny": lambda: ss.models.create("spikformer_tiny", image_size=32),
    "qkformer_tiny": lambda: ss.models.create("qkformer_tiny", image_size=32),
    "ems_resnet10_ee_small": lambda: ss.models.create("ems_resnet10_ee_small", image_size=32),
    "layers as written": lambda: nn.Sequential(
        ss.nn.Folded(nn.Conv2d(3, 16, 3, padding=1)), ss.nn.TDBN(16), ss.LIF(channels=16),
        ss.nn.Folded(nn.Conv2d(16, 16, 3, 2, 1)), ss.nn.TEBN(16, 4), ss.PLIF(), nn.Flatten(2),
        nn.Linear(16 * 16 * 16, 10), ss.Readout(),
    ),
}  # fmt: skip


def digest(tensors: Iterable[Tensor]) -> str:
    """The first ten digits of the SHA-256 of the values."""
    seen = hashlib.sha256()
    for t in tensors:
        seen.update(t.detach().contiguous().numpy().tobytes())
    return seen.hexdigest()[:10]


def leaves(output: object) -> Iterator[Tensor]:
    """The tensors of an output, or of the maps of a detection network."""
    if isinstance(output, Tensor):
        yield output
    else:
        for one in output:  # type: ignore[attr-defined]
            yield from leaves(one)


@contextmanager
def watched(model: nn.Module, watch: bool) -> Iterator[None]:
    watcher = LayerWatch(model, 16) if watch else None
    yield
    if watcher is not None:
        watcher.close()


def hashes(model: nn.Module, channels: int, watch: bool) -> list[str]:
    """Of losses, outputs and gradients of the last step, weights and buffers, and an evaluation."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses, out, x = [], None, torch.empty(0)
    model.train()
    with watched(model, watch):
        for _ in range(STEPS):
            frames = () if isinstance(model, ss.models.SpikingNet) else (4,)
            x = torch.randn(*frames, 4, channels, 32, 32, generator=generator)
            optimizer.zero_grad()
            out = list(leaves(model(x)))
            target = torch.randint(0, 10, (4,), generator=generator)
            loss = F.cross_entropy(out[0].mean(0), target) if out[0].ndim == 3 else sum(o.square().mean() for o in out)
            assert isinstance(loss, Tensor)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        assert out is not None
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        model.eval()
        with torch.no_grad():
            evaluated = list(leaves(model(x)))
    return [digest(t) for t in (losses, out, gradients, model.state_dict().values(), evaluated)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--watch", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.networks:
        torch.manual_seed(0)
        model = NETWORKS[name]()
        channels = getattr(model, "in_channels", 3)
        print(f"{name:24}", *hashes(model, channels, args.watch))


if __name__ == "__main__":
    main()
