"""The Triton backend: interpreted kernels in a process of their own, plans, reasons, and a card if there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from steadyspike.core.spec import ScanSpec
from steadyspike.core.surrogate import SURROGATES, kernel_code
from steadyspike.kernels.scan.contract import Call, OutputGradients, Scan
from steadyspike.kernels.scan.triton.backend import TritonBackend, backward_launch
from steadyspike.kernels.scan.triton.launch import (
    BACKWARD_WORDS,
    CONFIGS,
    SLOT,
    Tiles,
    plan_segments,
    plan_tiles,
    register_limit,
    register_need,
    sizes_to_try,
)
from tests.kernels.scan_cases import TUNED, Case, check_against_reference, few_specs, parameter_cases, size_cases

ROOT = Path(__file__).parents[2]


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)


def run_interpreted(selection: str, file: str = "tests/kernels/triton_interpreted.py") -> None:
    pytest.importorskip("triton")
    done = python("-m", "pytest", file, "-m", selection, "-p", "no:cacheprovider", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "passed" in done.stdout or "[100%]" in done.stdout


def test_kernels_equal_the_reference_in_the_interpreter() -> None:
    run_interpreted("not slow")


@pytest.mark.slow
def test_kernels_equal_the_reference_for_every_spec_in_the_interpreter() -> None:
    run_interpreted("slow")


def test_importing_the_library_does_not_import_triton() -> None:
    # A plain torch import may load triton by itself; what counts is that the library adds nothing to it.
    script = "import sys, torch; before = 'triton' in sys.modules; import steadyspike.kernels.scan.triton.backend"
    done = python("-c", script + "; sys.exit(('triton' in sys.modules) != before)")
    assert done.returncode == 0, done.stderr


class TestReasons:
    def test_cpu_tensor(self) -> None:
        pytest.importorskip("triton")
        assert "on cpu" in str(TritonBackend().why_not(torch.zeros(2, 3)))

    def test_no_triton(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "triton", None)
        assert str(TritonBackend().why_not(torch.zeros(2, 3))).startswith("triton is not installed")

    def test_old_triton(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pytest.importorskip("triton"), "__version__", "3.2.0+git1")
        assert TritonBackend().why_not(torch.zeros(2, 3)) == "triton 3.2.0+git1 is too old, 3.3 or newer is needed"


class TestPlans:
    def test_nothing_per_channel_is_one_flat_row(self) -> None:
        assert plan_tiles(torch.empty(2, 3, 4, 5), by_channel=False) == Tiles(60, 1, 1, 1)

    @pytest.mark.parametrize(
        ("shape", "order", "expected"),
        [
            ((2, 3, 8, 4, 4), None, Tiles(48, 8, 16, 1)),
            ((2, 3, 8, 4, 4), (0, 1, 3, 4, 2), Tiles(48, 8, 1, 8)),
            ((2, 3, 100), None, Tiles(3, 100, 1, 32)),
            ((2, 3, 5, 2), None, Tiles(6, 5, 2, 8)),
            ((2, 3, 1, 7), None, Tiles(21, 1, 1, 1)),
        ],
    )
    def test_channels(self, shape: tuple[int, ...], order: tuple[int, ...] | None, expected: Tiles) -> None:
        x = torch.empty(shape)
        if order is not None:
            x = torch.empty([shape[i] for i in order]).permute([order.index(i) for i in range(len(order))])
        assert x.shape == shape
        assert plan_tiles(x, by_channel=True) == expected

    def test_programs_and_slots_cover_every_element(self) -> None:
        for tiles in (Tiles(257, 3, 16, 1), Tiles(9, 40, 1, 32), Tiles(5000, 1, 1, 1)):
            for block, _ in CONFIGS:
                rows = tiles.programs(block) // -(-tiles.channels // tiles.block_c)
                assert rows * (block // tiles.block_c) >= tiles.per_channel
                # Every slot that is summed belongs to a program.
                assert rows * (block // SLOT) >= tiles.slots

    def test_offsets_are_64_bit_when_they_must(self) -> None:
        assert not Tiles(2**30, 1, 1, 1).wide
        assert Tiles(2**31 - 1, 1, 1, 1).wide
        assert Tiles(2**26, 64, 1, 32).wide

    @pytest.mark.parametrize("timesteps", [1, 4, 8, 9, 17, 100])
    def test_segments(self, timesteps: int) -> None:
        for dtype, most in ((torch.float32, 8), (torch.float64, 4)):
            segments, steps = plan_segments(timesteps, dtype)
            assert steps <= most
            assert (segments - 1) * steps < timesteps <= segments * steps
            assert (segments == 1) == (timesteps <= most)

    @pytest.mark.parametrize("config", CONFIGS)
    def test_the_limit_of_registers_takes_no_block_from_a_card(self, config: tuple[int, int]) -> None:
        threads = 32 * config[1]
        for words in (*BACKWARD_WORDS[0], *BACKWARD_WORDS[1]):
            need, limit = register_need(words, *config), register_limit(words, *config)
            assert limit % 8 == 0 or limit == 255
            assert threads * limit <= 65536
            if need <= 255:
                assert limit >= need and 65536 // (threads * limit) == 65536 // (threads * need)

    def test_the_tuner_tries_no_size_that_would_spill(self) -> None:
        assert sizes_to_try(None) == sizes_to_try(BACKWARD_WORDS[0][0]) == list(CONFIGS)
        longest = sizes_to_try(BACKWARD_WORDS[1][-1])
        assert (256, 4) in longest and (2048, 8) not in longest

    def test_amd_gets_no_limit_of_registers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("triton")
        x = torch.empty(4, 2, 3, 5, device="meta")
        one = torch.empty(1, device="meta")
        launch, _ = backward_launch(Scan(x, one, one, one, Call.of(ScanSpec())), OutputGradients(x), x, None)
        assert "maxnreg" in launch.options(*launch.fixed)
        monkeypatch.setattr(torch.version, "hip", "6.4")
        assert "maxnreg" not in launch.options(*launch.fixed)

    def test_every_surrogate_has_constants(self) -> None:
        from steadyspike.kernels.scan.triton.surrogate import surrogate_constants

        for name in SURROGATES:
            edge, slope, height = surrogate_constants(kernel_code(TUNED[name]), TUNED[name].constants)
            assert height > 0 and edge + slope > 0
        with pytest.raises(ValueError, match="code 99"):
            surrogate_constants(99, [1.0, 1.0, 1.0])


def on_a_card() -> list[Case]:
    """What a card is tested with; nothing if there is none."""
    if not torch.cuda.is_available():
        return []
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    return [Case(spec, dtype=dtype) for spec in few_specs() for dtype in dtypes] + parameter_cases() + size_cases()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", on_a_card(), ids=str)
def test_kernels_equal_the_reference_on_a_card(case: Case) -> None:
    check_against_reference(case, "triton", "cuda")
