"""`check_model` notes settings that trained worse in docs/results.md, and no others."""

import pytest
import torch
from torch import nn

import steadyspike as ss


class Deep(nn.Sequential):
    """Linear, norm, neuron, seven times, [T, B, 8] in."""

    def __init__(self, layers=7, gain=1.0, **options):
        super().__init__()
        for i in range(layers):
            norm = nn.BatchNorm1d(8)
            nn.init.constant_(norm.weight, gain)
            self.add_module(f"norm{i}", ss.nn.Folded(nn.Sequential(nn.Linear(8, 8), norm)))
            self.add_module(f"lif{i}", ss.LIF(**options))


def notes(model, steps=2):
    torch.manual_seed(0)
    report = ss.check_model(model, 2 * torch.randn(steps, 32, 8))
    return [check.message for check in report.notes]


@pytest.mark.parametrize(
    ("options", "steps", "actual"),
    [
        ({}, 2, False),
        ({"init": "zero"}, 2, True),
        ({"init": "zero"}, 4, True),
        ({"init": "zero"}, 8, False),  # long enough to forget the start
        ({"init": "zero", "layers": 3}, 2, False),  # not measured
    ],
)
def test_a_zero_start_with_few_steps_in_a_deep_network_is_noted(options, steps, actual):
    printed = notes(Deep(**options), steps)
    assert any("init='mp'" in text for text in printed) == actual, printed


@pytest.mark.parametrize(
    ("options", "actual"),
    [
        ({"threshold": 0.1}, True),
        ({"threshold": 0.1, "gradient": "rs"}, True),
        ({"threshold": 0.1, "gradient": "as"}, False),  # its window does not shrink with V
        ({"threshold": 0.1, "gain": 0.1}, False),  # the norm follows V
        ({"threshold": 1.0}, False),
    ],
)
def test_a_window_that_is_small_beside_the_input_is_noted(options, actual):
    printed = notes(Deep(**options))
    assert any("as wide as V" in text for text in printed) == actual, printed


def test_a_note_is_no_failure():
    report = ss.check_model(Deep(init="zero"), 2 * torch.randn(2, 32, 8))
    (note,) = report.notes
    assert note.ok and note not in report.failures and "note  settings" in str(report)
