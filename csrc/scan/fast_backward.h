// The backward of the common case, see fast.h.
#pragma once
#include "fast.h"

#define EACH_REGISTER(k) _Pragma("GCC unroll 16") for (int k = 0; k < COUNT; ++k)
#define EACH_SUM(s) _Pragma("GCC unroll 16") for (int s = 0; s < SUMS; ++s)

namespace {

// Registers of neurons that are computed at the same time. With one channel the sums for V and a need only few
// registers, so that there is room for more. It is the same number of elements with every instruction set, because it
// decides the order of additions.
template <bool ONE>
constexpr int ABREAST = ONE ? int(PAD / WIDTH<float>) : TOGETHER;

// The sums over a tile's steps that the norm before a map needs: rows of dx and of dx (x - center), for each element.
struct NormSumRows {
    const float* center = nullptr;  // null: these sums are not needed
    float *by_bias = nullptr, *by_weight = nullptr;
};

// The constants of recompute.
template <bool ONE>
struct HeldRows {
    Held<ONE> keep, gain, fire, v, low, high;
    Range window;                      // of the one channel
    Floats silent = -Floats{}, fired;  // its -S V

    explicit HeldRows(const ConstantRows<float>& c)
        : keep(c.keep), gain(c.gain), fire(c.fire), v(c.v), low(c.low), high(c.high), window(low.value, high.value),
          fired(-v.value) {}

    // The lower edge of the window is above 0.
    Mask inside(Floats m, int64_t at) const {
        return ONE ? within(m, window) : between(m, low.at(at), high.at(at));
    }

    // -S V, with the sign set even if it is 0.
    Floats minus_spike(Floats m, int64_t at) const {
        return choose(at_least(m, fire.at(at)), ONE ? fired : -v.at(at), silent);
    }
};

// One group's potentials again, and the values that follow from them. USUAL: instead of M its step gets U inside of the
// window and -S V outside. U is at least +0 inside, because M is above 0, so the sign shows which of the two it is.
// next: the memory that is read after the last step.
template <bool ONE, bool USUAL, class IO, bool MAPPED, int COUNT, class Step>
inline __attribute__((always_inline)) void recompute(const HeldRows<ONE>& c, Current<MAPPED, IO> input,
                                                     const BitMasks<COUNT>& bit_masks, const float* start, int64_t i,
                                                     int64_t steps, bool same_start, bool stream, NanSeen& nan, Step* to,
                                                     const IO* next) {
    constexpr int64_t W = WIDTH<float>;
    constexpr bool HALVES = !std::is_same<IO, float>::value, SPLIT = HALVES && ONE;
    Floats u[COUNT];
    EACH_PAIR(k, COUNT) {
        const Pair before = load_pair<SPLIT>(same_start ? start : start + i + k * W, same_start);
        u[k] = before.first, u[k + 1] = before.second;
    }
    for (int64_t t = 0; t < steps; ++t, ++to, input.next()) {
        if (stream)
            input.template early<COUNT>();
        else
            load_early<COUNT>(t + 1 < steps ? input.x + input.x_stride : next, 0);
        EACH_PAIR(k, COUNT) {
            Pair x;
            if constexpr (HALVES) x = load_pair<SPLIT>(input.x + k * W);
            BOTH(j) {
                const int64_t at = i + (k + j) * W;
                const Floats current = HALVES ? j ? x.second : x.first : input.at(bit_masks, k + j);
                const Floats m = charge<float>(u[k + j], current, c.keep.at(at), c.gain.at(at));
                to->by_a[k + j] = current - u[k + j];
                if constexpr (USUAL) {
                    const Floats minus_spike = c.minus_spike(m, at);
                    u[k + j] = m + minus_spike;
                    to->m[k + j] = choose(c.inside(m, at), u[k + j], minus_spike);
                } else {
                    u[k + j] = minus_where(m, at_least(m, c.fire.at(at)), c.v.at(at));
                    to->m[k + j] = m;
                }
            }
        }
    }
    if constexpr (!USUAL) EACH_PAIR(k, COUNT) nan.look(u[k], u[k + 1]);
}

// The sums of one group that has dx instead of m.
template <int COUNT, class Step>
inline void norm_sums(const Step* group, const Steps<const float>& x, const NormSumRows& norm, int64_t steps, int64_t i) {
    for (int k = 0; k < COUNT; ++k) {
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

// The conditions for which fast_backward is compiled. USUAL: TrSG with a rectangle of height 1 whose window is above 0.
enum Derivative : int { OTHER_SHAPE, RECTANGLE, USUAL };

// dL/dM of a spike is d f', and with the rectangle f' is 0 or its height. With TrSG the V of the output and the 1/V of
// the derivative cancel, and V dL/dV of a step is d (S V - f' M).
//
// In the usual case this is -d U inside of the window and d S V outside, and dL/dM is d + dL/dU inside and dL/dU
// outside. This is a selection, while the reference multiplies by 0. Non-finite values are not lost: every d is
// multiplied into the sum dv, and every input and potential (M is between the two) into the sum da. Checking the sums
// is therefore enough to send the block to general.h.
//
// ONE: the sums over the steps are added to the slots of dv (with TrSG V dL/dV) and da, see place_of; dL/dU is added to
// du_lanes if there is no row du.
//
// bfloat16 is written without a check for NaN: non-finite values stay in dL/dU, so they are detected at the end.
template <int CASE, int DERIVATIVE, bool IS_TRSG, class IO, bool MAPPED>
bool fast_backward(const BackwardTile<float>& tile, Steps<const IO> in, const MapRows<float>& map, const NormSumRows& norm,
                   Steps<const IO> g_rows, Steps<IO> dx_rows, int64_t n) {
    constexpr int64_t W = WIDTH<float>;
    constexpr bool ONE = CASE >= ONE_CHANNEL, PLAIN = CASE >= PLAIN_CACHED, IS_USUAL = DERIVATIVE == USUAL;
    constexpr bool HALVES = !std::is_same<IO, float>::value, SPLIT = HALVES && ONE;
    constexpr int COUNT = ABREAST<ONE>, SUMS = ONE ? int(SUM_LANES / W) : COUNT;
    using Step = std::conditional_t<DERIVATIVE == OTHER_SHAPE, GroupStep<float, COUNT>, ShortStep<float, COUNT>>;
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
    Step* const group = reinterpret_cast<Step*>(tile.group);
    const bool stream = PLAIN ? CASE == PLAIN_PAST_CACHE : tile.stream, sums = MAPPED && norm.center;
    const bool same_u = PLAIN || tile.same_u, same_du = PLAIN || tile.same_du;
    const Steps<const IO> x_rows = in;
    const MapRows<float> map_rows = map;
    const BitMasks<COUNT> bit_masks;
    NanSeen bad;
    for (int64_t i = 0; i < n; i += COUNT * W) {
        recompute<ONE, IS_USUAL, IO, MAPPED>(held, {x_rows, map_rows, i}, bit_masks, start, i, steps, same_u, stream, bad, group,
                                             g_last + i);
        if constexpr (DERIVATIVE == OTHER_SHAPE) slopes(group, steps, tile.task, c, i);
        Floats gu[COUNT], dv[SUMS], da[SUMS], weighted[SUMS];
        EACH_PAIR(k, COUNT) {
            const Pair after = load_pair<SPLIT>(same_du ? du_after : du_after + i + k * W, same_du);
            gu[k] = after.first, gu[k + 1] = after.second;
        }
        const int64_t place = ONE ? place_of(i) : i;
        EACH_SUM(s) dv[s] = da[s] = weighted[s] = Floats{};
        const IO* g_at = g_last + i;
        IO* to = dx_last + i;
        for (Step* step = group + steps - 1; step >= group; --step, g_at -= g_stride, to -= dx_stride) {
            if (stream)
                load_early<COUNT>(g_at);
            else
                load_early<COUNT>(step > group ? g_at - g_stride : x_rows.first + i + COUNT * W, 0);
            EACH_PAIR(k, COUNT) {
                Pair g_pair;
                Floats dx[2];
                if constexpr (HALVES) g_pair = load_pair<SPLIT>(g_at + k * W);
                BOTH(j) {
                    const int64_t at = i + (k + j) * W;
                    const int s = sum_of<SPLIT>(k + j, SUMS);
                    Floats g = j ? g_pair.second : g_pair.first;
                    if constexpr (!HALVES) g = load<true>(g_at + (k + j) * W, 0);
                    const Floats m = step->m[k + j], before = gu[k + j];
                    Floats d, gm;
                    if constexpr (IS_TRSG)
                        d = g - before;
                    else
                        d = absolute ? g - before * v.at(at) : g * inverse.at(at) - before;
                    if constexpr (IS_USUAL) {
                        gm = choose_by_sign(m, before, d + before);
                        dv[s] -= d * m;
                    } else {
                        Floats f;
                        if constexpr (DERIVATIVE == RECTANGLE)
                            f = where(between(m, low.at(at), high.at(at)), height);
                        else
                            f = step->f[k + j];
                        const Floats from_spike = d * f;
                        gm = from_spike + before;
                        if constexpr (IS_TRSG) {
                            dv[s] += d * (where(at_least(m, fire.at(at)), v.at(at)) - f * m);
                        } else {
                            dv[s] -= where(at_least(m, fire.at(at)), before);
                            weighted[s] += absolute ? from_spike : from_spike * m;
                        }
                    }
                    da[s] += gm * step->by_a[k + j];
                    gu[k + j] = gm * keep.at(at);
                    dx[j] = gm * gain.at(at);
                    if constexpr (!HALVES) write_register(dx[j], to + (k + j) * W, stream);
                    if (sums) step->m[k + j] = dx[j];
                    if constexpr (!IS_USUAL) read_again();
                }
                if constexpr (SPLIT)
                    write_register(narrow_split({dx[0], dx[1]}), to + k * W, stream);
                else if constexpr (HALVES)
                    write_register(narrow_two(dx[0], dx[1], IO{}), to + k * W, stream);
            }
        }
        if constexpr (MAPPED) {
            if (sums) norm_sums<COUNT>(group, x_rows, norm, steps, i);
        }
        EACH_SUM(s) {
            const int64_t at = i + s * W;
            if (IS_TRSG && !ONE) dv[s] = dv[s] * inverse.at(at);
            if (!IS_TRSG) dv[s] -= absolute ? weighted[s] : weighted[s] * inverse.at(at);
            if (IS_USUAL && !ONE) bad.look(dv[s] - dv[s], da[s] - da[s]);
            if (ONE) {
                add_to_row(dv[s], dv_row + place + s * W), add_to_row(da[s], da_row + place + s * W);
            } else {
                store<true>(dv[s], dv_row + place + s * W, 0), store<true>(da[s], da_row + place + s * W, 0);
            }
        }
        if (SPLIT && !IS_USUAL) EACH_PAIR(k, COUNT) bad.look(gu[k] - gu[k], gu[k + 1] - gu[k + 1]);
        if (du_row) {
            EACH_PAIR(k, COUNT) store_pair<SPLIT>({gu[k], gu[k + 1]}, du_row + i + k * W);
        } else if (ONE) {
            Floats by_u[SUMS];
            EACH_SUM(s) by_u[s] = Floats{};
            EACH_REGISTER(k) by_u[sum_of<SPLIT>(k, SUMS)] += gu[k];
            EACH_SUM(s) add_to_row(by_u[s], du_lanes + place + s * W);
        }
    }
    if (IS_USUAL && ONE)
        for (int64_t place = 0; place < places_of(n); place += W)
            bad.look(load<true>(dv_row + place, 0) * Floats{}, load<true>(da_row + place, 0) * Floats{});
    return !bad.any();
}

}  // namespace
