"""The estimate of a training step's memory against the memory that a real step takes."""

import contextlib
import copy
import json
import os
import resource
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import steadyspike as ss
from steadyspike import use_dense
from steadyspike.kernels.conv import function
from steadyspike.kernels.conv.rule import AVX2
from steadyspike.nn.memory.estimate import memory_estimate
from steadyspike.nn.memory.pack import save_memory
from steadyspike.nn.memory.track import MemoryTracker
from tests.models.members import images, member

# Every tensor gets pages of its own, so that the process shrinks when a tensor goes: the peak is that of the tensors,
# not that of the holes malloc keeps between them.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
RATE = 0.05  # of new networks
MEASURE = """
import gc, json, sys, torch
from steadyspike import models, use_dense
from steadyspike.nn.memory.estimate import memory_estimate
from steadyspike.nn.memory.pack import save_memory
from steadyspike.nn.norm.base import TimeNorm

def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024

results = []
for name, size, options, batch, kind in json.loads(sys.argv[1]):
    model = models.create(name, **options)
    if kind == "lean":
        save_memory(model)
    if kind == "layer by layer":  # a hook that looks between norm and neuron, and dense convolutions
        use_dense(model)
        for norm in model.modules():
            if isinstance(norm, TimeNorm):
                norm.register_forward_hook(lambda *_: None)
    x = torch.randn(batch, model.in_channels, size, size)
    estimate = memory_estimate(model, x, optimizer="none")
    model(x[:1]).mean().backward()
    model.zero_grad(set_to_none=True)
    gc.collect()
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    model(x).mean().backward()
    step = status("VmHWM") - before
    results.append((estimate.peak - estimate.parameters - x.nbytes, step))
print(json.dumps(results))
"""
CASES = [
    ("cnn7", 48, {"width": 0.5, "timesteps": 2}, 4, "plain"),
    ("cnn7", 48, {"width": 0.5, "timesteps": 4}, 4, "lean"),
    ("resnet19", 32, {"width": 0.25, "timesteps": 2}, 4, "plain"),
    ("resnet19", 32, {"width": 0.25, "timesteps": 4}, 2, "plain"),
    ("resnet19", 32, {"width": 0.25, "timesteps": 4}, 2, "lean"),
    ("resnet19", 32, {"width": 0.25, "timesteps": 4}, 2, "layer by layer"),
]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures by /proc")
def test_within_twenty_per_cent_of_the_process():
    """Activations, gradients and temporaries: the part that has to be estimated; parameters are simply counted."""
    command = [sys.executable, "-c", MEASURE, json.dumps(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **MALLOC})
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    for case, (estimated, measured) in zip(CASES, results):
        assert 0.8 < estimated / measured < 1.2, (case, estimated, measured)
    plain, lean, layer_by_layer = (measured for _, measured in results[3:])
    assert max(lean, plain) < 0.7 * layer_by_layer


def tracked_peak(model, x):
    """The same by counting the tensors of a real step."""
    model.zero_grad(set_to_none=True)
    with MemoryTracker() as tracker:
        for t in (*model.parameters(), *model.buffers(), x):
            tracker.ignore(t)
        model(x).mean().backward()
    model.zero_grad(set_to_none=True)
    return tracker.peak


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["cnn7_tiny", "resnet19_tiny", "sew_resnet34_tiny", "spikformer_tiny"])
def test_the_fake_step_counts_what_the_real_one_does(name, channels_last, lean):
    model, x = member(name), images(name, 32)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    if lean:
        save_memory(model)
    estimate = memory_estimate(model, x, optimizer="none", firing_rate=RATE)
    counted, tracked = estimate.peak - estimate.parameters - x.nbytes, tracked_peak(model, x)
    # Spikes that no scan has noted (q, k and v, or behind a pool) are bits after save_memory; only values could tell.
    assert 0.95 * tracked <= counted <= (1.15 if lean else 1.05) * tracked


def test_spikes_are_kept_as_bits_at_any_firing_rate(monkeypatch):
    """By one rule on every machine: of others, so small a network may be dense at any rate."""
    monkeypatch.setattr(function, "COSTS", dict.fromkeys(function.COSTS, AVX2))
    model, x = member("resnet19_tiny"), images("resnet19_tiny", 32)
    saved = [memory_estimate(model, x, firing_rate=rate).saved for rate in (RATE, 0.2, 1.0)]
    assert saved[0] == saved[1] == saved[2] == memory_estimate(model, x).saved
    assert saved[0] < 0.6 * memory_estimate(use_dense(copy.deepcopy(model)), x).saved
    with pytest.raises(ValueError, match="firing_rate is a share of neurons and must be from 0 to 1; got 20"):
        memory_estimate(model, x, firing_rate=20)


def test_the_model_stays_as_it_is():
    model, x = member("cnn7_tiny").eval(), images("cnn7_tiny", 4)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    memory_estimate(model, x)
    assert not model.training and all(p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(model(x), model(x))


def test_it_grows_with_time_and_batch_and_needs_no_memory_itself():
    model = member("cnn7_tiny")

    def saved(steps, batch):
        return memory_estimate(model, torch.empty(steps, batch, 2, 16, 16, device="meta")).saved

    assert saved(8, 4) == pytest.approx(2 * saved(4, 4), rel=0.02)
    assert saved(4, 8) == pytest.approx(2 * saved(4, 4), rel=0.02)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    estimate = memory_estimate(model, torch.empty(10, 15_000, 2, 16, 16, device="meta"))
    assert estimate.peak > 2**32
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # KiB


def test_parts_and_optimizers():
    model, x = nn.Sequential(nn.Linear(10, 20), ss.LIF()), torch.randn(4, 3, 10)
    parameters = 10 * 20 + 20 + 2
    sizes = {name: memory_estimate(model, x, optimizer=name) for name in ("none", "sgd", "adam")}
    assert sizes["none"].gradients == 4 * parameters
    assert sizes["none"].parameters == 4 * (parameters + 1)
    assert [e.optimizer for e in sizes.values()] == [0, 4 * parameters, 8 * parameters]
    assert sizes["adam"].peak - sizes["none"].peak == 8 * parameters
    assert "peak" in str(sizes["sgd"]) and "MiB" in str(sizes["sgd"])
    with pytest.raises(ValueError, match="unknown optimizer 'lion'; known: none, sgd"):
        memory_estimate(model, x, optimizer="lion")


class Wrapped(nn.Module):
    """A small network, run by ``run(network, x)``."""

    def __init__(self, run, lean=False):
        super().__init__()
        self.net, self.run = member("resnet19_tiny"), run
        if lean:
            save_memory(self)

    def forward(self, x):
        return self.run(self.net, x)


def stages(net, x, **options):
    """Activation checkpointing stage by stage."""
    y = net.stem(net.frames(x))
    for stage in net.body:
        y = checkpoint(stage, y, **options)
    return net.head(y)


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(use_reentrant, lean):
    model, x = Wrapped(lambda net, x: stages(net, x, use_reentrant=use_reentrant), lean), images("resnet19_tiny", 32)
    estimate = memory_estimate(model, x, optimizer="none", firing_rate=RATE)
    assert estimate.saved < 0.5 * memory_estimate(use_dense(copy.deepcopy(model.net)), x, firing_rate=RATE).saved
    assert estimate.peak - estimate.parameters - x.nbytes == pytest.approx(tracked_peak(model, x), rel=0.05)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
def test_it_is_the_estimate_of_training_wherever_it_is_asked_for(around):
    model, x = member("cnn7_tiny"), images("cnn7_tiny", 4)
    want = memory_estimate(model, x)
    with around():
        assert memory_estimate(model, x) == want
        assert memory_estimate(model, images("cnn7_tiny", 4)) == want


@pytest.mark.parametrize("lean", [False, True])
def test_a_model_without_memory(lean):
    """On the meta device there is no kernel; the estimate is that of the CPU."""
    model = member("resnet19_tiny")
    if lean:
        save_memory(model)
    x = torch.empty(8, 3, 16, 16, device="meta")
    want = memory_estimate(model, x)
    assert memory_estimate(copy.deepcopy(model).to("meta"), x) == want
    assert memory_estimate(model, images("resnet19_tiny", 8)) == want


def test_a_model_that_is_not_trained():
    model, x = member("cnn7_tiny"), images("cnn7_tiny", 32)
    trained = memory_estimate(model, x)
    frozen = memory_estimate(model.requires_grad_(False), x)
    assert frozen.gradients == frozen.optimizer == 0
    assert frozen.saved < 0.05 * trained.saved and frozen.peak < trained.peak


def test_what_cannot_be_estimated_says_so():
    x = images("resnet19_tiny", 4)
    with pytest.raises(TypeError, match=r"example must be one batch as a single tensor; got tuple"):
        memory_estimate(member("resnet19_tiny"), (4, 3, 16, 16))
    with pytest.raises(ValueError, match=r"lazy layers .* run it once"):
        memory_estimate(nn.Sequential(nn.LazyLinear(4), ss.LIF()), torch.randn(4, 2, 8))
    for decide in (lambda y: y.max().item() > 3, lambda y: y[y > 0].numel()):
        with pytest.raises(RuntimeError, match="the model uses the values of its tensors to decide"):
            memory_estimate(Wrapped(lambda net, x, decide=decide: net(x) * bool(decide(x))), x)
