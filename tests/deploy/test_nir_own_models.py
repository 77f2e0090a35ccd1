"""NIR files of models as users write them: names that collide, sums at the end, deep networks, other dtypes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.deploy import DamagedFile, FoldedNetwork, fold
from tests.deploy.test_fold_own_models import Own, X, folded

pytest.importorskip("nir")

from steadyspike.deploy.from_nir import from_nir
from steadyspike.deploy.to_nir import export_nir, to_nir


def assert_round_trip(network: FoldedNetwork, path) -> None:
    assert torch.equal(from_nir(export_nir(network, path / "network.nir"))(X), network(X))


def _twice(m: Own, x: Tensor) -> Tensor:
    h = m.fire(m.a(x))
    return m.o(h + h)


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.output(m.fire(m.a(x))),
        lambda m, x: m.o(m.a_1(m.b(m.layers[1](m.layers[0](x))))),
        lambda m, x: m.o(m.fire(m.a(x))) + m.output(m.a_1(m.a(x))),
        lambda m, x: m.o(m.fire(0.5 * (m.a(x) + m.layers[0](x)) + m.a(x))),
        _twice,
    ],
    ids=["a layer called output", "a_1 and a.1", "a sum at the end", "a constant times a sum", "x + x"],
)
def test_round_trip(forward: Callable[[Own, Tensor], Tensor], tmp_path):
    layers = nn.Sequential(nn.Linear(6, 8), ss.LIF(0.1))
    own = {"output": nn.Linear(8, 3), "layers": layers, "layers_1": nn.Linear(8, 8), "a_1": ss.LIF(0.05)}
    assert_round_trip(folded(forward, **own), tmp_path)


def test_names_that_become_the_same_are_kept_apart(tmp_path):
    layers = nn.Sequential(nn.Linear(6, 8), ss.LIF(0.1))
    network = folded(
        lambda m, x: m.o(m.late(m.layers_0(m.layers(x)))), layers=layers, layers_0=nn.Linear(8, 8), late=ss.LIF(0.05)
    )
    assert_round_trip(network, tmp_path)


def test_a_deep_network_is_read(tmp_path):
    layers = [layer for _ in range(120) for layer in (nn.Linear(6, 6), ss.LIF(0.2))]
    assert_round_trip(fold(nn.Sequential(*layers).eval(), X, check=False), tmp_path)


def test_bfloat16_weights_are_written_as_float32():
    network = folded(lambda m, x: m.o(m.fire(m.a(x)))).bfloat16()
    assert to_nir(network).nodes["a"].weight.dtype.name == "float32"


def test_a_foreign_file_is_one_clear_error(tmp_path):
    (tmp_path / "text.nir").write_text("hello")
    with pytest.raises(DamagedFile, match=r"text\.nir is not a readable NIR file"):
        from_nir(tmp_path / "text.nir")
