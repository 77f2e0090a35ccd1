// The forward of one chunk of elements.
#pragma once
#include "../conv/conv_plan.h"
#include "fast_forward.h"

namespace {

template <class IO>
using FastForward = bool (*)(const ForwardTile<float>&, Steps<const IO>, const MapRows<float>&, Steps<IO>, int64_t, bool, BitRows,
                             BitRows, float*, int64_t&);

template <class IO, bool MAPPED, int WORDS>
FastForward<IO> fast_forward_for(FastCase fast_case) {
    static constexpr FastForward<IO> table[] = {
        fast_forward<MANY_CHANNELS, IO, MAPPED, WORDS>, fast_forward<ONE_CHANNEL, IO, MAPPED, WORDS>,
        fast_forward<PLAIN_CACHED, IO, MAPPED, WORDS>, fast_forward<PLAIN_PAST_CACHE, IO, MAPPED, WORDS>};
    return table[fast_case];
}

template <class IO, bool MAPPED>
FastForward<IO> fast_forward_for(const Forward& io, FastCase fast_case) {
    if (io.needed) return fast_forward_for<IO, MAPPED, 2>(fast_case);
    return io.bits ? fast_forward_for<IO, MAPPED, 1>(fast_case) : fast_forward_for<IO, MAPPED, 0>(fast_case);
}

template <class R>
struct ForwardBlock {
    const ForwardTask& task;
    const ConstantRows<R>& constants;
    const Input<R>& input;
    StartRow<R>& start_row;
    R *u_row, *fired, *kept, *out_rows, *m_rows;
    LaneSums<R>& lane_sums;
    double *sums, *bit_sums;  // of active neurons, [2][channels]; spikes per step, blocks without bits

    BitRows bit_rows(uint64_t* words, int64_t first) const {
        const int64_t stride = task.scan.n / 64;
        return words ? BitRows{words + first * stride + input.i0 / 64, stride} : BitRows{};
    }

    // False if the fast way met a NaN.
    bool run(bool fast) const {
        const Forward& io = task.io;
        const int64_t n = input.n, wide = padded(n), i0 = input.i0;
        const bool direct = io.u && n % PAD == 0 && !task.plan.stream, lanes = fast && constants.one;
        const bool halves = fast && task.scan.dtype == BF16 && !task.scan.affine && n % PAD == 0;
        const bool mapped = fast && sizeof(R) == 4 && input.maps_on_the_way();
        const R* const start = fast ? start_row.row : start_row.every();
        R* const u = direct ? static_cast<R*>(io.u) + i0 : u_row;
        const bool keep_u = io.u || !lanes;  // otherwise nothing reads U after the last step
        int64_t count = 0;
        const Output<R> output(io.out, task.scan, task.plan.stream, i0, n, !fast && task.plan.stream, out_rows);
        const Output<R> potentials(io.m, task.scan, false, i0, n, true, m_rows);
        for (int64_t first = 0; first < task.scan.steps; first += TILE) {
            const int64_t left = task.scan.steps - first, steps = left < TILE ? left : TILE;
            const Steps<R> out = output.tile(first), m = io.m ? potentials.tile(first) : Steps<R>{};
            const Steps<const R> in = halves || mapped ? Steps<const R>{} : input.tile(first, steps);
            const ForwardTile<R> tile{task.scan, constants, steps,       in, out,         m,
                                      first ? u : start, keep_u || left > TILE ? u : nullptr, fired, first == 0, left <= TILE,
                                      first == 0 && constants.one && task.scan.u0_kind != ELEMENT && n % PAD == 0};
            const bool level_fits = halves || task.scan.family == TRSG;
            const bool plain = lanes && tile.first && tile.last && tile.same_start && !tile.u && level_fits;
            const BitRows bits = bit_rows(io.bits, first), needed = bit_rows(io.needed, first);
            if constexpr (sizeof(R) == 4) {
                if (halves) {
                    const bool past = task.plan.stream && streams_halves(io.out, task.scan.n);
                    const auto run_fast = fast_forward_for<Bf16, false>(io, fast_case(lanes, plain, past));
                    if (!run_fast(tile, input.template unchanged<Bf16>(first), {},
                                  rows_of<Bf16>(io.out, task.scan.n, first, i0), wide, past, bits, needed, kept, count))
                        return false;
                    continue;
                }
                const FastCase which = fast_case(lanes, plain, output.streams());
                if (mapped) {
                    const auto run_fast = fast_forward_for<float, true>(io, which);
                    if (!run_fast(tile, input.template unchanged<float>(first), input.map_rows(first, steps),
                                  out, wide, output.streams(), bits, needed, kept, count))
                        return false;
                } else if (fast) {
                    const auto run_fast = fast_forward_for<float, false>(io, which);
                    if (!run_fast(tile, in, {}, out, wide, output.streams(), bits, needed, kept, count)) return false;
                }
            }
            if (!fast) {
                general_forward<R>(tile, wide);
                if (io.m)
                    for (int64_t t = 0; t < steps; ++t)
                        write_bytes(static_cast<R*>(io.m) + (first + t) * task.scan.n + i0, m.at(t), n * int64_t(sizeof(R)), false);
            }
            output.finish(first, steps);
        }
        if (io.u && !direct) write_bytes(static_cast<R*>(io.u) + i0, u, n * int64_t(sizeof(R)), task.plan.stream);
        if (io.bits) fast ? count_bits() : leave_bits();
        add_active(u, lanes, count);
        return true;
    }

    // The sum of U[T] over neurons that fired, and their number.
    void add_active(const R* u, bool lanes, int64_t count) const {
        const Geometry<R> geometry{task.scan.channels, task.scan.inner};
        const int64_t channels = task.scan.channels;
        if (lanes) {
            lane_sums.add(constants.channel, kept, padded(input.n));
            sums[channels + constants.channel] += double(count);
            return;
        }
        for (int64_t i = 0; i < input.n; ++i) kept[i] = fired[i] > 0 ? u[i] : R(0);
        geometry.add_to(sums, kept, input.i0, input.n);
        geometry.add_to(sums + channels, fired, input.i0, input.n);
    }

    void count_bits() const {
        const BitRows bits = bit_rows(task.io.bits, 0);
        for (int64_t t = 0; t < task.scan.steps; ++t) {
            int64_t spikes = 0;
            for (int64_t word = 0; word < input.n / 64; ++word)
                spikes += __builtin_popcountll(bits.first[t * bits.stride + word]);
            bit_sums[t] += double(spikes);
        }
    }

    // The general way writes no bits: the gradient may be needed everywhere.
    void leave_bits() const {
        const BitRows needed = bit_rows(task.io.needed, 0);
        for (int64_t t = 0; needed.first && t < task.scan.steps; ++t)
            std::memset(needed.first + t * needed.stride, 0xff, size_t(input.n / 8));
        bit_sums[task.scan.steps] += 1;
    }
};

// Computes x of a chunk, [steps][end - begin], and the chunk's range of elements.
inline void convolve(const ForwardConv& conv, int64_t steps, int64_t chunk, int64_t& begin, int64_t& end, void* x) {
    const ConvTask& task = conv.task;
    const ConvPart part(task.plan, task.shape, task.shape.out_height, chunk);
    const int64_t row = task.shape.out_width * task.conv.out_channels, images = part.image1 - part.image0;
    begin = (part.image0 * task.shape.out_height + part.row0) * row;
    end = begin + images * (part.row1 - part.row0) * row;
    const ForwardArea area{part.image0, images, steps, task.shape.images, part.row0, part.row1};
    conv.run(task, area, 0, task.shape.blocks, static_cast<float*>(x));
}

template <class R>
void forward_chunk(const ForwardTask& task, int64_t chunk, void* scratch, double* sums) {
    const Scan& scan = task.scan;
    const Plan& plan = task.plan;
    Rows<R> rows{static_cast<R*>(scratch), plan.block};
    ConstantRows<R> constants(rows);
    Input<R> input(scan, rows);
    StartRow<R> start(rows);
    LaneSums<R> lane_sums(rows, sums, 1, scan.channels);
    R *u = rows.take(), *fired = rows.take(), *kept = rows.take();
    R *out_rows = rows.take(TILE), *m_rows = rows.take(TILE);
    const ForwardBlock<R> block{task,     constants, input,     start,     u,
                                fired,    kept,      out_rows,  m_rows,    lane_sums,
                                sums,     sums + 2 * scan.channels};
    int64_t begin = chunk * plan.chunk, end = begin + plan.chunk < scan.n ? begin + plan.chunk : scan.n;
    if (task.conv) {
        input.x = static_cast<char*>(scratch) + task.conv->x_at;
        convolve(*task.conv, scan.steps, chunk, begin, end, static_cast<char*>(scratch) + task.conv->x_at);
        input.x_stride = end - begin, input.origin = begin;
    }
    for (int64_t i0 = begin; i0 < end; i0 += plan.block) {
        const int64_t n = end - i0 < plan.block ? end - i0 : plan.block;
        constants.set(task.params, {scan.channels, scan.inner}, i0, n);
        input.set(i0, n);
        start.set(scan, task.params, constants.channel, i0, n);
        if (!plan.fast || !block.run(true)) block.run(false);
    }
    lane_sums.finish();
    if (plan.stream) stream_end();
}

}  // namespace
