"""Parameter counts of the official networks, and the number of neuron layers."""

from __future__ import annotations

import pytest
import torch

from steadyspike import models
from tests.models.members import weights_and_neurons

# Weights, norm parameters and biases, without the two parameters of each LIF and without modules of the official code
# that never run (docs/models.md).
COUNTS = [
    ("resnet19", {}, 12_502_090, 17),
    ("resnet19", {"num_classes": 100}, 12_548_260, 17),
    ("resnet19", {"in_channels": 2, "image_size": 48}, 12_501_514, 17),
    ("resnet19", {"head": "tet"}, 12_630_858, 18),
    ("resnet19", {"head": "tet", "num_classes": 100}, 12_653_988, 18),
    ("resnet19", {"head": "tebn", "stem": 128}, 14_664_074, 17),
    ("resnet19", {"head": "tebn", "stem": 128, "num_classes": 100}, 14_687_204, 17),
    ("cnn7", {}, 10_557_194, 5),
    ("cnn7", {"conv_bias": True}, 10_558_026, 5),
    ("cnn7", {"spiking_fc": True}, 10_557_194, 6),
    ("vggsnn", {}, 9_271_498, 8),
    ("vggsnn", {"stride_pool": True}, 9_271_498, 8),
    ("resnet34", {}, 21_797_672, 33),
    ("sew_resnet34", {}, 21_797_672, 36),
    ("sew_dvs", {}, 1_192_202, 16),
    ("ms_resnet18", {}, 11_693_736, 17),
    ("ms_resnet34", {}, 21_801_896, 33),
    ("ms_resnet104", {}, 77_350_504, 103),
    ("spikformer_dvs", {}, 2_566_666, 19),
    ("spikformer_8_384", {}, 16_816_024, 61),
    ("spikformer_8_512", {}, 29_689_384, 61),
    ("spikformer_8_768", {}, 66_338_632, 61),
    ("spikformer_cifar", {}, 9_324_730, 33),
    ("spikformer_cifar", {"num_classes": 100}, 9_359_380, 33),
    ("spikingformer_dvs", {}, 2_566_666, 18),
    ("spikingformer_8_384", {}, 16_816_024, 60),
    ("spikingformer_8_512", {}, 29_689_384, 60),
    ("spikingformer_8_768", {}, 66_338_632, 60),
    ("spikingformer_cifar", {}, 9_320_122, 32),
    ("spikingformer_cifar", {"num_classes": 100}, 9_354_772, 32),
    ("spikingformer_cifar_4_256", {}, 4_152_106, 32),
    ("spikingformer_cifar_2_384", {}, 5_762_746, 18),
    ("sdt_dvs", {}, 2_566_666, 19),
    ("sdt_8_384", {}, 16_816_536 - 512, 61),
    ("sdt_8_512", {}, 29_689_896 - 512, 61),
    ("sdt_8_768", {}, 66_339_144 - 512, 61),
    ("sdt_10_512", {}, 36_005_416, 75),
    ("sdt_cifar_2_256", {}, 2_566_954, 19),
    ("sdt_cifar_2_512", {}, 10_233_418, 19),
    ("qkformer_dvs", {}, 1_504_138, 21),
    ("qkformer_gesture", {}, 1_999_371, 21),
    ("qkformer_10_384", {}, 16_473_688, 77),
    ("qkformer_10_512", {}, 29_079_336, 77),
    ("qkformer_10_768", {}, 64_962_760, 77),
    ("qkformer_cifar", {}, 6_706_234, 35),
    ("qkformer_cifar", {"num_classes": 100}, 6_740_884, 35),
    ("spikingresformer_ti", {}, 11_180_992, 38),
    ("spikingresformer_s", {}, 17_813_824, 38),
    ("spikingresformer_m", {}, 35_601_472, 38),
    ("spikingresformer_l", {}, 60_375_680, 38),
    ("spikingresformer_cifar", {}, 10_793_152, 38),
    ("spikingresformer_cifar", {"num_classes": 100}, 10_827_712, 38),
    ("spikingresformer_gesture", {}, 2_709_792, 38),
]


@pytest.mark.parametrize(("name", "options", "weights", "lifs"), COUNTS)
def test_as_many_parameters_as_the_official_code(name: str, options: dict, weights: int, lifs: int) -> None:
    with torch.device("meta"):
        model = models.create(name, **options)
    assert weights_and_neurons(model) == (weights, lifs)


def test_vgg9_by_arithmetic() -> None:
    plan = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 256)]
    convs = sum(9 * i * o + o + 2 * o for i, o in plan)
    linears = (4096 * 1024 + 1024) + (1024 * 100 + 100)
    with torch.device("meta"):
        assert weights_and_neurons(models.create("vgg9")) == (convs + linears, 7)


def test_tied_thresholds_count_once() -> None:
    with torch.device("meta"):
        tied = models.create("sew_resnet34", tie_stream_threshold=True)
    writers = 4 + 5 + 7 + 4
    assert sum(p.numel() for p in tied.parameters()) == 21_797_672 + 2 * 36 - (writers - 4)
