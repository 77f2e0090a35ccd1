"""`steadyspike gpu bench` and `gpu kernels`, as far as they go without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from steadyspike.analysis.gpu.bench import measure
from steadyspike.analysis.gpu.compiled_kernels import TARGETS
from steadyspike.cli import app


def test_bench_writes_every_row_with_a_time_or_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    done = CliRunner().invoke(
        app, ["gpu", "bench", "--device", "cpu", "--small", "--dtype", "float32", "-o", str(file)]
    )
    assert done.exit_code == 0, done.output
    saved = json.loads(file.read_text())
    assert saved["device"] == "cpu" and saved["environment"]["packages"]["torch"]
    for row in saved["rows"]:
        assert (row["median"] is None) != (row["why_not"] is None), row
    timed = {row["name"] for row in saved["rows"] if row["median"] is not None}
    assert {"steadyspike", "norm and neuron fused", "one after the other", "resnet19_tiny, batch 2"} <= timed
    assert all(row["low"] <= row["median"] <= row["high"] for row in saved["rows"] if row["median"] is not None)


def test_bench_without_a_gpu_says_how_to_try_it(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this computer has a GPU")
    done = CliRunner().invoke(app, ["gpu", "bench", "-o", str(tmp_path / "x.json")])
    assert done.exit_code == 1 and "--device cpu --small" in done.output
    assert not (tmp_path / "x.json").exists()


def test_a_measurement_repeats_and_warms_up() -> None:
    calls: list[int] = []
    times = measure(lambda: calls.append(1), torch.device("cpu"), seconds=0.0)
    assert len(times) == 5 and len(calls) == 8


def test_occupancy_by_hand() -> None:
    """64 warps of 32 registers fill the 65,536 of an A100; 128 registers leave room for 16 warps."""
    a100 = TARGETS["sm_80"]
    assert a100.occupancy(4, 32, 0) == 1.0
    assert a100.occupancy(4, 128, 0) == 0.25
    assert a100.occupancy(4, 32, 81 * 1024) == pytest.approx(2 * 4 / 64)
    assert TARGETS["gfx942"].occupancy(4, 128, 0) == pytest.approx(16 / 32)


def test_the_check_of_devices_says_what_it_needs() -> None:
    if torch.version.cuda or torch.version.hip:
        pytest.skip("this torch knows the device")
    done = CliRunner().invoke(app, ["gpu", "check", "cnn7_tiny"])
    assert done.exit_code == 1 and "install the CUDA build" in done.output
