// The LIF equations of core/lif.py, one row of elements at a time: charge, fire, reset, and their gradient.
// Same operations in the same order as the reference, each rounded (no FMA contraction), so the spikes are the same.
#pragma once
#include "surrogate.h"

namespace {

enum FamilyCode { AS = 0, RS = 1, TRSG = 2 };
enum ResetCode { SOFT = 0, HARD = 1, NONE = 2 };
enum DetachCode { KEEP = 0, DETACH_SPIKE = 1, DETACH_PRODUCT = 2 };

// Read like an array, whatever the index: a parameter that all elements of a block share.
template <class R>
struct Shared {
    R value;
    R operator[](int64_t) const { return value; }
};

// P is Shared<R>, or const R* where neighbours differ.
template <class P>
struct Params {
    P v, fire, keep, gain, inverse;  // inverse: 1/V
};

// S: 1 if the potential reaches the firing level, NaN if it is NaN.
template <class R>
inline R spike(R m, R level) {
    const R s = m >= level ? R(1) : R(0);
    return m != m ? m : s;
}

template <class R, int RESET>
inline R after_reset(R m, R s, R v) {
    if constexpr (RESET == SOFT) return m - v * s;
    if constexpr (RESET == HARD) return m * (1 - s);
    return m;
}

// Rows may be the same memory only where they are not restricted: z = x in place.
template <class R>
void affine_row(int64_t n, const R* x, const R* __restrict scale, const R* __restrict shift, R* z) {
    for (int64_t i = 0; i < n; ++i) z[i] = scale[i] * x[i] + shift[i];
}

template <class R>
void affine_row(int64_t n, const R* x, const R* __restrict scale, const R* __restrict shift, const R* __restrict extra,
                const R* __restrict extra_scale, R* z) {
    for (int64_t i = 0; i < n; ++i) z[i] = (scale[i] * x[i] + shift[i]) + extra_scale[i] * extra[i];
}

// One forward step. u: U[t-1] in, U[t] out; fired becomes 1 where S is.
template <class R, class P, int RESET, bool SCALED, bool MEMBRANE>
void forward_row(int64_t n, const R* __restrict x, R* __restrict u, R* __restrict fired, R* __restrict out,
                 R* __restrict membrane, const Params<P> p) {
    for (int64_t i = 0; i < n; ++i) {
        const R m = p.keep[i] * u[i] + p.gain[i] * x[i];
        const R s = spike(m, p.fire[i]);
        out[i] = SCALED ? p.v[i] * s : s;
        u[i] = after_reset<R, RESET>(m, s, p.v[i]);
        fired[i] = s > 0 ? R(1) : fired[i];
        if constexpr (MEMBRANE) membrane[i] = m;
    }
}

// One recomputed step for the backward: M[t], and dM/da = I[t] - U[t-1] (raw input: -U[t-1]).
template <class R, class P, int RESET, bool DECAY>
void recompute_row(int64_t n, const R* __restrict x, R* __restrict u, R* __restrict membrane, R* __restrict by_a,
                   const Params<P> p) {
    for (int64_t i = 0; i < n; ++i) {
        const R m = p.keep[i] * u[i] + p.gain[i] * x[i];
        membrane[i] = m;
        by_a[i] = DECAY ? x[i] - u[i] : -u[i];
        u[i] = after_reset<R, RESET>(m, spike(m, p.fire[i]), p.v[i]);
    }
}

// f'(z) at z = M - V ("as") or M/V - 1. A window's edge is a decision, so its z is divided as the reference does; the
// continuous surrogates take the faster product.
template <class R, class P, bool ABSOLUTE, int SURROGATE>
void slope_row(int64_t n, const R* __restrict membrane, R* __restrict f, const Params<P> p, const Shape<R> shape) {
    constexpr bool WINDOW = SURROGATE == RECT || SURROGATE == DSPIKE;
    for (int64_t i = 0; i < n; ++i) {
        const R m = membrane[i];
        const R z = ABSOLUTE ? m - p.v[i] : (WINDOW ? m / p.v[i] : m * p.inverse[i]) - 1;
        f[i] = slope<R, SURROGATE>(z, shape);
    }
}

// One step back. du: dL/dU[t] in, dL/dU[t-1] out; dv, da: running sums per element.
template <class R, class P, int FAMILY, int RESET, int DETACH>
void backward_row(int64_t n, const R* __restrict membrane, const R* __restrict by_a, const R* __restrict f,
                  const R* __restrict g_out, const R* __restrict g_m, R* __restrict du, R* __restrict dx,
                  R* __restrict dv, R* __restrict da, const Params<P> p) {
    for (int64_t i = 0; i < n; ++i) {
        const R m = membrane[i], v = p.v[i], g = g_out[i], gu = du[i];
        const R s = spike(m, p.fire[i]);
        R gs = FAMILY == TRSG ? g * v : g;  // dL/dS, from the output and through the reset
        if constexpr (DETACH == KEEP && RESET == SOFT) gs = gs - gu * v;
        if constexpr (DETACH == KEEP && RESET == HARD) gs = gs - gu * m;
        const R gz = gs * f[i];
        const R from_spike = FAMILY == AS ? gz : gz * p.inverse[i];
        const R gm = from_spike + (RESET == HARD ? gu * (1 - s) : gu) + g_m[i];
        R gv = FAMILY == AS ? -gz : -(from_spike * (m * p.inverse[i]));
        if constexpr (FAMILY == TRSG) gv = gv + g * s;
        if constexpr (RESET == SOFT && DETACH != DETACH_PRODUCT) gv = gv - gu * s;
        dv[i] = dv[i] + gv;
        da[i] = da[i] + gm * by_a[i];
        dx[i] = gm * p.gain[i];
        du[i] = gm * p.keep[i];
    }
}

template <class R, class P>
using ForwardRow = void (*)(int64_t, const R*, R*, R*, R*, R*, Params<P>);
template <class R, class P>
using RecomputeRow = void (*)(int64_t, const R*, R*, R*, R*, Params<P>);
template <class R, class P>
using SlopeRow = void (*)(int64_t, const R*, R*, Params<P>, Shape<R>);
template <class R, class P>
using BackwardRow = void (*)(int64_t, const R*, const R*, const R*, const R*, const R*, R*, R*, R*, R*, Params<P>);

template <class R, class P>
ForwardRow<R, P> pick_forward(int64_t reset, bool scaled, bool membrane) {
#define ROWS(RESET)                                                                             \
    {{forward_row<R, P, RESET, false, false>, forward_row<R, P, RESET, false, true>},            \
     {forward_row<R, P, RESET, true, false>, forward_row<R, P, RESET, true, true>}}
    static constexpr ForwardRow<R, P> table[3][2][2] = {ROWS(SOFT), ROWS(HARD), ROWS(NONE)};
#undef ROWS
    return table[reset][scaled][membrane];
}

template <class R, class P>
RecomputeRow<R, P> pick_recompute(int64_t reset, bool decay) {
    static constexpr RecomputeRow<R, P> table[3][2] = {
        {recompute_row<R, P, SOFT, false>, recompute_row<R, P, SOFT, true>},
        {recompute_row<R, P, HARD, false>, recompute_row<R, P, HARD, true>},
        {recompute_row<R, P, NONE, false>, recompute_row<R, P, NONE, true>}};
    return table[reset][decay];
}

template <class R, class P>
SlopeRow<R, P> pick_slope(bool absolute, int64_t surrogate) {
#define ROWS(ABSOLUTE)                                                                                          \
    {slope_row<R, P, ABSOLUTE, RECT>, slope_row<R, P, ABSOLUTE, TRIANGLE>, slope_row<R, P, ABSOLUTE, ARCTAN>,    \
     slope_row<R, P, ABSOLUTE, SIGMOID>, slope_row<R, P, ABSOLUTE, DSPIKE>}
    static constexpr SlopeRow<R, P> table[2][5] = {ROWS(false), ROWS(true)};
#undef ROWS
    return table[absolute][surrogate];
}

template <class R, class P>
BackwardRow<R, P> pick_backward(int64_t family, int64_t reset, int64_t detach) {
    // A hard reset has no V of its own: both ways of detaching are one. Without a reset there is nothing to detach.
#define ROWS(FAMILY)                                                                                              \
    {{backward_row<R, P, FAMILY, SOFT, KEEP>, backward_row<R, P, FAMILY, SOFT, DETACH_SPIKE>,                      \
      backward_row<R, P, FAMILY, SOFT, DETACH_PRODUCT>},                                                           \
     {backward_row<R, P, FAMILY, HARD, KEEP>, backward_row<R, P, FAMILY, HARD, DETACH_SPIKE>,                      \
      backward_row<R, P, FAMILY, HARD, DETACH_SPIKE>},                                                             \
     {backward_row<R, P, FAMILY, NONE, KEEP>, backward_row<R, P, FAMILY, NONE, KEEP>,                              \
      backward_row<R, P, FAMILY, NONE, KEEP>}}
    static constexpr BackwardRow<R, P> table[3][3][3] = {ROWS(AS), ROWS(RS), ROWS(TRSG)};
#undef ROWS
    return table[family][reset][detach];
}

}  // namespace
