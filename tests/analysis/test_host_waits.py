"""Training steps read nothing from the device and repeat themselves; what would make the host wait is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import steadyspike as ss
from steadyspike.analysis.gpu import device_check
from steadyspike.analysis.gpu.device_check import check_network, gradients
from steadyspike.analysis.gpu.host_waits import HostWaits

STEP = """
import torch, steadyspike as ss
from torch import nn
from steadyspike.analysis.gpu.host_waits import HostWaits
from steadyspike.kernels.scan.contract import Affine, Call, OutputGradients, Scan
from steadyspike.kernels.scan.triton.backend import TritonBackend
from steadyspike.kernels.scan.triton.norm_backend import batch_moments
from steadyspike.core.spec import ScanSpec

# A step of a network as a GPU computes it, here in the interpreter.
model = ss.models.create("sew_resnet34_tiny", timesteps=2, num_classes=3)
for neuron in ss.nn.neuron.neurons(model).values():
    neuron.backend = "triton"
optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
x, y = torch.randn(2, 2, 3, 32, 32), torch.zeros(2, dtype=torch.long)
with HostWaits() as waits:
    nn.functional.cross_entropy(model(x).mean(0), y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
assert not waits.seen, waits.seen

# What the operators do inside, which no mode sees through them.
one, channels, x = torch.ones(1), torch.ones(3), torch.randn(2, 2, 3, 4)
scan = Scan(x, 0 * one, one, 0.5 * one, Call.of(ScanSpec(), backend="triton"), Affine(channels, channels))
with HostWaits() as waits:
    batch_moments(x)
    TritonBackend((512, 4)).forward(scan)
    TritonBackend((512, 4)).affine_backward(scan, OutputGradients(x), False)
assert not waits.seen, waits.seen
"""

# A CUDA graph replays the operations of one step with the numbers and the addresses that they had then.
REPEATED = """
import torch, steadyspike as ss
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from steadyspike.kernels.scan.triton.launch import Launch

class Recorded(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append((str(func), [described(a) for a in tree_leaves((args, kwargs))]))
        return func(*args, **(kwargs or {}))

def described(value):
    if isinstance(value, Tensor):
        return (tuple(value.shape), value.stride(), value.dtype)
    return value if isinstance(value, (int, float, bool, str, type(None))) else str(value)

launch = Launch.run

def run(self, device, *rest):
    record.calls.append((self.kernel.__name__, [(k, described(v)) for k, v in self.arguments.items()]))
    launch(self, device, *rest)

Launch.run = run
model = ss.models.create("sew_resnet34_tiny", timesteps=2, num_classes=3)
for neuron in ss.nn.neuron.neurons(model).values():
    neuron.backend = "triton"
optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
x, y = torch.randn(2, 2, 3, 32, 32), torch.zeros(2, dtype=torch.long)
steps, addresses = [], []
for step in range(4):
    with Recorded() as record:
        nn.functional.cross_entropy(model(x).mean(0), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    steps.append(record.calls)
    addresses.append([t.data_ptr() for t in (*model.parameters(), *model.buffers())])
assert any("backward_kernel" in name for name, _ in steps[3])
# The first step makes gradients and momentum.
for one, other in zip(steps[2], steps[3], strict=True):
    assert one == other, (one, other)
assert addresses[0] == addresses[3]
assert not any("lift_fresh" in name for name, _ in steps[3])  # torch.tensor(...)
"""


@pytest.mark.parametrize("script", [STEP, REPEATED], ids=["reads nothing from the device", "repeats itself"])
def test_a_training_step(script: str) -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command, root = [sys.executable, "-c", script], Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.to("meta"),
        lambda x: torch.empty(3, device="meta").copy_(x),
        lambda x: x.unique(),
        lambda x: torch.ones(3, device="meta")[torch.tensor([0, 2])],
        lambda x: torch.ones(3, device="meta").index_put_([torch.tensor([0, 2])], torch.ones(2, device="meta")),
    ],
)
def test_what_makes_the_host_wait_is_noticed(wait) -> None:  # type: ignore[no-untyped-def]
    with HostWaits() as waits:
        wait(torch.ones(3))
    assert waits.seen


def test_plain_arithmetic_makes_nothing_wait() -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with HostWaits() as waits:
        layer(torch.randn(8, 4)).square().mean().backward()
        torch.full((3,), 0.5).to(torch.bfloat16)
    assert not waits.seen


def test_gradients_node_by_node_are_those_of_the_engine() -> None:
    torch.manual_seed(0)
    model = ss.models.create("resnet19_tiny", timesteps=2, num_classes=3)
    parameters = list(model.parameters())
    loss = model(torch.randn(2, 3, 32, 32)).square().sum()
    got = gradients(loss, parameters)
    want = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    assert [g is None for g in got] == [w is None for w in want] and any(w is not None for w in want)
    for g, w in zip(got, want):
        if w is not None:
            torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-6)


def test_a_tensor_on_the_wrong_device_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here on the device "cpu", with a network that makes a tensor elsewhere."""
    assert check_network("cnn7_tiny", mixed=False, device="cpu") == []
    original = ss.models.create

    def elsewhere(name: str, **options: object) -> nn.Module:
        model = original(name, **options)  # type: ignore[arg-type]
        model.register_forward_hook(lambda *_: model.register_buffer("stray", torch.empty(1, device="meta")))
        return model

    monkeypatch.setattr(device_check, "create", elsewhere)
    assert check_network("cnn7_tiny", mixed=False, device="cpu") == ["stray is on meta"]
