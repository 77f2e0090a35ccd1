"""Converted and stabilised models with what people use of torch: export, compile, functional_call, DDP, FSDP2, EMA."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import steadyspike as ss
from tests.interop.compare import current

pytest.importorskip("spikingjelly.activation_based", reason="SpikingJelly is not installed")
from spikingjelly.activation_based import functional, layer, neuron, surrogate

pytestmark = pytest.mark.peer
T, B = 4, 3
CHANGES = pytest.mark.parametrize("change", [ss.convert, ss.stabilize])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(
            layer.Conv2d(2, 4, 3, padding=1),
            layer.BatchNorm2d(4),
            neuron.LIFNode(2.0, True, 0.3, surrogate_function=surrogate.ATan()),
        ),
        *(layer.Flatten(), layer.Linear(64, 5), neuron.ParametricLIFNode(v_threshold=0.3, v_reset=None)),
    )
    functional.set_step_mode(model, "m")
    nn.init.normal_(model[4].weight, std=0.6)
    return model


def example() -> Tensor:
    return 2 * current(T, B, 2, 4, 4).float()


def gradients(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    out = model(x)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return out.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same(a: tuple[Tensor, list[Tensor]], b: tuple[Tensor, list[Tensor]]) -> None:
    assert bool(a[0].any()) and len(a[1]) == len(b[1])
    for x, y in zip((a[0], *a[1]), (b[0], *b[1])):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@CHANGES
def test_export(change) -> None:
    model = change(network(), report=None).eval()
    exported = torch.export.export(model, (example(),))
    torch.testing.assert_close(exported.module()(example()), model(example()))


@pytest.mark.parametrize(("change", "backend"), [(ss.convert, "eager"), (ss.stabilize, "aot_eager")])
def test_compile_in_one_graph(change, backend: str) -> None:
    model = change(network(), report=None)
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        assert_same(gradients(twin, example()), gradients(compiled, example()))
    if change is ss.stabilize:
        torch.testing.assert_close(model[2].running_mean, twin[2].running_mean)


@CHANGES
def test_functional_call(change) -> None:
    model = change(network(), report=None).eval()
    other = {n: p + 0.2 for n, p in model.named_parameters()}
    expected = copy.deepcopy(model)
    with torch.no_grad():
        for n, p in expected.named_parameters():
            p.copy_(other[n])
    torch.testing.assert_close(functional_call(model, other, (example(),)), expected(example()))


@CHANGES
def test_moving_average_of_the_weights(change) -> None:
    model = change(network(), report=None)
    gradients(model, example())
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    average.update_parameters(model)
    average.update_parameters(model)
    model.eval(), average.eval()
    assert average(example()).shape == model(example()).shape


@CHANGES
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(change, reentrant: bool) -> None:
    """The recomputed forward starts at the same mean and does not count twice (batch norm's do, as in torch)."""
    model = change(network(), report=None)
    twin = copy.deepcopy(model)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x.requires_grad_(), use_reentrant=reentrant)

    for _ in range(2):
        assert_same(gradients(twin, example()), gradients(Checkpointed(), example()))
    if change is ss.stabilize:
        assert torch.equal(model[2].running_mean, twin[2].running_mean)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@CHANGES
def test_ddp(group: None, change) -> None:
    model = change(network(), report=None)
    twin = copy.deepcopy(model)
    wrapped = nn.parallel.DistributedDataParallel(model)
    for _ in range(2):
        assert_same(gradients(twin, example()), gradients(wrapped, example()))
        functional.reset_net(wrapped)


@CHANGES
@pytest.mark.filterwarnings("ignore")
def test_fsdp2(group: None, change) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # FSDP2 refuses scalar parameters, such as the w of SpikingJelly's ParametricLIFNode, converted or not.
    plain = nn.Sequential(*network()[:5], neuron.LIFNode(v_threshold=0.3, step_mode="m"))
    model = change(plain, report=None)
    twin = copy.deepcopy(model)
    mesh = init_device_mesh("cpu", (1,))
    for child in (model[4], model[2]):
        fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)
    out = model(example())
    assert torch.equal(out, twin(example())) and bool(out.any())
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_half_precision_and_autocast() -> None:
    model = ss.stabilize(network(), report=None)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(example())
    assert out.dtype == torch.bfloat16 and bool(out.isfinite().all())
    half = ss.stabilize(network(), report=None).bfloat16()
    out = half(example().bfloat16())
    out.float().sum().backward()
    assert half[2].running_mean.dtype == torch.float32
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in half.parameters())


def test_a_model_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = nn.Sequential(layer.Linear(6, 6), neuron.ParametricLIFNode(step_mode="m"))
    ss.stabilize(model, report=None)
    assert all(p.is_meta for p in model.parameters()) and model(torch.empty(4, 2, 6, device="meta")).shape == (4, 2, 6)
