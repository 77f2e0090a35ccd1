"""Spiking transformers: streams, thresholds of attention neurons, image sizes, and QKFormer's published defect."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike import models
from steadyspike.models.blocks.attention.attention_plan import AttentionPlan
from steadyspike.models.blocks.attention.self_attention import SelfAttention
from steadyspike.models.blocks.transformer import BatchAsTime, SpikeSumBlock
from steadyspike.models.model_registry import entry
from steadyspike.nn.factory import Site
from steadyspike.nn.memory.pack import save_memory
from steadyspike.nn.neuron import neurons
from steadyspike.train.build.build_network import recompute_blocks
from tests.models.members import TINY, clip, images, member, one_step

FAMILIES = ("spikformer", "spikformer_v2", "spikingformer", "sdt", "qkformer", "spikingresformer")
SUMS = ("spikformer_tiny", "spikformer_v2_tiny", "qkformer_tiny")
ZERO = partial(ss.LIF, init="zero")


def transformers(suffix: str) -> list[str]:
    return [name for name in TINY if entry(name).family in FAMILIES and name.endswith(suffix)]


@pytest.mark.parametrize(
    ("name", "writers"),
    [
        ("spikformer_dvs", [6]),
        ("spikformer_8_384", [18]),
        ("qkformer_10_384", [4, 6, 16]),
        ("qkformer_dvs", [4, 4]),
        ("spikformer_v2_8_512", [2, 2, 2, 19]),
        ("spikingformer_8_384", []),
        ("sdt_8_384", []),
        ("spikingresformer_ti", []),
    ],
)
def test_streams_have_the_writers_of_the_official_networks(name: str, writers: list[int]) -> None:
    with torch.device("meta"):
        model = models.create(name)
    assert [len(stream) for stream in model.streams] == writers
    assert all(layer in neurons(model) for stream in model.streams for layer in stream)


@pytest.mark.parametrize("name", SUMS)
def test_a_tied_stream_is_a_count_times_v(name: str) -> None:
    model = member(name, tie_stream_threshold=True)
    one_step(model, images(name))
    for value, stream in zip((0.4, -0.3, 0.2, 0.1), model.streams):
        nn.init.constant_(model.get_parameter(f"{stream[0]}.k"), value)
    seen = []
    for block in (m for m in model.modules() if isinstance(m, SpikeSumBlock)):
        block.register_forward_hook(lambda m, args, out: seen.append(out / m.lif.threshold))
    model(images(name))
    assert seen
    for count in seen:
        torch.testing.assert_close(count, count.round(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("neuron", ["lif", "plif", ss.LIF, partial(ss.LIF, tau=1.5)])
def test_attention_neurons_start_at_their_own_threshold(neuron: object) -> None:
    model = models.create("spikformer_tiny", neuron=neuron)
    start = {name: layer.threshold.item() for name, layer in neurons(model).items()}
    assert [name for name, v in start.items() if v == pytest.approx(0.5)] == ["body.5.attention.lif"]
    same = models.create("spikformer_tiny", neuron=neuron, attn_v_init=None)
    assert {round(layer.threshold.item(), 5) for layer in neurons(same).values()} == {1.0}


def test_a_neuron_that_takes_no_threshold_is_refused_with_the_way_out() -> None:
    class PerPixel:
        def at(self, site: Site) -> nn.Module:
            return ss.LIF(init=ss.LearnedInit((site.channels, *site.size)))

    for neuron in (PerPixel(), lambda: ss.LIF(tau=1.5)):
        with pytest.raises(ValueError, match=r"takes no threshold; .* attn_v_init=None"):
            models.create("spikformer_tiny", neuron=neuron)
        for name in transformers("_tiny"):
            options = {"attn_v_init": None, **({"head_v_init": None} if name == "sdt_tiny" else {})}
            assert member(name, neuron=neuron, **options)(images(name)).isfinite().all()


@pytest.mark.parametrize("name", transformers("_tiny"))
def test_any_image_that_the_stride_allows(name: str) -> None:
    size = (32, 48)
    model = member(name, image_size=size, in_channels=2, num_classes=3, timesteps=2)
    assert model(torch.randn(2, 2, *size)).shape == (2, 2, 3)
    # Nothing is tied to one size: no positional table, and attention counts its tokens.
    assert model(torch.randn(2, 2, 2, 48, 32)).shape == (2, 2, 3)


@pytest.mark.parametrize("name", transformers("_tiny"))
def test_depth_heads_and_ratio_are_options(name: str) -> None:
    old = entry(name).options["depth"]
    longer = old + 1 if isinstance(old, int) else tuple(n + 1 for n in old)
    deeper = member(name, depth=longer)
    blocks = [m for m in deeper.body if hasattr(m, "mlp")]
    assert len(blocks) == (longer if isinstance(longer, int) else sum(longer))
    wider = member(name, mlp_ratio=8.0)
    assert sum(p.numel() for p in wider.parameters()) > sum(p.numel() for p in member(name).parameters())
    with pytest.raises(ValueError, match="depth"):
        models.create(name, depth=0 if isinstance(old, int) else (0, *old[1:]))
    if name != "spikingresformer_tiny":
        with pytest.raises(ValueError, match="heads=5 cannot divide"):
            models.create(name, heads=5, width=1.0)
        with pytest.raises(ValueError, match="heads must be a whole number above 0, got 0"):
            models.create(name, heads=0)
        with pytest.raises(ValueError, match="attn_scale=nan is not a finite number"):
            AttentionPlan(scale=float("nan"))


def test_wrong_options_say_what_is_known() -> None:
    with pytest.raises(ValueError, match="pools must be a text of 4 characters"):
        models.create("spikformer_tiny", pools="012")
    with pytest.raises(ValueError, match="unknown form 'mnist'; known: imagenet, cifar, dvs"):
        models.create("qkformer_tiny", form="mnist")
    with pytest.raises(ValueError, match="image_size that is a multiple"):
        models.create("spikingresformer_ti", image_size=200)


@pytest.mark.parametrize("training", [True, False])
def test_images_that_are_smaller_than_a_patch_are_named(training: bool) -> None:
    model = member("spikingresformer_tiny").train(training)
    with pytest.raises(ValueError, match=r"^the image is too small for this network: 1x1 is left .* patches of 4x4"):
        model(torch.randn(2, model.in_channels, 1, 1))


def test_qkformer_is_right_by_default_and_its_defect_is_found() -> None:
    name = "qkformer_tiny"
    report = ss.check_model(member(name, neuron=ZERO), images(name), batch_dim=0)
    assert report.ok, str(report)
    legacy = member(name, neuron=ZERO, legacy_tb_lif=True)
    actual = ss.check_model(legacy, images(name), batch_dim=0)
    (leak,) = [c for c in actual.failures if c.name == "batch"]
    assert leak.layer is not None and leak.layer.startswith("body.5.lif")
    with pytest.raises(ValueError, match=r"MP-Init's mean .* has no meaning"):
        models.create(name, legacy_tb_lif=True)


def test_the_defect_is_a_scan_over_time_and_batch() -> None:
    neuron = ZERO(threshold=0.4)
    x = torch.randn(3, 4, 2, 5, 5)
    out = BatchAsTime(neuron)(x)
    assert torch.equal(out.flatten(0, 1), neuron(x.flatten(0, 1)))
    assert not torch.equal(out, neuron(x))
    alone = member("qkformer_tiny", neuron=ZERO, legacy_tb_lif=True, depth=(1, 1, 2))
    assert [isinstance(m.lif, BatchAsTime) for m in alone.body if isinstance(m, SpikeSumBlock)] == [
        False,
        False,
        True,
        True,
    ]
    assert all(
        isinstance(m.attention, SelfAttention) for m in alone.body if isinstance(getattr(m, "lif", 0), BatchAsTime)
    )


def test_official_heads_and_scales() -> None:
    with torch.device("meta"):
        scales = {
            n: models.create(n).body[-1].attention for n in ("spikformer_dvs", "spikformer_8_384", "qkformer_dvs")
        }
    assert {n: (a.heads, a.scale) for n, a in scales.items()} == {
        "spikformer_dvs": (16, 0.25),
        "spikformer_8_384": (8, 0.125),
        "qkformer_dvs": (16, 0.125),
    }


@pytest.mark.parametrize("name", transformers("_tiny"))
def test_saved_and_recomputed_memory_train_the_same(name: str) -> None:
    x, results = images(name), []
    for change in (lambda model: None, save_memory, recompute_blocks):
        model = member(name)
        model(x)  # so that running statistics move on from somewhere
        change(model)
        out = model(x)
        out.square().mean().backward()
        results.append((out.detach(), {n: p.grad for n, p in model.named_parameters()}, model.state_dict()))
    for out, grads, state in results[1:]:
        assert torch.equal(out, results[0][0])
        assert all(torch.equal(state[key], value) for key, value in results[0][2].items())
        for n, g in results[0][1].items():
            torch.testing.assert_close(grads[n], g, rtol=1e-4, atol=1e-7, msg=n)
    assert ss.memory_estimate(member(name), x).peak > 0


@pytest.mark.parametrize("name", ["spikformer_tiny", "qkformer_tiny"])
def test_who_looks_at_the_attention_sees_its_current_and_changes_nothing(name: str) -> None:
    """Without a hook the projection's norm is part of the next neuron's scan."""
    model, x = member(name), clip(name)
    blocks = [m for m in model.modules() if isinstance(m, SpikeSumBlock)]
    seen: list[Tensor] = []
    for mode in (True, False):
        model.train(mode)
        start = {key: value.clone() for key, value in model.state_dict().items()}
        expected, state = model(x), {key: value.clone() for key, value in model.state_dict().items()}
        model.load_state_dict(start)
        seen.clear()
        handles = [b.attention.register_forward_hook(lambda m, a, out: seen.append(out)) for b in blocks]
        torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)
        for key, value in model.state_dict().items():
            torch.testing.assert_close(value, state[key], msg=key)
        assert len(seen) == len(blocks)
        for handle in handles:
            handle.remove()
