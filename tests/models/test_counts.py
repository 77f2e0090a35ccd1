"""Parameter counts of the official networks, and the number of neuron layers."""

from __future__ import annotations

import pytest
import torch

from steadyspike import models
from tests.models.members import weights_and_neurons

# Weights, norm parameters and biases, without the two parameters of each LIF.
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
