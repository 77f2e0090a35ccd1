// The LIF equations of core/reference_scan.py on a register of elements: charge, fire, reset, and their gradient. The
// same operations in the same order as in the reference, each rounded (no FMA contraction), so the spikes are the same.
#pragma once
#include "surrogate.h"

namespace {

// S: 1 if the potential reaches the threshold, NaN if it is NaN.
template <class R>
inline Vec<R> spike(Vec<R> m, Vec<R> level) {
    const Vec<R> zero{}, one = all<R>(1), silent = m == m ? zero : m;
    return m >= level ? one : silent;
}

template <class R>
inline Vec<R> charge(Vec<R> u, Vec<R> x, Vec<R> keep, Vec<R> gain) {
    return keep * u + gain * x;
}

template <class R>
inline Vec<R> after_reset(Vec<R> m, Vec<R> s, Vec<R> v, int64_t reset) {
    return reset == SOFT ? m - v * s : reset == HARD ? m * (1 - s) : m;
}

// The constants of a register's neurons: V, the potential from which on S is 1, 1 - a, the input's factor, 1 / V.
template <class R>
struct Constants {
    Vec<R> v, fire, keep, gain, inverse;
};

// Which gradients a step gets: into its output, and into the potential after it. If there is no gradient into a value,
// it is left out, as in autograd, and not multiplied by 0, which would give NaN for a non-finite potential.
struct Reached {
    bool output, potential, reset, spike;  // the reset through its spike; the spike, from the output or the reset

    Reached(bool into_output, bool into_potential, const Scan& scan)
        : output(into_output), potential(into_potential),
          reset(potential && scan.detach == KEEP && (scan.reset == SOFT || scan.reset == HARD)), spike(output || reset) {}
};

// dL/dU[t], and dL/dV, dL/da summed over the steps so far.
template <class R>
struct Gradients {
    Vec<R> du, dv, da;

    // One step back through a spike and a reset, from M, S, dM/da, f'(z) and the gradients into the output and into M;
    // returns dL/dI.
    Vec<R> back(Vec<R> m, Vec<R> s, Vec<R> by_a, Vec<R> f, Vec<R> g, Vec<R> g_m, Reached reached, const Constants<R>& c,
                const Scan& scan) {
        const int64_t family = scan.family, reset = scan.reset, detach = scan.detach;
        const Vec<R> gu = du, zero{};
        Vec<R> gs = family == TRSG ? g * c.v : g;  // dL/dS, from the output and through the reset
        if (reached.reset) gs = reset == SOFT ? gs - gu * c.v : gs - gu * m;
        const Vec<R> gz = reached.spike ? gs * f : zero;
        const Vec<R> from_spike = family == AS ? gz : gz * c.inverse;
        const Vec<R> from_potential = !reached.potential ? zero : reset == HARD ? gu * (1 - s) : gu;
        const Vec<R> gm = from_spike + from_potential + g_m;
        Vec<R> gv = family == AS ? -gz : reached.spike ? -(from_spike * (m * c.inverse)) : zero;
        if (family == TRSG && reached.output) gv = gv + g * s;
        if (reset == SOFT && detach != DETACH_PRODUCT && reached.potential) gv = gv - gu * s;
        dv = dv + gv;
        da = da + gm * by_a;
        du = gm * c.keep;
        return gm * c.gain;
    }
};

}  // namespace
