// The backward of the common case, see fast.h.
#pragma once
#include "fast.h"

namespace {

// The sums over a tile's steps that the norm behind a map needs: rows of dx and of dx (x - center), for each element.
struct NormSumRows {
    const float* center = nullptr;  // null: not wanted
    float *by_bias = nullptr, *by_weight = nullptr;
};

// The constants of recompute.
template <bool ONE>
struct HeldRows {
    Held<ONE> keep, gain, fire, v, low, high;

    explicit HeldRows(const ConstantRows<float>& c) : keep(c.keep), gain(c.gain), fire(c.fire), v(c.v), low(c.low), high(c.high) {}
};

// One group's potentials again, and what follows from them. READY: instead of M its step gets S V - f' M, and f'.
template <bool ONE, bool READY, class IO, bool MAPPED>
inline __attribute__((always_inline)) void recompute(const HeldRows<ONE>& c, Current<MAPPED, IO> input, const BitMasks& bit_masks,
                                                     const float* start, int64_t i, int64_t steps, bool same_start, bool stream,
                                                     Floats height, NanSeen& nan, GroupStep<float>* to) {
    constexpr int64_t W = WIDTH<float>;
    constexpr bool HALVES = !std::is_same<IO, float>::value, SPLIT = HALVES && ONE;
    Floats u[TOGETHER];
    EACH_PAIR(k) {
        const Pair before = load_pair<SPLIT>(same_start ? start : start + i + k * W, same_start);
        u[k] = before.first, u[k + 1] = before.second;
    }
    for (int64_t t = 0; t < steps; ++t, ++to, input.next()) {
        if (stream) input.early();
        EACH_PAIR(k) {
            Pair x;
            if constexpr (HALVES) x = load_pair<SPLIT>(input.x + k * W);
            BOTH(j) {
                const int64_t at = i + (k + j) * W;
                const Floats current = HALVES ? j ? x.second : x.first : input.at(bit_masks, k + j);
                const Floats m = charge<float>(u[k + j], current, c.keep.at(at), c.gain.at(at));
                const Floats spike = where(at_least(m, c.fire.at(at)), c.v.at(at));
                to->by_a[k + j] = current - u[k + j];
                u[k + j] = m - spike;
                if constexpr (READY) {
                    const Floats f = where(between(m, c.low.at(at), c.high.at(at)), height);
                    to->f[k + j] = f;
                    to->m[k + j] = spike - f * m;
                } else {
                    to->m[k + j] = m;
                }
            }
        }
    }
    EACH_PAIR(k) nan.look(u[k], u[k + 1]);
}

// The sums of one group that has dx in the place of m.
inline void norm_sums(const GroupStep<float>* group, const Steps<const float>& x, const NormSumRows& norm, int64_t steps, int64_t i) {
    for (int k = 0; k < TOGETHER; ++k) {
        const int64_t at = i + k * WIDTH<float>;
        const Floats center = load<true>(norm.center + at, 0);
        Floats by_bias{}, by_weight{};
        for (int64_t t = steps - 1; t >= 0; --t) {
            const Floats dx = group[t].m[k];
            by_bias += dx;
            by_weight += dx * (load<true>(x.at(t) + at, 0) - center);
        }
        store<true>(by_bias, norm.by_bias + at, 0);
        store<true>(by_weight, norm.by_weight + at, 0);
    }
}

// dL/dM of a spike is d f', and with the rectangle f' is 0 or its height. TrSG: the V of the output and the 1/V of the
// derivative cancel, and V dL/dV of a step is d (S V - f' M).
//
// ONE: the sums over the steps are added to the places of dv (with TrSG V dL/dV) and da, see place_of; so is dL/dU to
// du_lanes if there is no row du.
//
// bfloat16 is written without a look for NaN: whatever is not finite stays in dL/dU, so that this is seen at the end.
template <int CASE, bool RECTANGLE, bool IS_TRSG, class IO, bool MAPPED>
bool fast_backward(const BackwardTile<float>& tile, Steps<const IO> in, const MapRows<float>& map, const NormSumRows& norm,
                   Steps<const IO> g_rows, Steps<IO> dx_rows, int64_t n) {
    constexpr int64_t W = WIDTH<float>;
    constexpr bool ONE = CASE >= ONE_CHANNEL, PLAIN = CASE >= PLAIN_CACHED;
    constexpr bool HALVES = !std::is_same<IO, float>::value, SPLIT = HALVES && ONE, READY = RECTANGLE && IS_TRSG;
    const ConstantRows<float>& c = tile.constants;
    const bool absolute = tile.task.scan.family == AS;
    const Row<ONE> v{c.v}, fire{c.fire}, inverse{c.inverse}, low{c.low}, high{c.high};
    const HeldRows<ONE> held(c);
    const Held<ONE> keep(c.keep), gain(c.gain);
    const Floats height = all<float>(float(tile.task.shape.height));
    const int64_t steps = tile.steps, g_stride = g_rows.stride, dx_stride = dx_rows.stride;
    const IO* const g_last = g_rows.at(steps - 1);
    IO* const dx_last = dx_rows.at(steps - 1);
    const float* const start = tile.u;
    const float* const du_after = tile.du_after;
    float *const du_row = PLAIN ? nullptr : tile.du, *const dv_row = tile.dv, *const da_row = tile.da, *const du_lanes = tile.du_lanes;
    GroupStep<float>* const group = tile.group;
    const bool stream = PLAIN ? CASE == PLAIN_PAST_CACHE : tile.stream, sums = MAPPED && norm.center;
    const bool same_u = PLAIN || tile.same_u, same_du = PLAIN || tile.same_du;
    const Steps<const IO> x_rows = in;
    const MapRows<float> map_rows = map;
    const BitMasks bit_masks;
    NanSeen bad;
    for (int64_t i = 0; i < n; i += GROUP<float>) {
        recompute<ONE, READY, IO, MAPPED>(held, {x_rows, map_rows, i}, bit_masks, start, i, steps, same_u, stream, height, bad, group);
        if constexpr (!RECTANGLE) slopes<float>(group, steps, tile.task, c, i);
        Floats gu[TOGETHER], dv[TOGETHER], da[TOGETHER], weighted[TOGETHER];
        EACH_PAIR(k) {
            const Pair after = load_pair<SPLIT>(same_du ? du_after : du_after + i + k * W, same_du);
            gu[k] = after.first, gu[k + 1] = after.second;
            BOTH(j) dv[k + j] = da[k + j] = weighted[k + j] = Floats{};
        }
        const IO* g_at = g_last + i;
        IO* to = dx_last + i;
        for (GroupStep<float>* step = group + steps - 1; step >= group; --step, g_at -= g_stride, to -= dx_stride) {
            if (stream) load_early(g_at);
            EACH_PAIR(k) {
                Pair g_pair;
                Floats dx[2];
                if constexpr (HALVES) g_pair = load_pair<SPLIT>(g_at + k * W);
                BOTH(j) {
                    const int64_t at = i + (k + j) * W;
                    Floats g = j ? g_pair.second : g_pair.first;
                    if constexpr (!HALVES) g = load<true>(g_at + (k + j) * W, 0);
                    const Floats m = step->m[k + j], before = gu[k + j];
                    const Floats f = RECTANGLE && !READY ? where(between(m, low.at(at), high.at(at)), height)
                                                         : step->f[k + j];
                    Floats d;
                    if constexpr (IS_TRSG)
                        d = g - before;
                    else
                        d = absolute ? g - before * v.at(at) : g * inverse.at(at) - before;
                    const Floats from_spike = d * f, gm = from_spike + before;
                    if constexpr (READY) {
                        dv[k + j] += d * m;
                    } else if constexpr (IS_TRSG) {
                        dv[k + j] += d * (where(at_least(m, fire.at(at)), v.at(at)) - f * m);
                    } else {
                        dv[k + j] -= where(at_least(m, fire.at(at)), before);
                        weighted[k + j] += absolute ? from_spike : from_spike * m;
                    }
                    da[k + j] += gm * step->by_a[k + j];
                    gu[k + j] = gm * keep.at(at);
                    dx[j] = gm * gain.at(at);
                    if constexpr (!HALVES) write_register(dx[j], to + (k + j) * W, stream);
                    if (sums) step->m[k + j] = dx[j];
                    read_again();
                }
                if constexpr (SPLIT)
                    write_register(narrow_split({dx[0], dx[1]}), to + k * W, stream);
                else if constexpr (HALVES)
                    write_register(narrow_two(dx[0], dx[1], IO{}), to + k * W, stream);
            }
        }
        if constexpr (MAPPED) {
            if (sums) norm_sums(group, x_rows, norm, steps, i);
        }
        const int64_t place = place_of(i);
        EACH_PAIR(k) {
            BOTH(j) {
                const int64_t at = i + (k + j) * W;
                if (IS_TRSG && !ONE) dv[k + j] = dv[k + j] * inverse.at(at);
                if (!IS_TRSG) dv[k + j] -= absolute ? weighted[k + j] : weighted[k + j] * inverse.at(at);
            }
            if (SPLIT) bad.look(gu[k] - gu[k], gu[k + 1] - gu[k + 1]);
            Pair us{gu[k], gu[k + 1]}, vs{dv[k], dv[k + 1]}, as{da[k], da[k + 1]};
            if (SPLIT) us = join(us), vs = join(vs), as = join(as);
            BOTH(j) {
                const Floats by_u = j ? us.second : us.first, by_v = j ? vs.second : vs.first, by_a = j ? as.second : as.first;
                const int64_t at = i + (k + j) * W, lane = place + (k + j) * W % LANES;
                if (du_row) store<true>(by_u, du_row + at, 0);
                if (ONE) {
                    add_to_row(by_v, dv_row + lane), add_to_row(by_a, da_row + lane);
                    if (!du_row) add_to_row(by_u, du_lanes + lane);
                } else {
                    store<true>(by_v, dv_row + at, 0), store<true>(by_a, da_row + at, 0);
                }
            }
        }
    }
    return !bad.any();
}

}  // namespace
