"""Norm and neuron as Triton operators: everything that needs the interpreter runs in a separate process."""

from __future__ import annotations

import pytest

from tests.kernels.test_triton import run_interpreted


def test_operators_equal_the_reference_in_the_interpreter() -> None:
    run_interpreted("not slow", "tests/kernels/triton_norm_interpreted.py")


@pytest.mark.slow
def test_every_registered_network_and_the_compiler_in_the_interpreter() -> None:
    run_interpreted("slow", "tests/kernels/triton_norm_interpreted.py")
