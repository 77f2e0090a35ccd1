// Rows of a block in scratch: its constants, and its inputs and results unless they are used in place.
#pragma once
#include <cstring>

#include "geometry.h"
#include "step.h"
#include "stream.h"
#include "task.h"

namespace {

inline int64_t padded(int64_t n) { return (n + PAD - 1) / PAD * PAD; }

// Hands out rows of a thread's scratch.
template <class R>
struct Rows {
    R* next;
    int64_t width;  // elements of a row, Plan::block

    // Rows are not a multiple of 4096 bytes apart, because then the first-level cache could hold only eight of them.
    R* take(int64_t rows = 1) {
        R* row = next;
        next += rows * width + ROW_GAP;
        return row;
    }
};

// Rows of one time step each, `stride` elements apart; null: there are none.
template <class T>
struct Steps {
    T* first = nullptr;
    int64_t stride = 0;

    T* at(int64_t t) const { return first + t * stride; }
};

// The constants of a block's elements. one: they are the same for all of them, and only the first PAD values are
// filled.
template <class R>
struct ConstantRows {
    R *v, *fire, *keep, *gain, *inverse, *low, *high, *level;
    int64_t width;
    int64_t channel = -1, phase = -1;  // of the whole block, if there is one; the one for which the rows were filled
    bool one = false;

    explicit ConstantRows(Rows<R>& rows)
        : v(rows.take()), fire(rows.take()), keep(rows.take()), gain(rows.take()), inverse(rows.take()),
          low(rows.take()), high(rows.take()), level(rows.take()), width(rows.width) {}

    void set(const ChannelParams& params, const Geometry<R>& geometry, int64_t i0, int64_t n) {
        if (geometry.channels == 1 && phase == 0) return;
        one = geometry.one_channel(i0, n);
        const int64_t c = geometry.channel(i0), wanted = n == width || one ? geometry.phase(i0, n) : -1;
        if (wanted >= 0 && wanted == phase && one == (channel >= 0)) return;
        phase = wanted, channel = one ? c : -1;
        const void* const from[] = {params.v,       params.fire, params.keep, params.gain,
                                    params.inverse, params.low,  params.high, params.level};
        R* const to[] = {v, fire, keep, gain, inverse, low, high, level};
        for (int k = 0; k < 8; ++k) {
            const R* values = static_cast<const R*>(from[k]);
            if (one) {
                for (int64_t i = 0; i < PAD; i += WIDTH<R>) store<true>(all<R>(values[c]), to[k] + i, 0);
            } else {
                geometry.expand(values, i0, n, to[k]);
                for (int64_t i = n; i < padded(n); ++i) to[k][i] = values[c];
            }
        }
    }

    // The address of the constants of element i.
    int64_t place(int64_t i) const { return one ? 0 : i; }

    Constants<R> at(int64_t element) const {
        const int64_t i = place(element);
        return {load<true>(v + i, 0), load<true>(fire + i, 0), load<true>(keep + i, 0), load<true>(gain + i, 0),
                load<true>(inverse + i, 0)};
    }
};

template <class R, class IO>
inline void widen_row(const IO* from, int64_t n, R* to) {
    int64_t i = 0;
    for (; i + WIDTH<R> <= n; i += WIDTH<R>) store<true>(load<true>(from + i, 0), to + i, 0);
    if (i < n) store<true>(load<false>(from + i, n - i), to + i, 0), i += WIDTH<R>;
    for (; i < padded(n); i += WIDTH<R>) store<true>(Vec<R>{}, to + i, 0);
}

// n elements of a tensor in `dtype`, beginning with element `at`, in the compute type and padded with zeros.
template <class R>
inline void read_row(const void* tensor, int64_t dtype, int64_t at, int64_t n, R* to) {
    if (sizeof(R) == 8 || dtype == F32) return widen_row(static_cast<const R*>(tensor) + at, n, to);
    if constexpr (sizeof(R) == 4) {
        if (dtype == BF16) return widen_row(static_cast<const Bf16*>(tensor) + at, n, to);
        widen_row(static_cast<const Fp16*>(tensor) + at, n, to);
    }
}

inline void write_bytes(void* to, const void* from, int64_t bytes, bool stream) {
    if (stream) return stream_bytes(to, from, bytes);
    std::memcpy(to, from, size_t(bytes));
}

// Writes to an address that is a multiple of a register's size if STREAM; n is a multiple of two registers.
template <bool STREAM, class IO>
inline void narrow_row(const float* from, int64_t n, IO* to) {
    constexpr int64_t W = WIDTH<float>;
    for (int64_t i = 0; i < n; i += 2 * W) {
        const FullHalves both = narrow_two(load<true>(from + i, 0), load<true>(from + i + W, 0), IO{});
        if (STREAM)
            stream_register(to + i, both);
        else
            put<true>(both, to + i, 0);
    }
}

// Writes directly to the tensor if whole registers fit, otherwise through a row on the stack.
template <class IO>
inline void write_narrow(const float* from, IO* to, int64_t n, bool stream) {
    const bool aligned = reinterpret_cast<uintptr_t>(to) % STEADYSPIKE_REGISTER == 0;
    if (n % PAD == 0 && !stream) return narrow_row<false>(from, n, to);
    if (n % PAD == 0 && aligned) return narrow_row<true>(from, n, to);
    alignas(64) IO half[LARGE_BLOCK];
    narrow_row<false>(from, padded(n), half);
    write_bytes(to, half, n * 2, stream);
}

// The inverse of read_row.
template <class R>
inline void write_row(const R* from, void* tensor, int64_t dtype, int64_t at, int64_t n, bool stream) {
    if (sizeof(R) == 8 || dtype == F32)
        return write_bytes(static_cast<R*>(tensor) + at, from, n * int64_t(sizeof(R)), stream);
    if constexpr (sizeof(R) == 4) {
        if (dtype == BF16) return write_narrow(from, static_cast<Bf16*>(tensor) + at, n, stream);
        write_narrow(from, static_cast<Fp16*>(tensor) + at, n, stream);
    }
}

template <class R>
inline bool computed_in(int64_t dtype) { return sizeof(R) == 8 || dtype == F32; }

// A tensor's rows of one tile of a block: in place if whole registers can be read from it, otherwise copied to scratch
// and converted.
template <class R>
inline Steps<const R> read_steps(const void* tensor, int64_t dtype, int64_t stride, int64_t first, int64_t steps, int64_t i0,
                                 int64_t n, R* scratch) {
    if (tensor == nullptr) return {};
    if (computed_in<R>(dtype) && n % PAD == 0) return {static_cast<const R*>(tensor) + first * stride + i0, stride};
    for (int64_t t = 0; t < steps; ++t) read_row(tensor, dtype, (first + t) * stride + i0, n, scratch + t * padded(n));
    return {scratch, padded(n)};
}

// A tensor's rows of one tile of a block, unchanged.
template <class T>
inline Steps<T> rows_of(void* tensor, int64_t stride, int64_t first, int64_t i0) {
    return {static_cast<T*>(tensor) + first * stride + i0, stride};
}
template <class T>
inline Steps<const T> rows_of(const void* tensor, int64_t stride, int64_t first, int64_t i0) {
    return {static_cast<const T*>(tensor) + first * stride + i0, stride};
}

// True if stores that bypass the cache can write directly to rows of a 16-bit tensor of n elements per time step.
inline bool streams_halves(const void* tensor, int64_t n) {
    return (reinterpret_cast<uintptr_t>(tensor) | uintptr_t(n) * 2) % STEADYSPIKE_REGISTER == 0;
}

// Computes the input current of a tile from x, row by row: scale x + shift, plus `extra` if it has rows, times `level`
// unless that is null, or plus `level` if `spikes` has a bit.
template <class R>
struct MapRows {
    const R *scale = nullptr, *shift = nullptr, *level = nullptr;
    int64_t stride = 0;      // from the constants of one time step to those of the next
    Steps<const R> extra{};
    Steps<const uint64_t> spikes{};
};

// A block's input current: x, or an affine map of it with constants per channel, or per time step and channel.
template <class R>
struct Input {
    const Scan& scan;
    const void* x;                            // in memory from element `origin` of each time step on
    int64_t x_stride, origin = 0;
    R *scale, *shift, *extra_scale, *converted, *extra;
    int64_t width, i0 = 0, n = 0, phase = -1;  // phase: the one for which scale, shift and extra_scale were filled

    Input(const Scan& scan, Rows<R>& rows)
        : scan(scan), x(scan.x), x_stride(scan.x_stride), scale(rows.take(TILE)), shift(rows.take(TILE)), extra_scale(rows.take()),
          converted(rows.take(TILE)), extra(rows.take()), width(rows.width) {}

    void set(int64_t first_element, int64_t elements) {
        i0 = first_element, n = elements;
        const Affine* affine = scan.affine;
        if (!affine) return;
        const Geometry<R> geometry{affine->channels, affine->inner};
        const int64_t wanted = n == width ? geometry.phase(i0, n) : -1;
        if (wanted >= 0 && wanted == phase && affine->step_stride == 0) return;
        phase = wanted;
        if (affine->step_stride == 0) expand(0, 0);
        if (!affine->extra_scale) return;
        geometry.expand(static_cast<const R*>(affine->extra_scale), i0, n, extra_scale);
        for (int64_t i = n; i < padded(n); ++i) extra_scale[i] = R(0);
    }

    // True if the map can be computed in registers when x is read.
    bool maps_on_the_way() const {
        return scan.affine && computed_in<R>(scan.dtype) && n % PAD == 0;
    }

    MapRows<R> map_rows(int64_t first, int64_t steps) const {
        const Affine& affine = *scan.affine;
        if (affine.step_stride)
            for (int64_t t = 0; t < steps; ++t) expand(first + t, t);
        MapRows<R> rows{scale, shift, affine.extra_scale ? extra_scale : nullptr, affine.step_stride ? width : 0};
        if (affine.extra_bits)
            rows.spikes = {affine.extra_bits + first * affine.extra_stride + i0 / 64, affine.extra_stride};
        else if (affine.extra)
            rows.extra = {static_cast<const R*>(affine.extra) + first * affine.extra_stride + i0, affine.extra_stride};
        return rows;
    }

    // x as it is in memory.
    template <class IO>
    Steps<const IO> unchanged(int64_t first) const { return rows_of<IO>(x, x_stride, first, i0 - origin); }

    Steps<const R> tile(int64_t first, int64_t steps) const {
        const Steps<const R> given = read_steps<R>(x, scan.dtype, x_stride, first, steps, i0 - origin, n, converted);
        if (!scan.affine) return given;
        const MapRows<R> rows = map_rows(first, steps);
        for (int64_t t = 0; t < steps; ++t)
            map(given.at(t), rows.scale + t * rows.stride, rows.shift + t * rows.stride, first + t, converted + t * padded(n));
        return {converted, padded(n)};
    }

private:
    // The constants of time step t, to row `row`.
    void expand(int64_t t, int64_t row) const {
        const Affine& affine = *scan.affine;
        const Geometry<R> geometry{affine.channels, affine.inner};
        R *const scales = scale + row * width, *const shifts = shift + row * width;
        geometry.expand(static_cast<const R*>(affine.scale) + t * affine.step_stride, i0, n, scales);
        geometry.expand(static_cast<const R*>(affine.shift) + t * affine.step_stride, i0, n, shifts);
        for (int64_t i = n; i < padded(n); ++i) scales[i] = shifts[i] = R(0);
    }

    void map(const R* x, const R* scales, const R* shifts, int64_t t, R* to) const {
        const Affine& affine = *scan.affine;
        for (int64_t i = 0; i < padded(n); i += WIDTH<R>)
            store<true>(load<true>(scales + i, 0) * load<true>(x + i, 0) + load<true>(shifts + i, 0), to + i, 0);
        if (affine.extra_bits) return add_spikes(affine.extra_bits + t * affine.extra_stride + i0 / 64, to);
        if (!affine.extra) return;
        read_row(affine.extra, scan.dtype, t * affine.extra_stride + i0, n, extra);
        for (int64_t i = 0; i < padded(n); i += WIDTH<R>) {
            const Vec<R> more = load<true>(extra + i, 0);
            const Vec<R> scaled = affine.extra_scale ? load<true>(extra_scale + i, 0) * more : more;
            store<true>(load<true>(to + i, 0) + scaled, to + i, 0);
        }
    }

    void add_spikes(const uint64_t* words, R* to) const {
        for (int64_t i = 0; i < n; ++i) to[i] += words[i / 64] >> (i % 64) & 1 ? extra_scale[i] : R(0);
    }
};

// The destination of a block's rows of results: the tensor (bypassing the cache if it is large), or scratch, from which
// `finish` writes them to the tensor.
template <class R>
struct Output {
    void* tensor;
    int64_t dtype, size, i0, n;  // size: elements per time step
    bool stream, direct;
    R* scratch;

    Output(void* tensor, const Scan& scan, bool stream, int64_t i0, int64_t n, bool collect, R* scratch)
        : tensor(tensor), dtype(scan.dtype), size(scan.n), i0(i0), n(n), stream(stream), scratch(scratch) {
        const uintptr_t address = reinterpret_cast<uintptr_t>(tensor) | uintptr_t(size) * sizeof(R);
        const bool aligned = !stream || address % STEADYSPIKE_REGISTER == 0;
        direct = !collect && computed_in<R>(dtype) && n % PAD == 0 && aligned;
    }

    Steps<R> tile(int64_t first) const {
        if (direct) return {static_cast<R*>(tensor) + first * size + i0, size};
        return {scratch, padded(n)};
    }

    bool streams() const { return direct && stream; }

    void finish(int64_t first, int64_t steps) const {
        if (direct) return;
        for (int64_t t = 0; t < steps; ++t)
            write_row(scratch + t * padded(n), tensor, dtype, (first + t) * size + i0, n, stream);
    }
};

// U[0] of a block's elements, padded with zeros.
template <class R>
struct StartRow {
    R* row;
    int64_t width, channel = -1;  // channel: the one to which the whole row belongs
    // the number of filled elements, if it belongs to one channel: at first PAD, which is all that fast.h reads
    int64_t filled = 0;

    explicit StartRow(Rows<R>& rows) : row(rows.take()), width(rows.width) {}

    // one: the channel of the whole block, or -1.
    void set(const Scan& scan, const ChannelParams& params, int64_t one, int64_t i0, int64_t n) {
        if (scan.u0_kind == ELEMENT) return widen_row(static_cast<const R*>(scan.u0) + i0, n, row);
        const bool whole = one >= 0 && n == width;
        if (whole && channel == one) return;
        channel = whole ? one : -1;
        if (whole) return fill(static_cast<const R*>(params.u0)[one], 0, PAD);
        Geometry<R>{scan.channels, scan.inner}.expand(static_cast<const R*>(params.u0), i0, n, row);
        for (int64_t i = n; i < padded(n); ++i) row[i] = R(0);
    }

    // The row for code that reads each of its elements.
    const R* every() {
        if (channel >= 0 && filled < width) fill(row[0], PAD, width);
        return row;
    }

private:
    void fill(R value, int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i += WIDTH<R>) store<true>(all<R>(value), row + i, 0);
        filled = last;
    }
};

// Registers of other neurons fill the time in which the steps of one neuron wait for each other.
constexpr int TOGETHER = 4;
template <class R>
constexpr int64_t GROUP = TOGETHER * WIDTH<R>;
#define EACH(k) _Pragma("GCC unroll 4") for (int k = 0; k < TOGETHER; ++k)

// What the backward needs of one time step of a group, adjacent in memory.
template <class R, int COUNT = TOGETHER>
struct GroupStep {
    Vec<R> m[COUNT], by_a[COUNT], f[COUNT];  // M, dM/da, the surrogate's derivative
};

// The same if the derivative can be computed from m, so that it need not be stored.
template <class R, int COUNT>
struct ShortStep {
    Vec<R> m[COUNT], by_a[COUNT];
};
static_assert(PAD % (TOGETHER * STEADYSPIKE_REGISTER / 4) == 0, "a padded row is a whole number of groups");

}  // namespace
