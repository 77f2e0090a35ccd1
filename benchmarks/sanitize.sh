#!/usr/bin/env bash
# Builds the C++ kernel with AddressSanitizer and UndefinedBehaviorSanitizer beside a copy of the package and runs the
# kernel's tests on it. The first report of either ends the run. Usage: benchmarks/sanitize.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

flags="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
cp -r src/steadyspike "$work/steadyspike"
rm -f "$work/steadyspike/kernels/_native.so"
CFLAGS="$flags" CXXFLAGS="$flags" LDFLAGS="$flags" \
    "$python" setup.py -q build_ext --build-lib "$work" --build-temp "$work/temp"
nm -D "$work/steadyspike/kernels/_native.so" | grep -q __asan || { echo "the kernel was not instrumented"; exit 1; }

# The sanitizer's run time must be first in the process; torch itself is not instrumented, so leaks are not looked for.
runtime="$(${CXX:-c++} -print-file-name=libasan.so):$(${CXX:-c++} -print-file-name=libstdc++.so)"
LD_PRELOAD="$runtime" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH="$work" OMP_NUM_THREADS=2 \
    "$python" -m pytest -q -p no:cacheprovider tests/kernels/test_cpu.py tests/kernels/test_cpu_operator.py \
    tests/kernels/test_cpu_fast.py tests/kernels/test_spike_words.py tests/kernels/test_known_spikes.py \
    tests/kernels/test_spike_conv.py tests/kernels/test_spike_function.py tests/nn/test_norm_neuron.py \
    tests/nn/test_needed_gradient.py tests/deploy/test_runtime.py "$@"
