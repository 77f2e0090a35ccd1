"""The layer: parameters, dtypes, errors, no hidden state, streaming, compile."""

import copy
import gc
import io
import math
import pickle
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import steadyspike as ss


def current(*shape, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=g) * 1.5 + 0.7).to(dtype)


# Parameters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [1e-6, 1e-3, 0.1, 1.0, 2.0, 50.0, 1e4])
@pytest.mark.parametrize("tau", [1.0001, 1.33, 2.0, 3.0, 1e4])
def test_start_values_are_what_was_asked_for(threshold, tau):
    lif = ss.LIF(threshold=threshold, tau=tau)
    assert lif.threshold.item() == pytest.approx(threshold, rel=1e-5)
    assert lif.tau.item() == pytest.approx(tau, rel=1e-5)
    double = ss.LIF(threshold=threshold, tau=tau).double()
    assert double.tau.item() - 1 == pytest.approx(tau - 1, rel=1e-4)


@given(st.floats(1e-8, 1e8), st.floats(1.0001, 1e8))
@settings(deadline=None)
def test_inverse_parametrisation(threshold, tau):
    from steadyspike.nn.parametrization import SIGMOID, SOFTPLUS, k_from_threshold, w_from_tau

    k = torch.tensor(k_from_threshold(threshold), dtype=torch.float64)
    w = torch.tensor(w_from_tau(tau), dtype=torch.float64)
    assert SOFTPLUS.value(k).item() == pytest.approx(threshold, rel=1e-7)
    assert 1 / SIGMOID.value(w).item() == pytest.approx(tau, rel=1e-9)


def test_paper_defaults():
    lif = ss.LIF()
    assert lif.k.item() == pytest.approx(0.5413, abs=1e-4)
    assert lif.w.item() == 0.0
    assert lif.running_mean.tolist() == [0.0]
    assert lif.k.shape == lif.w.shape == (1,)


def test_per_channel_values_and_shapes():
    lif = ss.LIF(threshold=[0.5, 1.0, 2.0], channels=3)
    assert lif.threshold.tolist() == pytest.approx([0.5, 1.0, 2.0])
    assert lif.tau.tolist() == pytest.approx([2.0] * 3)
    assert lif.running_mean.shape == (3,)
    with pytest.raises(ValueError, match="threshold has 2 values"):
        ss.LIF(threshold=[0.5, 1.0], channels=3)


@pytest.mark.parametrize("learn", [(), ("threshold",), ("tau",), ("threshold", "tau"), "tau"])
def test_learnable_or_frozen(learn):
    lif = ss.LIF(learn=learn)
    lif(current(4, 2, 3).requires_grad_()).sum().backward()
    assert (lif.k is not None and lif.k.grad is not None) == ("threshold" in learn)
    assert (lif.w is not None and lif.w.grad is not None) == ("tau" in learn)
    assert lif.learned == (learn if isinstance(learn, tuple) else (learn,))


@pytest.mark.parametrize("reset", ["soft", "hard"])
@pytest.mark.parametrize("gradient", ["as", "rs", "trsg"])
@pytest.mark.parametrize("channels", [None, 3])
def test_threshold_and_tau_get_the_float64_gradient(gradient, reset, channels):
    x = current(6, 8, 3, 5)
    lif = ss.LIF(gradient=gradient, reset=reset, surrogate="sigmoid", init="zero", channels=channels)
    double = copy.deepcopy(lif).double()
    double.backend = "reference"
    cotangent = current(6, 8, 3, 5, seed=1)
    (lif(x) * cotangent).sum().backward()
    (double(x.double()) * cotangent).sum().backward()
    for name in ("k", "w"):
        got, expected = getattr(lif, name).grad, getattr(double, name).grad
        assert expected.abs().min() > 1e-3
        torch.testing.assert_close(got.double(), expected, rtol=2e-4, atol=2e-4)


def test_threshold_stays_positive_under_an_adversary():
    lif = ss.LIF(threshold=0.5)
    optimizer = torch.optim.SGD(lif.parameters(), lr=5.0)
    for _ in range(1000):
        optimizer.zero_grad()
        (lif.threshold.log() + lif.tau.log()).sum().backward()
        optimizer.step()
    assert lif.threshold.item() > 0 and math.isfinite(lif.threshold.item())
    assert lif.tau.item() >= 1
    assert lif(current(3, 2, 2)).isfinite().all()


def test_parameter_groups():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), ss.LIF(), ss.LIF(init=ss.LearnedInit((4,))))
    decayed, free = ss.parameter_groups(model, 5e-4)
    assert decayed["weight_decay"] == 5e-4 and free["weight_decay"] == 0.0
    assert len(decayed["params"]) == 4 and len(free["params"]) == 5
    (everything,) = ss.parameter_groups(model, 5e-4, decay_neurons=True)
    assert len(everything["params"]) == 9
    decayed, free = ss.parameter_groups(model, 5e-4, decay_norms=False)
    assert [tuple(p.shape) for p in decayed["params"]] == [(4, 4)]
    decayed, free = ss.parameter_groups(model, 5e-4, decay_neurons=True, decay_norms=False)
    assert len(decayed["params"]) == 6 and len(free["params"]) == 3
    torch.optim.SGD(ss.parameter_groups(model, 5e-4), lr=0.1)


# Dtypes and shapes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 6), (2, 3, 5, 6, 7), (2, 2, 3, 4, 2, 2), (1, 1)])
def test_any_rank(shape):
    x = current(*shape).requires_grad_()
    y = ss.LIF()(x)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_output_has_the_dtype_of_the_input_and_the_membrane_is_float32(dtype):
    x = current(5, 4, 3, dtype=dtype)
    lif = ss.LIF(threshold=0.6, init="zero")
    y = lif(x)
    assert y.dtype == dtype
    expected = ss.LIF(threshold=0.6, init="zero")(x.float() if dtype != torch.float64 else x)
    assert torch.equal((y > 0), (expected > 0))
    x.requires_grad_()
    lif(x).sum().backward()
    assert x.grad.dtype == dtype and lif.k.grad.dtype == torch.float32


def test_autocast_keeps_the_membrane_in_float32():
    linear, lif = nn.Linear(6, 6), ss.LIF()
    with torch.autocast("cpu", torch.bfloat16):
        h = linear(current(3, 2, 6))
        y = lif(h)
    assert h.dtype == y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert lif.k.grad.isfinite().all()


def test_half_precision_model_keeps_running():
    lif = ss.LIF().to(torch.bfloat16)
    for _ in range(3):
        y = lif(current(3, 4, 2, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16 and lif.k.dtype == torch.bfloat16
    assert lif.running_mean.dtype == torch.float32  # a slow average would stall in half precision


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.zeros(3), ValueError, "time first"),
        (torch.zeros(0, 2, 3), ValueError, "T = 0"),
        (torch.zeros(2, 2, dtype=torch.long), TypeError, "floating-point"),
        (torch.zeros(2, 2, dtype=torch.complex64), TypeError, "floating-point"),
        ([1.0, 2.0], TypeError, "takes a tensor"),
    ],
)
def test_bad_inputs(x, error, message):
    with pytest.raises(error, match=message):
        ss.LIF()(x)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 4), (2, 4, 3, 4)])
def test_channels_must_match(shape):
    with pytest.raises(ValueError, match=r"channels=4.*got shape"):
        ss.LIF(channels=4)(torch.zeros(shape))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0.0}, "threshold must be"),
        ({"threshold": -1.0}, "threshold must be"),
        ({"threshold": math.nan}, "threshold must be"),
        ({"threshold": math.inf}, "threshold must be"),
        ({"tau": 1.0}, "tau must be"),
        ({"tau": 0.5}, "tau must be"),
        ({"tau": math.nan}, "tau must be"),
        ({"gradient": "stdp"}, "known: as, rs, trsg"),
        ({"surrogate": "box"}, "known: rect, triangle, arctan, sigmoid, dspike"),
        ({"reset": "gentle"}, "known: soft, hard"),
        ({"reset": "soft", "init": "one"}, "known: mp, zero"),
        ({"init": math.nan}, "must be finite"),
        ({"init": math.inf}, "must be finite"),
        ({"learn": ("leak",)}, "known: threshold, tau"),
        ({"channels": 0}, "channels must be"),
        ({"channels": 2.5}, "channels must be"),
        ({"channels": True}, "channels must be"),
        ({"gradient": ["as"]}, "known: as, rs, trsg"),
        ({"threshold": 1e39}, "threshold must be"),
        ({"tau": 1 + 1e-9}, "tau must be"),
        ({"backend": "cuda"}, "known: auto, reference, cpu, triton"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ss.LIF(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": None}, "init must be"),
        ({"init": torch.zeros(3)}, "init must be"),
        ({"threshold": "a"}, "threshold must be a number"),
        ({"threshold": None}, "threshold must be a number"),
        ({"strict": "no"}, "strict must be True or False"),
    ],
)
def test_options_of_the_wrong_type(options, message):
    with pytest.raises(TypeError, match=message):
        ss.LIF(**options)


def test_friendly_options():
    lif = ss.LIF(channels=np.int64(3), init=ss.MPInit, learn=None, surrogate=ss.surrogate.Rect(np.float32(1)))
    assert lif.channels == 3 and lif.learned == () and lif.running_mean.shape == (3,)


@pytest.mark.parametrize("make", [lambda: ss.surrogate.Rect(0.0), lambda: ss.surrogate.DSpike(temperature=-1.0)])
def test_bad_surrogates(make):
    with pytest.raises(ValueError, match="above 0"):
        make()


@pytest.mark.parametrize("momentum", [0.0, -0.1, 1.5, math.nan])
def test_bad_momentum(momentum):
    with pytest.raises(ValueError, match="momentum"):
        ss.MPInit(momentum=momentum)


def test_reset_names():
    assert ss.Reset("soft", detach=True).detach == "spike"
    assert ss.Reset("soft", detach=False).detach == "none"
    with pytest.raises(ValueError, match="known: none, spike, product"):
        ss.Reset("soft", detach="all")


@pytest.mark.parametrize("reset", ["soft", "hard"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_is_carried_not_swallowed(reset, dtype):
    x = current(5, 2, 3).to(dtype)
    x[1, 0, 2] = math.nan
    y = ss.LIF(reset=reset)(x)
    assert y[1:, 0, 2].isnan().all()
    mask = torch.ones(2, 3, dtype=torch.bool)
    mask[0, 2] = False
    assert y[:, mask].isfinite().all() and y[0].isfinite().all()


def test_health_names_the_layer():
    model = nn.Sequential(nn.Linear(3, 3), ss.LIF(), nn.Linear(3, 3), ss.LIF())
    x = current(4, 2, 3)
    with ss.health(model):
        model(x)
    model[2].weight.data[0, 0] = math.nan
    with (
        pytest.raises(ss.HealthError, match="layer '3': the input current is not finite at time step 1"),
        ss.health(model),
    ):
        model(x)
    assert not model[1].taps and not model[3].taps
    x[2, 0, 0] = math.inf
    with pytest.raises(ss.HealthError, match=r"layer '1'.*step 3"), ss.health(model):
        model(x)


def test_health_sees_constants_streams_and_may_nest():
    lif = ss.LIF(gradient="rs", reset="hard")
    x = current(2, 1, 2)
    with ss.health(lif), ss.health(lif):
        lif(x)
        assert not copy.deepcopy(lif).taps
    x[0, 0, 0] = math.nan
    with pytest.raises(ss.HealthError), ss.health(lif):
        lif.scan(x)
    lif.k.data.fill_(math.nan)
    with pytest.raises(ss.HealthError, match="threshold is not finite") as caught, ss.health(lif):
        lif(current(2, 1, 2))
    assert pickle.loads(pickle.dumps(caught.value)).layer == ""


# No hidden state -----------------------------------------------------------------------------------------------------


def test_two_forwards_agree_and_two_backwards_work():
    lif = ss.LIF().eval()
    x = current(5, 3, 4).requires_grad_()
    a, b = lif(x), lif(x)
    assert torch.equal(a, b)
    a.sum().backward()
    first = x.grad.clone()
    b.sum().backward()
    assert torch.equal(x.grad, 2 * first)


def test_training_forwards_with_the_same_mean_agree():
    lif = ss.LIF(init="zero").train()
    x = current(5, 3, 4)
    assert torch.equal(lif(x), lif(x))


def test_train_and_eval_spikes_agree_also_at_the_threshold():
    x = torch.full((3, 2, 2), 2.0)
    lif = ss.LIF(init=0.0)
    assert torch.equal(lif.train()(x), lif.eval()(x))
    assert lif(x)[0].eq(1).all()


def test_deleting_a_model_frees_it():
    model = nn.Sequential(nn.Linear(3, 3), ss.LIF(init="zero"))
    refs = [weakref.ref(m) for m in model.modules()]
    out = model(current(4, 2, 3))
    out.sum().backward()
    _, state = model[1].scan(current(1, 2, 3))
    del model, out
    gc.collect()
    assert all(r() is None for r in refs)
    with pytest.raises(RuntimeError, match="no longer exists"):
        state.fork()


@pytest.mark.parametrize("channels", [None, 4])
def test_deepcopy_pickle_and_state_dict_after_training(channels):
    lif = ss.LIF(channels=channels)
    for seed in range(3):
        lif(current(5, 3, 4, seed=seed)).sum().backward()
    x = current(5, 7, 4, seed=9)
    expected = lif.eval()(x)
    buffer = io.BytesIO()
    torch.save(lif.state_dict(), buffer)
    buffer.seek(0)
    fresh = ss.LIF(channels=channels)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    assert set(lif.state_dict()) == {"k", "w", "init.running_mean"}
    for twin in (copy.deepcopy(lif), pickle.loads(pickle.dumps(lif)), fresh.eval()):
        assert torch.equal(twin.running_mean, lif.running_mean) and lif.running_mean.abs().max() > 0
        assert torch.equal(twin(x), expected)


def test_ema_copies_follow_the_running_mean():
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    lif = ss.LIF()
    ema = AveragedModel(lif, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    for seed in range(4):
        lif(current(5, 3, 4, seed=seed))
        ema.update_parameters(lif)
    assert abs(ema.module.running_mean.item()) > 0
    ema(current(5, 3, 4))


def test_prototype_initialisers_are_not_shared():
    shared = ss.MPInit(momentum=0.5)
    a, b = ss.LIF(init=shared), ss.LIF(init=shared)
    a(current(5, 3, 4))
    assert a.running_mean.item() != 0 and b.running_mean.item() == 0 and shared.running_mean.item() == 0


# Streaming -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", ["as", "trsg"])
@pytest.mark.parametrize("cuts", [(1, 1, 1, 1, 1, 1), (2, 4), (5, 1)])
@pytest.mark.parametrize("channels", [None, 4])
def test_streaming_equals_one_call_gradients_included(cuts, channels, gradient):
    x = current(6, 3, 4, dtype=torch.float64)
    cotangent = current(6, 3, 4, seed=1, dtype=torch.float64)
    lif = ss.LIF(gradient=gradient, surrogate="sigmoid", channels=channels).double()
    lif.running_mean.fill_(0.3)
    whole, pieces = x.clone().requires_grad_(), x.clone().requires_grad_()
    lif.eval()
    expected = lif(whole)
    (expected * cotangent).sum().backward()
    wanted_grads = whole.grad, lif.k.grad.clone(), lif.w.grad.clone()
    lif.zero_grad()
    state, outs = None, []
    for part in pieces.split(cuts):
        y, state = lif.scan(part, state)
        outs.append(y)
    assert state.step == 6
    got = torch.cat(outs)
    assert torch.equal(got, expected)
    (got * cotangent).sum().backward()
    for g, w in zip((pieces.grad, lif.k.grad, lif.w.grad), wanted_grads):
        torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-12)


def test_states_that_do_not_fit_are_refused():
    a, b = ss.LIF(init="zero"), ss.LIF()
    x = current(1, 2, 3)
    _, state = a.scan(x)
    with pytest.raises(ValueError, match="made by another layer"):
        b.scan(x, state)
    with pytest.raises(ValueError, match="start a new stream"):
        a.scan(current(1, 4, 3), state)
    branch = state.fork()
    a.scan(x, state)
    with pytest.raises(ValueError, match=r"used already.*fork"):
        a.scan(x, state)
    a.scan(x, branch)
    with pytest.raises(TypeError, match="state must be the LIFState"):
        a.scan(x, torch.zeros(2, 3))
    with pytest.raises(ValueError, match="start a new stream there"):
        a.scan(x.to("meta"), a.scan(x)[1])
    assert not a.scan(x.requires_grad_())[1].detach().u.requires_grad


# torch.compile -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("training", [True, False])
def test_compile_fullgraph_equals_eager(training, backend):
    """Gradients too: a compiled backward must use the mean that the forward started from, not the updated one."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(5, 6), ss.LIF(backend=backend), nn.Linear(6, 3), ss.LIF(backend=backend)).double()
    model[1].running_mean.fill_(0.4)
    nn.init.normal_(model[0].weight)
    model.train(training)
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    x = current(4, 6, 5, dtype=torch.float64)
    for _ in range(2):
        model.zero_grad()
        twin.zero_grad()
        expected, got = model(x), compiled(x)
        torch.testing.assert_close(got, expected)
        if training:
            expected.square().sum().backward()
            got.square().sum().backward()
            for p, q in zip(model.parameters(), twin.parameters()):
                torch.testing.assert_close(q.grad, p.grad)
    torch.testing.assert_close(twin[1].running_mean, model[1].running_mean)
    assert model[1].running_mean.item() == 0.4 or training


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("init", ["mp", ss.LearnedInit((5,))])
def test_compile_fullgraph_takes_another_batch_size(backend, init):
    """The last batch of an epoch is shorter: shapes become symbols."""
    torch._dynamo.reset()
    lif = ss.LIF(backend=backend, init=init)
    compiled = torch.compile(lif, fullgraph=True, backend="aot_eager")
    for batch in (6, 5, 3):
        x = current(4, batch, 5, seed=batch)
        lif.eval()
        expected = lif(x)
        torch.testing.assert_close(compiled(x), expected)
        lif.train()
        compiled(x).sum().backward()


def test_compile_with_shapes_that_are_symbols_from_the_beginning():
    torch._dynamo.reset()
    lif = ss.LIF()
    twin = copy.deepcopy(lif)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (6, 5):
        x = current(4, batch, 5, seed=batch)
        for layer, call in ((lif, lif), (twin, compiled)):
            layer.zero_grad()
            call(x).sum().backward()
        for p, q in zip(lif.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad)


def test_compile_with_inductor():
    torch._dynamo.reset()
    lif = ss.LIF()
    lif.running_mean.fill_(0.4)
    twin = copy.deepcopy(lif)
    x = current(4, 6, 5)
    torch.compile(twin, fullgraph=True)(x).sum().backward()
    lif(x).sum().backward()
    torch.testing.assert_close(twin.k.grad, lif.k.grad)
    torch.testing.assert_close(twin.w.grad, lif.w.grad)
    torch.testing.assert_close(twin.running_mean, lif.running_mean)
