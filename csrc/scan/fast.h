// The common case of general.h in float: a soft reset that gradients pass, decayed input, thresholds above 0 and finite,
// nothing but the spikes asked for.
//
// A spike is a mask here, so that a NaN potential would pass for silence. But with this reset a NaN stays in U, so that
// looking at U after the last step is enough: both functions return false then, and general.h does the block again.
#pragma once
#include <type_traits>

#include "general.h"

namespace {

constexpr int64_t AHEAD = 1024;  // bytes from a line that is read to the line that is loaded early

template <class T>
inline void load_early(const T* from) {
    for (int64_t line = 0; line < TOGETHER * STEADYSPIKE_REGISTER; line += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(from) + AHEAD + line);
}

inline Floats masked(Words mask, Floats value) { return Floats(mask & Words(value)); }

inline bool any_lane(Words mask) { return lane_bits(mask) != 0; }

// A row of constants: one register for all if they are the same, else read where they are needed.
template <bool ONE>
struct Row {
    const float* row;
    Floats value;

    explicit Row(const float* row) : row(row), value(load<true>(row, 0)) {}
    Floats at(int64_t i) const { return ONE ? value : load<true>(row + i, 0); }
};

// Bits of a group's comparisons, TOGETHER registers of them.
struct BitRows {
    uint64_t* first = nullptr;  // of the tile's first step, at the block's first element
    int64_t stride = 0;         // words from one time step to the next

    void put(const Words* masks, int64_t t, int64_t i) const {
        constexpr int64_t BITS = TOGETHER * WIDTH<float>;
        uint64_t bits = 0;
        EACH(k) bits |= uint64_t(lane_bits(masks[k])) << (k * WIDTH<float>);
        __builtin_memcpy(reinterpret_cast<char*>(first + t * stride) + i / 8, &bits, BITS / 8);
    }
};

// TOGETHER registers to a row in memory, past the cache if `stream`.
template <class IO>
inline __attribute__((always_inline)) void write_group(const Floats* values, IO* to, bool stream) {
    constexpr int64_t W = WIDTH<float>;
    if constexpr (std::is_same<IO, float>::value) {
        if (stream)
            EACH(k) stream_register(to + k * W, values[k]);
        else
            EACH(k) store<true>(values[k], to + k * W, 0);
    } else {
        for (int k = 0; k < TOGETHER; k += 2) {
            const FullHalves both = narrow_two(values[k], values[k + 1], IO{});
            if (stream)
                stream_register(to + k * W, both);
            else
                put<true>(both, to + k * W, 0);
        }
    }
}

// The bits of a group as masks.
struct BitMasks {
    Words lanes[TOGETHER];

    BitMasks() {
        for (int k = 0; k < TOGETHER; ++k)
            for (int64_t j = 0; j < WIDTH<float>; ++j) lanes[k][j] = 1u << ((k * WIDTH<float> + j) % 32);
    }

    // words: those of the block; i: the group's first element.
    void take(const uint64_t* words, int64_t i, Words* masks) const {
        constexpr int64_t BITS = TOGETHER * WIDTH<float>, PARTS = BITS < 32 ? 1 : BITS / 32;
        uint32_t part[PARTS] = {};
        __builtin_memcpy(part, reinterpret_cast<const char*>(words) + i / 8, BITS / 8);
        EACH(k) masks[k] = Words(((Words{} + part[k * WIDTH<float> / 32]) & lanes[k]) == lanes[k]);
    }
};

// The input current of a group, step by step. MAPPED: scale x + shift [+ extra], rounded as Input::map rounds it.
template <bool MAPPED, class IO>
struct Current {
    const IO* x;
    const float *scale = nullptr, *shift = nullptr, *extra = nullptr;
    int64_t x_stride, map_stride = 0, extra_stride = 0;
    const uint64_t* spikes = nullptr;
    const float* level = nullptr;
    int64_t first = 0, spike_stride = 0;

    Current(const Steps<const IO>& in, const MapRows<float>& map, int64_t i) : x(in.first + i), x_stride(in.stride) {
        if constexpr (MAPPED) {
            scale = map.scale + i, shift = map.shift + i, map_stride = map.stride;
            if (map.extra.first) extra = map.extra.first + i, extra_stride = map.extra.stride;
            if (map.spikes.first) spikes = map.spikes.first, spike_stride = map.spikes.stride, level = map.level + i, first = i;
        }
    }

    void read(const BitMasks& bits, Floats* to) const {
        constexpr int64_t W = WIDTH<float>;
        EACH(k) to[k] = load<true>(x + k * W, 0);
        if constexpr (MAPPED) {
            EACH(k) to[k] = load<true>(scale + k * W, 0) * to[k] + load<true>(shift + k * W, 0);
            if (spikes) {
                Words fired[TOGETHER];
                bits.take(spikes, first, fired);
                EACH(k) to[k] = to[k] + masked(fired[k], load<true>(level + k * W, 0));
            } else if (extra) {
                EACH(k) to[k] = to[k] + load<true>(extra + k * W, 0);
            }
        }
    }

    void early() const {
        load_early(x);
        if (MAPPED && extra) load_early(extra);
    }

    void next() {
        x += x_stride;
        if constexpr (MAPPED) {
            scale += map_stride, shift += map_stride;
            if (extra) extra += extra_stride;
            if (spikes) spikes += spike_stride;
        }
    }
};

// IO: float, with the tile's own rows; or Bf16, straight from and to the tensors. MAPPED: `in` is x, to be mapped.
// With ONE, the last tile writes U of the neurons that fired to kept, adds their number to the LANES places of count, and
// does not write fired.
template <bool ONE, class IO, bool MAPPED>
bool fast_forward(const ForwardTile<float>& tile, Steps<const IO> in, const MapRows<float>& map, Steps<IO> out, int64_t n,
                  bool stream, BitRows bits, BitRows needed, float* kept, float* count) {
    const ConstantRows<float>& c = tile.constants;
    const Row<ONE> v(c.v), fire(c.fire), keep(c.keep), gain(c.gain), level(c.level), low(c.low), high(c.high);
    const Floats one = all<float>(1);
    // Copies: what a pointer leads to would be read again after every store.
    const int64_t steps = tile.steps, out_stride = out.stride;
    const Steps<const IO> x_rows = in;
    const MapRows<float> map_rows = map;
    const BitMasks bit_masks;
    IO* const out_first = out.first;
    const float* const start = tile.start;
    float *const u_row = tile.u, *const fired_row = tile.fired;
    const bool first = tile.first, sums = ONE && tile.last;
    constexpr int64_t W = WIDTH<float>;
    Words nan{};
    for (int64_t i = 0; i < n; i += GROUP<float>) {
        Current<MAPPED, IO> input(x_rows, map_rows, i);
        IO* to = out_first + i;
        Floats u[TOGETHER];
        Words any[TOGETHER];
        EACH(k) {
            u[k] = load<true>(start + i + k * W, 0);
            any[k] = first ? Words{} : Words(load<true>(fired_row + i + k * W, 0) > 0);
        }
        for (int64_t t = 0; t < steps; ++t, input.next(), to += out_stride) {
            Words s[TOGETHER], inside[TOGETHER];
            if (stream) input.early();
            Floats x[TOGETHER];
            input.read(bit_masks, x);
            EACH(k) {
                const int64_t at = i + k * W;
                const Floats m = charge<float>(u[k], x[k], keep.at(at), gain.at(at));
                s[k] = Words(m >= fire.at(at));
                if (needed.first) inside[k] = s[k] | (Words(m >= low.at(at)) & Words(m <= high.at(at)));
                u[k] = m - masked(s[k], v.at(at));
                any[k] |= s[k];
            }
            Floats spikes[TOGETHER];
            EACH(k) spikes[k] = masked(s[k], level.at(i + k * W));
            write_group(spikes, to, stream);
            if (bits.first) bits.put(s, t, i);
            if (needed.first) needed.put(inside, t, i);
        }
        EACH(k) {
            nan |= Words(u[k] != u[k]);
            store<true>(u[k], u_row + i + k * W, 0);
            if (sums) {
                const int64_t lane = i % LANES + k * W;
                store<true>(masked(any[k], u[k]), kept + i + k * W, 0);
                store<true>(load<true>(count + lane, 0) + masked(any[k], one), count + lane, 0);
            } else {
                store<true>(masked(any[k], one), fired_row + i + k * W, 0);
            }
        }
    }
    return !any_lane(nan);
}

// The sums over a tile's steps that the norm behind a map needs: rows of dx and of dx (x - center), for each element.
struct NormSumRows {
    const float* center = nullptr;  // null: not wanted
    float *by_bias = nullptr, *by_weight = nullptr;
};

// dL/dM of a spike is d f', and with the rectangle f' is 0 or its height. TrSG: the V of the output and the 1/V of the
// derivative cancel.
template <bool ONE, bool RECTANGLE, bool IS_TRSG, class IO, bool MAPPED>
bool fast_backward(const BackwardTile<float>& tile, Steps<const IO> in, const MapRows<float>& map, const NormSumRows& norm,
                   Steps<const IO> g_rows, Steps<IO> dx_rows, int64_t n) {
    const ConstantRows<float>& c = tile.constants;
    const bool absolute = tile.task.scan.family == AS;
    const Row<ONE> v(c.v), fire(c.fire), keep(c.keep), gain(c.gain), inverse(c.inverse), low(c.low), high(c.high);
    const Floats height = all<float>(float(tile.task.shape.height));
    const int64_t steps = tile.steps, g_stride = g_rows.stride, dx_stride = dx_rows.stride;
    const IO* const g_last = g_rows.at(steps - 1);
    IO* const dx_last = dx_rows.at(steps - 1);
    const float* const start = tile.u;
    float *const du_row = tile.du, *const dv_row = tile.dv, *const da_row = tile.da;
    Floats *const m_steps = tile.m, *const by_a_steps = tile.by_a, *const f_steps = tile.f;
    const bool stream = tile.stream, sums = MAPPED && norm.center;
    const Steps<const IO> x_rows = in;
    const MapRows<float> map_rows = map;
    const BitMasks bit_masks;
    constexpr int64_t W = WIDTH<float>;
    Words nan{};
    for (int64_t i = 0; i < n; i += GROUP<float>) {
        {
            Floats u[TOGETHER];
            Current<MAPPED, IO> input(x_rows, map_rows, i);
            EACH(k) u[k] = load<true>(start + i + k * W, 0);
            for (int64_t t = 0; t < steps; ++t, input.next()) {
                if (stream) input.early();
                Floats currents[TOGETHER];
                input.read(bit_masks, currents);
                EACH(k) {
                    const int64_t at = i + k * W, step = t * TOGETHER + k;
                    const Floats x = currents[k];
                    const Floats m = charge<float>(u[k], x, keep.at(at), gain.at(at));
                    m_steps[step] = m;
                    by_a_steps[step] = x - u[k];
                    u[k] = m - masked(Words(m >= fire.at(at)), v.at(at));
                }
            }
            EACH(k) nan |= Words(u[k] != u[k]);
        }
        if constexpr (!RECTANGLE) slopes<float>(m_steps, f_steps, steps, tile.task, c, i);
        Floats gu[TOGETHER], spiked[TOGETHER], weighted[TOGETHER], da[TOGETHER], by_bias[TOGETHER], by_weight[TOGETHER];
        EACH(k) {
            gu[k] = load<true>(du_row + i + k * W, 0);
            spiked[k] = weighted[k] = da[k] = by_bias[k] = by_weight[k] = Floats{};
        }
        const IO* g_at = g_last + i;
        IO* to = dx_last + i;
        for (int64_t t = steps - 1; t >= 0; --t, g_at -= g_stride, to -= dx_stride) {
            if (stream) load_early(g_at);
            Floats dx[TOGETHER];
            EACH(k) {
                const int64_t at = i + k * W, step = t * TOGETHER + k;
                const Floats m = m_steps[step], g = load<true>(g_at + k * W, 0);
                const Words s = Words(m >= fire.at(at));
                const Floats f = RECTANGLE ? masked(Words(m >= low.at(at)) & Words(m <= high.at(at)), height)
                                           : f_steps[step];
                Floats d, by_v;
                if constexpr (IS_TRSG) {
                    d = g - gu[k];
                    by_v = d;
                } else {
                    d = absolute ? g - gu[k] * v.at(at) : g * inverse.at(at) - gu[k];
                    by_v = -gu[k];
                }
                const Floats from_spike = d * f, gm = from_spike + gu[k];
                spiked[k] += masked(s, by_v);
                weighted[k] += !IS_TRSG && absolute ? from_spike : from_spike * m;
                da[k] += gm * by_a_steps[step];
                gu[k] = gm * keep.at(at);
                dx[k] = gm * gain.at(at);
            }
            write_group(dx, to, stream);
            if constexpr (MAPPED) {
                if (sums) EACH(k) {
                    const int64_t at = i + k * W;
                    by_bias[k] += dx[k];
                    by_weight[k] += dx[k] * (load<true>(x_rows.at(t) + at, 0) - load<true>(norm.center + at, 0));
                }
            }
        }
        if (sums) EACH(k) {
            store<true>(by_bias[k], norm.by_bias + i + k * W, 0);
            store<true>(by_weight[k], norm.by_weight + i + k * W, 0);
        }
        EACH(k) {
            const int64_t at = i + k * W;
            const Floats sum = !IS_TRSG && absolute ? weighted[k] : weighted[k] * inverse.at(at);
            const int64_t place = ONE ? i % LANES + k * W : at;
            const Floats dv_before = ONE ? load<true>(dv_row + place, 0) : Floats{};
            const Floats da_before = ONE ? load<true>(da_row + place, 0) : Floats{};
            store<true>(gu[k], du_row + at, 0);
            store<true>(dv_before + (spiked[k] - sum), dv_row + place, 0);
            store<true>(da_before + da[k], da_row + place, 0);
        }
    }
    return !any_lane(nan);
}

}  // namespace
