#!/usr/bin/env bash
# Builds the C++ kernel with AddressSanitizer and UndefinedBehaviorSanitizer beside a copy of the package and runs the
# kernel's tests on it. The first report of either ends the run. Usage: benchmarks/sanitize.sh [tests and options of pytest,
# instead of all of the kernel's tests]; the tests take more than 15 minutes together, one file at a time a few each.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

if [ "$#" -eq 0 ]; then
    set -- tests/kernels/test_cpu{,_operator,_fast}.py tests/kernels/test_{spike_words,known_spikes,spike_conv}.py \
        tests/kernels/test_spike_function.py tests/nn/test_{norm_neuron,norm_shortcut,needed_gradient,fused}.py \
        tests/deploy/test_runtime.py
fi

flags="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
cp -r src/steadyspike "$work/steadyspike"
rm -f "$work/steadyspike/kernels/_native.so"
CFLAGS="$flags" CXXFLAGS="$flags" LDFLAGS="$flags" \
    "$python" setup.py -q build_ext --build-lib "$work" --build-temp "$work/temp"
nm -D "$work/steadyspike/kernels/_native.so" | grep __asan >/dev/null || { echo "the kernel was not instrumented"; exit 1; }

# The sanitizer's run time must be first in the process; torch itself is not instrumented, so leaks are not looked for.
runtime="$(${CXX:-c++} -print-file-name=libasan.so):$(${CXX:-c++} -print-file-name=libstdc++.so)"
LD_PRELOAD="$runtime" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH="$work" OMP_NUM_THREADS=2 \
    "$python" -m pytest -q -p no:cacheprovider "$@"
