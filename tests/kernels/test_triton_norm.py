"""Norm and neuron as Triton operators: everything that needs the interpreter runs in a separate process."""

from __future__ import annotations

from tests.kernels.test_triton import run_interpreted


def test_operators_equal_the_reference_in_the_interpreter() -> None:
    run_interpreted("not slow", "tests/kernels/triton_norm_interpreted.py")
