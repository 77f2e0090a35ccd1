"""The statistics against formulas, golden numbers and other libraries."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from steadyspike.analysis.statistics import autocorrelation, distributions
from steadyspike.paper.statistics import projection, step_gradients


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_zero_is_inside_a_bin_and_nothing_is_lost():
    edges = distributions.threshold_edges(0.7)
    assert (edges < 0).sum() == 51 and not (edges == 0).any()
    values = torch.tensor([-9.0, -1.3, 0.0, 0.0, 1.3, 9.0])
    counts = distributions.bin_counts(values, edges)
    assert counts.sum() == 6 and counts[0] == 1 and counts[-1] == 1 and counts[51] == 2
    with pytest.raises(ValueError, match="odd"):
        distributions.threshold_edges(1.0, bins=100)


def test_total_variation_of_known_distributions():
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 0.5, 0.5])
    assert distributions.total_variation(p, q) == 0.5
    assert distributions.total_variation(p, p) == 0
    assert distributions.against_last(torch.stack([p, q])).tolist() == [0.5, 0.0]


def test_noise_floor_is_what_equal_distributions_show():
    """Golden: two Gaussian samples of 1e5 on 100 bins of [-4, 4] differ by 0.0142, the formula gives 0.0141."""
    edges = torch.linspace(-4, 4, 101, dtype=torch.float64)
    p, q = (distributions.shares(distributions.bin_counts(random(100_000, seed=s), edges)) for s in (1, 2))
    floor = float(distributions.noise_floor(p, 100_000))
    assert floor == pytest.approx(0.0141, abs=2e-4)
    assert float(distributions.total_variation(p, q)) == pytest.approx(floor, rel=0.15)
    assert math.isnan(float(distributions.noise_floor(p, 0)))


def test_half_split_floor_sees_dependent_neurons():
    edges = distributions.threshold_edges(2.0)
    independent = random(1, 64, 500)
    shared = random(1, 64, 1).expand(1, 64, 500)  # all neurons of a sample are the same
    assert float(distributions.half_split_floor(shared, edges)) > 3 * float(
        distributions.half_split_floor(independent, edges)
    )
    p = distributions.shares(distributions.bin_counts(independent, edges))
    formula = float(distributions.noise_floor(p, 32_000))
    assert float(distributions.half_split_floor(independent, edges)) == pytest.approx(formula, rel=0.2)


def test_only_active_neurons_are_counted():
    spikes = torch.tensor([[[0.0, 0.0, 1.0]], [[0.0, 1.0, 1.0]]])
    active = distributions.active_neurons(spikes)
    assert active.tolist() == [[False, True, True]]
    u = torch.tensor([[[9.0, 0.1, 0.2]], [[9.0, 0.1, 3.0]]])
    assert distributions.bounded_share(u, 1.0, active=active).tolist() == [1.0, 0.5]
    assert distributions.step_counts(u, distributions.threshold_edges(1.0), active).sum(1).tolist() == [2, 2]


def test_ljung_box_equals_its_definition_and_is_calibrated():
    x = random(10, 3)
    n = 10
    for i, p in enumerate(autocorrelation.ljung_box(x).tolist()):
        series = x[:, i].numpy() - x[:, i].numpy().mean()
        r = (series[1:] * series[:-1]).sum() / (series**2).sum()
        assert p == pytest.approx(math.erfc(math.sqrt(n * (n + 2) * r * r / (n - 1) / 2)), rel=1e-12)
    # Golden: i.i.d. series of length 10 are rejected in 5.5 %, of length 4 in 7.7 %.
    assert autocorrelation.iid_share(10) == pytest.approx(0.945, abs=3e-3)
    assert autocorrelation.iid_share(4) == pytest.approx(0.923, abs=3e-3)


def test_ljung_box_counts_constant_series_apart():
    x = random(10, 4)
    x[:, 0] = 2.5
    actual = autocorrelation.independent_share(x)
    assert actual.constant == 0.25 and actual.neurons == 4
    assert math.isnan(float(autocorrelation.ljung_box(x)[0]))
    walk = random(100, 50).cumsum(0)
    assert autocorrelation.independent_share(walk).share < 0.05
    with pytest.raises(ValueError, match="at least 3"):
        autocorrelation.ljung_box(x[:2])


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Linear(5, 4)], ids=["conv", "linear"])
def test_contributions_add_up_to_the_gradient(layer):
    layer = layer.double()
    x = random(3, 2, 3, 8, 8) if isinstance(layer, nn.Conv2d) else random(3, 2, 5)
    out = layer(x.flatten(0, 1))
    dy = random(*out.shape, seed=5)
    out.backward(dy)
    rows = step_gradients.contributions(layer, x, dy.unflatten(0, (3, 2)))
    torch.testing.assert_close(rows.sum(0), layer.weight.grad.flatten())
    with pytest.raises(TypeError, match="BatchNorm2d"):
        step_gradients.contributions(nn.BatchNorm2d(3), x, dy)


def test_cosines_and_gradient_metrics():
    g = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    expected = torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(step_gradients.cosine_matrix(g), expected)
    assert step_gradients.absolute_strength(torch.tensor([-1.0, 3.0])) == 2
    assert step_gradients.gradient_variation(torch.tensor([-1.0, 3.0])) == 0.5
    assert step_gradients.gradient_variation(torch.zeros(3)) == 0
    assert math.isnan(step_gradients.gradient_variation(torch.tensor([math.nan])))
    assert step_gradients.active_ratio(torch.tensor([0.0, 1.0, 1.0, 0.0])) == 0.5


def test_principal_axes_equal_scikit_learn():
    from sklearn.decomposition import PCA

    x = random(60, 7) @ random(7, 7, seed=3)
    basis = projection.principal_axes(x, 3)
    other = PCA(3).fit(x.numpy())
    signs = np.sign((other.components_ * basis.axes.numpy()).sum(1))
    np.testing.assert_allclose(basis.axes.numpy(), other.components_ * signs[:, None], atol=1e-9)
    np.testing.assert_allclose(basis.explained.numpy(), other.explained_variance_ratio_, atol=1e-9)
    np.testing.assert_allclose(projection.project(x, basis).numpy(), other.transform(x.numpy()) * signs, atol=1e-8)
    assert all(axis[axis.abs().argmax()] > 0 for axis in basis.axes)


def test_separation_is_0_for_equal_classes_and_1_for_points():
    labels = torch.tensor([0, 0, 1, 1])
    assert projection.separation(torch.tensor([[0.0], [1.0], [0.0], [1.0]]), labels) == 0
    assert projection.separation(torch.tensor([[0.0], [0.0], [1.0], [1.0]]), labels) == 1
