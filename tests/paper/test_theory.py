"""The Markov chain of the membrane against simulation, its bound, and the starts that lemma 1 compares."""

import pytest
import torch

from steadyspike.analysis.statistics.distributions import total_variation
from steadyspike.core.reference_scan import reference_scan
from steadyspike.core.spec import Reset, ScanSpec
from steadyspike.paper.theory import chain as chains
from steadyspike.paper.theory import starts


@pytest.fixture(scope="module", params=["soft", "hard"])
def pair(request):
    """(reset, its chain, its stationary law) for input N(1, 0.5), V = 1, tau = 2."""
    chain = chains.membrane_chain(chains.gaussian(1.0, 0.5), 1.0, 2.0, request.param, cells=201)
    return request.param, chain, chains.stationary(chain)


def simulate(reset, start, steps, neurons=100_000, mean=1.0, std=0.5):
    """U[T] and whether each neuron fired, by the library's own scan."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(steps, 1, neurons, generator=generator, dtype=torch.float64) * std + mean
    one = torch.ones(1, dtype=torch.float64)
    spec = ScanSpec(family="rs", reset=Reset(reset))
    result = reference_scan(x, start * one, one, 0.5 * one, spec)
    return result.u.flatten(), result.out.flatten(1).any(0)


def test_rows_are_probabilities_and_the_law_is_stationary(pair):
    _, chain, pi = pair
    torch.testing.assert_close(chain.kernel.sum(1), torch.ones(len(chain.centres), dtype=torch.float64))
    torch.testing.assert_close(pi @ chain.kernel, pi, atol=1e-12, rtol=0)
    assert float(pi.sum()) == pytest.approx(1)


def test_the_chain_is_the_library_s_neuron(pair):
    reset, chain, pi = pair
    u, _ = simulate(reset, 0.0, 30)
    assert chain.mean(pi) == pytest.approx(float(u.mean()), abs=4e-3)
    early, fired = simulate(reset, 0.3, 2)
    p = chains.evolve(chain, chain.start(0.3), 2)
    assert chain.mean(p[2]) == pytest.approx(float(early.mean()), abs=4e-3)
    assert starts.active_mean(chain, chain.start(0.3), 2) == pytest.approx(float(early[fired].mean()), abs=5e-3)
    silent = starts.window(chain, chain.start(0.3), 2).silent[-1].sum()
    assert float(silent) == pytest.approx(float((~fired).double().mean()), abs=5e-3)


def test_doeblin_s_bound_holds_from_every_start(pair):
    _, chain, pi = pair
    epsilon = chains.doeblin(chain, 2)
    assert 0 < chains.doeblin(chain) <= epsilon < 1
    for value in (-0.5, 0.0, 0.9):
        away = total_variation(chains.evolve(chain, chain.start(value), 6), pi)
        assert all(float(away[t]) <= (1 - epsilon) ** (t // 2) + 1e-9 for t in range(7))
    late = total_variation(chains.evolve(chain, chain.start(0.0), 12), pi)[-2:]
    assert float(late[1] / late[0]) < 1.5 * chains.second_eigenvalue(chain)


def test_the_mean_has_the_least_squared_distance(pair):
    _, chain, pi = pair
    constants = torch.linspace(-1, 1, 401, dtype=torch.float64)
    least = float(constants[starts.squared_distance(chain, pi, constants).argmin()])
    assert least == pytest.approx(chain.mean(pi), abs=5e-3)
    drift = {c: starts.drift(chain, chain.start(c), 4) for c in (0.0, chain.mean(pi))}
    assert drift[chain.mean(pi)] < drift[0.0] / 2
    assert starts.best_constant(chain, 4, 21)[1] <= drift[chain.mean(pi)] + 1e-4
    assert starts.drift(chain, pi, 4) < 1e-9


def test_mp_init_settles_where_the_layer_s_running_mean_does():
    import steadyspike as ss

    chain = chains.membrane_chain(chains.gaussian(1.0, 0.5), 1.0, 2.0, "soft", cells=201)
    layer = ss.LIF(learn=())
    layer.train()
    generator = torch.Generator().manual_seed(0)
    for _ in range(80):
        layer(torch.randn(4, 8, 500, generator=generator) * 0.5 + 1.0)
    assert starts.mp_init_fixed_point(chain, 4) == pytest.approx(float(layer.running_mean), abs=8e-3)


def test_measured_inputs_give_the_same_chain():
    samples = torch.randn(50_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.5 + 1.0
    exact, seen = (
        chains.membrane_chain(cdf, cells=101) for cdf in (chains.gaussian(1.0, 0.5), chains.empirical(samples))
    )
    assert seen.mean(chains.stationary(seen)) == pytest.approx(exact.mean(chains.stationary(exact)), abs=6e-3)
    with pytest.raises(ValueError, match="unknown reset"):
        chains.membrane_chain(chains.gaussian(), reset="none")


@pytest.mark.parametrize("options", [{"threshold": 0.0}, {"threshold": -1.0}, {"tau": 0.5}, {"tau": float("nan")}])
def test_a_neuron_that_cannot_be_is_refused(options):
    with pytest.raises(ValueError, match="above 0 and tau at least 1"):
        chains.membrane_chain(chains.gaussian(), **options)
    with pytest.raises(ValueError, match="std must be above 0"):
        chains.gaussian(0.0, -1.0)
