// The common case of general.h in float: a soft reset that gradients pass, decayed input, thresholds above 0 and finite,
// nothing but the spikes asked for.
//
// A spike is a mask here, so that a NaN potential would pass for silence. But with this reset a NaN stays in U, so that
// looking at U after the last step is enough: both functions return false then, and general.h does the block again.
#pragma once
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

template <bool ONE>
bool fast_forward(const ForwardTile<float>& tile, int64_t n, bool stream, BitRows bits, BitRows needed) {
    const ConstantRows<float>& c = tile.constants;
    const Row<ONE> v(c.v), fire(c.fire), keep(c.keep), gain(c.gain), level(c.level), low(c.low), high(c.high);
    const Floats one = all<float>(1);
    const int64_t steps = tile.steps, in_stride = tile.in.stride, out_stride = tile.out.stride;
    constexpr int64_t W = WIDTH<float>;
    Words nan{};
    for (int64_t i = 0; i < n; i += GROUP<float>) {
        const float* from = tile.in.first + i;
        float* to = tile.out.first + i;
        Floats u[TOGETHER];
        Words any[TOGETHER];
        EACH(k) {
            u[k] = load<true>(tile.u + i + k * W, 0);
            any[k] = Words(load<true>(tile.fired + i + k * W, 0) > 0);
        }
        for (int64_t t = 0; t < steps; ++t, from += in_stride, to += out_stride) {
            Words s[TOGETHER], inside[TOGETHER];
            if (stream) load_early(from);
            EACH(k) {
                const int64_t at = i + k * W;
                const Floats m = charge<float>(u[k], load<true>(from + k * W, 0), keep.at(at), gain.at(at));
                s[k] = Words(m >= fire.at(at));
                if (needed.first) inside[k] = s[k] | (Words(m >= low.at(at)) & Words(m <= high.at(at)));
                u[k] = m - masked(s[k], v.at(at));
                any[k] |= s[k];
            }
            if (stream)
                EACH(k) stream_register(to + k * W, masked(s[k], level.at(i + k * W)));
            else
                EACH(k) store<true>(masked(s[k], level.at(i + k * W)), to + k * W, 0);
            if (bits.first) bits.put(s, t, i);
            if (needed.first) needed.put(inside, t, i);
        }
        EACH(k) {
            nan |= Words(u[k] != u[k]);
            store<true>(u[k], tile.u + i + k * W, 0);
            store<true>(masked(any[k], one), tile.fired + i + k * W, 0);
        }
    }
    return !any_lane(nan);
}

// dL/dM of a spike is d f', and with the rectangle f' is 0 or its height. TrSG: the V of the output and the 1/V of the
// derivative cancel.
template <bool ONE, bool RECTANGLE, bool IS_TRSG>
bool fast_backward(const BackwardTile<float>& tile, int64_t n) {
    const ConstantRows<float>& c = tile.constants;
    const bool absolute = tile.task.scan.family == AS;
    const Row<ONE> v(c.v), fire(c.fire), keep(c.keep), gain(c.gain), inverse(c.inverse), low(c.low), high(c.high);
    const Floats height = all<float>(float(tile.task.shape.height));
    const int64_t steps = tile.steps;
    constexpr int64_t W = WIDTH<float>;
    Words nan{};
    for (int64_t i = 0; i < n; i += GROUP<float>) {
        {
            Floats u[TOGETHER];
            const float* from = tile.in.first + i;
            EACH(k) u[k] = load<true>(tile.u + i + k * W, 0);
            for (int64_t t = 0; t < steps; ++t, from += tile.in.stride) {
                if (tile.stream) load_early(from);
                EACH(k) {
                    const int64_t at = i + k * W, step = t * TOGETHER + k;
                    const Floats x = load<true>(from + k * W, 0);
                    const Floats m = charge<float>(u[k], x, keep.at(at), gain.at(at));
                    tile.m[step] = m;
                    tile.by_a[step] = x - u[k];
                    u[k] = m - masked(Words(m >= fire.at(at)), v.at(at));
                }
            }
            EACH(k) nan |= Words(u[k] != u[k]);
        }
        if constexpr (!RECTANGLE) slopes<float>(tile.m, tile.f, steps, tile.task, c, i);
        // Two registers at a time: more would not leave room for their sums.
        for (int pair = 0; pair < TOGETHER; pair += 2) {
            Floats gu[2], spiked[2], weighted[2], da[2];
#pragma GCC unroll 2
            for (int k = 0; k < 2; ++k) {
                gu[k] = load<true>(tile.du + i + (pair + k) * W, 0);
                spiked[k] = weighted[k] = da[k] = Floats{};
            }
            const float* g_at = tile.g.at(steps - 1) + i + pair * W;
            float* to = tile.dx.at(steps - 1) + i + pair * W;
            for (int64_t t = steps - 1; t >= 0; --t, g_at -= tile.g.stride, to -= tile.dx.stride) {
                if (tile.stream && pair == 0) load_early(g_at);
#pragma GCC unroll 2
                for (int k = 0; k < 2; ++k) {
                    const int64_t at = i + (pair + k) * W, step = t * TOGETHER + pair + k;
                    const Floats m = tile.m[step], g = load<true>(g_at + k * W, 0);
                    const Words s = Words(m >= fire.at(at));
                    const Floats f = RECTANGLE ? masked(Words(m >= low.at(at)) & Words(m <= high.at(at)), height)
                                               : tile.f[step];
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
                    da[k] += gm * tile.by_a[step];
                    gu[k] = gm * keep.at(at);
                    const Floats dx = gm * gain.at(at);
                    if (tile.stream)
                        stream_register(to + k * W, dx);
                    else
                        store<true>(dx, to + k * W, 0);
                }
            }
#pragma GCC unroll 2
            for (int k = 0; k < 2; ++k) {
                const int64_t at = i + (pair + k) * W;
                const Floats sum = !IS_TRSG && absolute ? weighted[k] : weighted[k] * inverse.at(at);
                store<true>(gu[k], tile.du + at, 0);
                store<true>(spiked[k] - sum, tile.dv + at, 0);
                store<true>(da[k], tile.da + at, 0);
            }
        }
    }
    return !any_lane(nan);
}

}  // namespace
