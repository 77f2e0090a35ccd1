"""What `steadyspike train` watches does not change how a layer is computed: every layer runs the fused node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.kernels.scan.fused_job import Job
from steadyspike.models.model_registry import entry
from steadyspike.nn import fused
from steadyspike.nn.neuron import Neuron, neurons
from steadyspike.train.watch.layers import GradientWatch, LayerWatch, MembraneWatch
from tests.kernels.built import needs_kernel
from tests.models.members import TINY, images, member
from tests.train.conftest import trained

pytestmark = needs_kernel


class Calls:
    """The calls of the node: how many norms each computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[int] = []
        self.others: list[str] = []
        monkeypatch.setattr(fused, "fused_scan", self._counted(fused.fused_scan))
        original = Neuron.run

        def run(layer: Neuron, *args: object, **options: object) -> object:
            self.others.append(type(layer).__name__)
            return original(layer, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Neuron, "run", run)

    def _counted(self, original):  # type: ignore[no-untyped-def]
        def call(*args: object) -> object:
            self.seen.append(0 if len(args) < 6 else 1 + (args[-2] is not None))
            return original(*args)

        return call

    def take(self) -> list[int]:
        seen, self.seen = self.seen, []
        return seen


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@contextmanager
def watched(model: nn.Module, steps: int) -> Iterator[LayerWatch]:
    """The watchers of a run that writes to TensorBoard too."""
    watch, membranes = LayerWatch(model, steps), MembraneWatch(model)
    GradientWatch(model)
    membranes.start()
    yield watch
    watch.close()
    membranes.close()


# A small member of every family: the layers of its larger members are the same.
MEMBERS = [*TINY, "ems_resnet10_ee_small"]


def test_every_family_is_here() -> None:
    assert {entry(name).family for name in MEMBERS} == {entry(name).family for name in ss.models.names()}


def tensors(output: object) -> list[Tensor]:
    """The output, or the maps of a detection network."""
    return [output] if isinstance(output, Tensor) else [t for one in output for t in tensors(one)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", MEMBERS)
def test_every_layer_of_every_network_runs_by_the_node(calls: Calls, name: str) -> None:
    """The same calls and the same numbers as without watchers; and the watchers see every spiking layer."""
    actual = []
    size = (64, 64) if name.startswith("ems") else entry(name).image_size
    x = torch.randn(2, entry(name).in_channels, *size, generator=torch.Generator().manual_seed(0))
    for looks in (False, True):
        model = member(name)
        with watched(model, model.timesteps) if looks else nullcontext() as watch:
            out = tensors(model(x))
            sum(o.square().mean() for o in out).backward()  # type: ignore[union-attr]
            model.eval()
            with torch.no_grad():
                out += tensors(model(x))
            if watch is not None:
                for layer, silent, rates in zip(watch.layers.values(), watch.silent(), watch.step_rates()):
                    assert not layer.spiking or (silent is not None and rates)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        actual.append((calls.take(), [*out, *gradients, *model.state_dict().values()]))
    (plain, want), (with_watchers, got) = actual
    layers = [layer for layer in neurons(model).values() if "run" not in layer.overridden]
    assert with_watchers == plain and not calls.others
    assert len(plain) >= 2 * len(layers) > 0
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("asks", ["current", "membrane"])
def test_a_tap_that_asks_for_more_pays_with_memory_and_changes_no_number(calls: Calls, asks: str) -> None:
    plain, model = member("resnet19_tiny"), member("resnet19_tiny")
    seen = []
    for layer in neurons(model).values():
        layer.taps["me"] = ss.nn.neuron.Tap(  # type: ignore[operator]
            lambda layer, x, u0, result: seen.append((x, result.m)), asks == "membrane", asks == "current"
        )
    x = images("resnet19_tiny", 2)
    assert torch.equal(model(x), plain(x)) and len(seen) == len(neurons(model))
    assert all((m is not None) == (asks == "membrane") for _, m in seen) and not calls.others


def test_only_the_evaluation_of_a_run_writes_the_potentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[bool, set[bool]] = {False: set(), True: set()}  # by training: whether U[T] was asked for
    original = fused.fused_scan

    def scan(job: Job, *args: object) -> object:
        asked[job.trained].add(job.potential)
        return original(job, *args)

    monkeypatch.setattr(fused, "fused_scan", scan)
    trained(tmp_path, ["schedule.epochs=1", "data.train_samples=64"])
    assert asked[True] == {False} and True in asked[False]
