// The forward of one chunk of elements.
#pragma once
#include "fast.h"

namespace {

// What a block's spikes and needed places are from values in scratch: the general twin of BitRows::put. Padding stays 0.
template <class R>
void bits_of(Steps<R> out, Steps<R> m, int64_t steps, int64_t n, const ConstantRows<R>& c, BitRows bits, BitRows needed,
             bool& nan) {
    for (int64_t t = 0; t < steps; ++t) {
        for (int64_t word = 0; word * 64 < n; ++word) {
            uint64_t spikes = 0, places = 0;
            for (int64_t j = 0; j < 64 && word * 64 + j < n; ++j) {
                const int64_t i = word * 64 + j;
                const R value = out.at(t)[i], potential = m.at(t)[i];
                nan = nan || value != value;
                const bool fired = value == value && value != 0;
                spikes |= uint64_t(fired) << j;
                places |= uint64_t(fired || (potential >= c.low[i] && potential <= c.high[i])) << j;
            }
            bits.first[t * bits.stride + word] = spikes;
            if (needed.first) needed.first[t * needed.stride + word] = places;
        }
    }
}

template <class R>
struct ForwardBlock {
    const ForwardTask& task;
    const ConstantRows<R>& constants;
    const Input<R>& input;
    R *u, *fired, *out_rows, *m_rows;
    double* bit_sums;   // spikes per step, blocks with a NaN

    BitRows bit_rows(uint64_t* words, int64_t first) const {
        const int64_t stride = (task.scan.n + 63) / 64;
        return words ? BitRows{words + first * stride + input.i0 / 64, stride} : BitRows{};
    }

    // False if the fast way met a NaN.
    bool run(bool fast) const {
        const Forward& io = task.io;
        const int64_t n = input.n, wide = padded(n), i0 = input.i0;
        bool nan = false;
        start_potential(task.scan, task.params, i0, n, u);
        for (int64_t i = 0; i < wide; ++i) fired[i] = R(0);
        const Output<R> output(io.out, task.scan, task.plan.stream, i0, n, !fast && task.plan.stream, out_rows);
        const Output<R> potentials(io.m, task.scan, false, i0, n, true, m_rows);
        for (int64_t first = 0; first < task.scan.steps; first += TILE) {
            const int64_t left = task.scan.steps - first, steps = left < TILE ? left : TILE;
            const Steps<R> out = output.tile(first), m = potentials.tile(first);
            const ForwardTile<R> tile{task.scan, constants, steps, input.tile(first, steps), out, m, u, fired};
            const BitRows bits = bit_rows(io.bits, first), needed = bit_rows(io.needed, first);
            if constexpr (sizeof(R) == 4) {
                if (fast && !(constants.one ? fast_forward<true> : fast_forward<false>)(tile, wide, output.streams(), bits, needed))
                    return false;
            }
            if (!fast) {
                general_forward<R>(tile, wide);
                if (io.bits) bits_of<R>(out, m, steps, n, constants, bits, needed, nan);
                if (io.m)
                    for (int64_t t = 0; t < steps; ++t)
                        std::memcpy(static_cast<R*>(io.m) + (first + t) * task.scan.n + i0, m.at(t), size_t(n) * sizeof(R));
            }
            output.finish(first, steps);
        }
        if (io.bits) count_bits(nan);
        if (io.needed && n % 64) clear_padding(bit_rows(io.needed, 0));
        return true;
    }

    // The potential of what a row was filled up with may lie in the window.
    void clear_padding(BitRows needed) const {
        const uint64_t real = (uint64_t(1) << (input.n % 64)) - 1;
        for (int64_t t = 0; t < task.scan.steps; ++t) needed.first[t * needed.stride + input.n / 64] &= real;
    }

    void count_bits(bool nan) const {
        const BitRows bits = bit_rows(task.io.bits, 0);
        for (int64_t t = 0; t < task.scan.steps; ++t) {
            int64_t spikes = 0;
            for (int64_t word = 0; word < (input.n + 63) / 64; ++word)
                spikes += __builtin_popcountll(bits.first[t * bits.stride + word]);
            bit_sums[t] += double(spikes);
        }
        bit_sums[task.scan.steps] += nan;
    }
};

template <class R>
void forward_chunk(const ForwardTask& task, int64_t chunk, void* scratch, double* sums) {
    const Scan& scan = task.scan;
    const Plan& plan = task.plan;
    const Geometry<R> geometry{scan.channels, scan.inner};
    Rows<R> rows{static_cast<R*>(scratch)};
    ConstantRows<R> constants(rows);
    Input<R> input(scan, rows);
    R *u = rows.take(), *fired = rows.take();
    R *out_rows = rows.take(TILE), *m_rows = rows.take(TILE);
    const ForwardBlock<R> block{task, constants, input, u, fired, out_rows, m_rows, sums + 2 * scan.channels};
    const int64_t last = (chunk + 1) * plan.chunk, end = last < scan.n ? last : scan.n;
    for (int64_t i0 = chunk * plan.chunk; i0 < end; i0 += BLOCK) {
        const int64_t n = end - i0 < BLOCK ? end - i0 : BLOCK;
        constants.set(task.params, geometry, i0, n);
        input.set(i0, n);
        if (!plan.fast || !block.run(true)) block.run(false);
        write_bytes(static_cast<R*>(task.io.u) + i0, u, n * int64_t(sizeof(R)), plan.stream);
        geometry.add_to(sums + scan.channels, fired, i0, n);
        for (int64_t i = 0; i < n; ++i) fired[i] = fired[i] > 0 ? u[i] : R(0);
        geometry.add_to(sums, fired, i0, n);
    }
    if (plan.stream) stream_end();
}

}  // namespace
