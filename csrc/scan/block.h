// What forward and backward of a block of elements share: its rows in scratch, its constants, input, output and registers.
#pragma once
#include "geometry.h"
#include "step.h"
#include "stream.h"
#include "task.h"

namespace {

constexpr int64_t AHEAD = 1024;  // bytes from a line that is read to the line that is loaded early

// Hands out rows of a thread's scratch, each of a whole number of cache lines.
template <class R>
struct Rows {
    R* next;
    int64_t block;

    R* take(int64_t rows = 1) {
        R* row = next;
        next += rows * block;
        return row;
    }
    double* take_doubles() { return reinterpret_cast<double*>(take(int64_t(sizeof(double) / sizeof(R)))); }
};

// The constants of a block's elements, and which of the channels they are for.
template <class R>
struct ConstantRows {
    R *v, *fire, *keep, *gain, *inverse, *low, *high;
    int64_t channel = -1;

    explicit ConstantRows(Rows<R>& rows)
        : v(rows.take()), fire(rows.take()), keep(rows.take()), gain(rows.take()), inverse(rows.take()),
          low(rows.take()), high(rows.take()) {}

    void set(const ChannelParams& params, const Geometry<R>& geometry, int64_t i0, int64_t n, int64_t block) {
        const bool one = geometry.one_channel(i0, n);
        const int64_t c = geometry.channel(i0);
        if (one && c == channel) return;
        channel = one ? c : -1;
        const void* const from[] = {params.v, params.fire, params.keep, params.gain, params.inverse, params.low, params.high};
        R* const to[] = {v, fire, keep, gain, inverse, low, high};
        for (int k = 0; k < 7; ++k) {
            const R* values = static_cast<const R*>(from[k]);
            if (!one)
                geometry.expand(values, i0, n, to[k]);
            else
                for (int64_t i = 0; i < block; ++i) to[k][i] = values[c];
        }
    }

    Constants<R> at(int64_t i) const {
        return {load<true>(v + i, 0), load<true>(fire + i, 0), load<true>(keep + i, 0), load<true>(gain + i, 0)};
    }
};

// A block's input current: x, or an affine map of it with per-channel constants.
template <class R, class IO>
struct Input {
    const IO *x, *extra = nullptr;
    int64_t stride, extra_stride = 0;
    R *scale = nullptr, *shift = nullptr, *extra_scale = nullptr;
    bool early;

    Input(const Scan& scan, const Plan& plan, int64_t i0, int64_t n, Rows<R>& rows)
        : x(static_cast<const IO*>(scan.x) + i0), stride(scan.x_stride), early(plan.stream) {
        const Affine* affine = scan.affine;
        if (!affine) return;
        const Geometry<R> geometry{affine->channels, affine->inner};
        scale = rows.take(), shift = rows.take(), extra_scale = rows.take();
        geometry.expand(static_cast<const R*>(affine->scale), i0, n, scale);
        geometry.expand(static_cast<const R*>(affine->shift), i0, n, shift);
        if (!affine->extra) return;
        extra = static_cast<const IO*>(affine->extra) + i0;
        extra_stride = affine->extra_stride;
        if (affine->extra_scale)
            geometry.expand(static_cast<const R*>(affine->extra_scale), i0, n, extra_scale);
        else
            for (int64_t i = 0; i < n; ++i) extra_scale[i] = R(1);
    }

    template <bool FULL, bool SIMPLE>
    Vec<R> at(int64_t t, int64_t i, int64_t count) const {
        const IO* from = x + t * stride + i;
        if constexpr (SIMPLE) return load<FULL>(from, count);
        if (early) __builtin_prefetch(reinterpret_cast<const char*>(from) + AHEAD);
        Vec<R> value = load<FULL>(from, count);
        if (!scale) return value;
        value = load<true>(scale + i, 0) * value + load<true>(shift + i, 0);
        if (!extra) return value;
        from = extra + t * extra_stride + i;
        if (early) __builtin_prefetch(reinterpret_cast<const char*>(from) + AHEAD);
        return value + load<true>(extra_scale + i, 0) * load<FULL>(from, count);
    }
};

// Where a block's T rows of results go: to the tensor, past the cache if it is large. A row of it that does not start at
// a register's boundary, or is of half the width, is collected in scratch first and streamed as a whole.
template <class R, class IO>
struct Output {
    IO *tensor, *to;
    int64_t tensor_stride, stride;
    bool direct = false, collect = false;

    Output(void* base, const Scan& scan, const Plan& plan, int64_t i0, Rows<R>& rows)
        : tensor(static_cast<IO*>(base) + i0), to(tensor), tensor_stride(scan.n), stride(scan.n) {
        if (!plan.stream) return;
        const uintptr_t first = reinterpret_cast<uintptr_t>(base), step = uintptr_t(scan.n) * sizeof(IO);
        direct = sizeof(IO) == sizeof(R) && (first | step) % STEADYSPIKE_REGISTER == 0;
        collect = !direct && scan.steps <= COLLECTED_STEPS;
        if (!collect) return;
        to = reinterpret_cast<IO*>(rows.take(scan.steps));
        stride = plan.block;
    }

    template <bool FULL, bool SIMPLE>
    void put(Vec<R> value, int64_t t, int64_t i, int64_t count) const {
        if constexpr (FULL && !SIMPLE && sizeof(IO) == sizeof(R))
            if (direct) return stream_register(to + t * stride + i, value);
        store<FULL>(value, to + t * stride + i, count);
    }

    void finish(int64_t steps, int64_t n) const {
        if (!collect) return;
        for (int64_t t = 0; t < steps; ++t)
            stream_bytes(tensor + t * tensor_stride, to + t * stride, n * int64_t(sizeof(IO)));
    }
};

// Steps of one neuron depend on each other; registers of other neurons fill the waiting time. So many go together.
#if STEADYSPIKE_REGISTER == 64
constexpr int FORWARD_TOGETHER = 4, BACKWARD_TOGETHER = 4;
#else
constexpr int FORWARD_TOGETHER = 2, BACKWARD_TOGETHER = 2;
#endif
#define EACH(k, TOGETHER) _Pragma("GCC unroll 4") for (int k = 0; k < TOGETHER; ++k)

// Runs a block over a row of n elements: whole registers together, and what is left by one, which may be partial.
template <class R, int TOGETHER, class Block>
inline void for_registers(const Block& block, int64_t n) {
    constexpr int64_t stride = TOGETHER * WIDTH<R>;
    int64_t i = 0;
    for (; i + stride <= n; i += stride) block.template run<true, TOGETHER>(i, WIDTH<R>);
    for (; i < n; i += WIDTH<R>) block.template run<false, 1>(i, n - i < WIDTH<R> ? n - i : WIDTH<R>);
}

template <class R>
void start_potential(const Scan& scan, const ChannelParams& params, int64_t i0, int64_t n, R* row) {
    const R* from = static_cast<const R*>(scan.u0);
    if (scan.u0_kind == ELEMENT)
        for (int64_t i = 0; i < n; ++i) row[i] = from[i0 + i];
    else
        Geometry<R>{scan.channels, scan.inner}.expand(static_cast<const R*>(params.u0), i0, n, row);
}

// Most calls are simple: a soft reset that gradients pass, results that stay in the cache, nothing but the spikes asked
// for. The compiler then needs no branch inside the loop over time, which in cache is half of the time.
inline bool simple(const Scan& scan, const Plan& plan) {
    return scan.reset == SOFT && scan.detach == KEEP && scan.decay_input && !scan.affine && !plan.stream;
}

}  // namespace
