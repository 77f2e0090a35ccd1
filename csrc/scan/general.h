// One tile of time steps of a block, for every reset, detachment, family, surrogate and dtype. fast.h has a faster form
// for the common case.
#pragma once
#include "slopes.h"

namespace {

template <class R>
struct ForwardTile {
    const Scan& scan;
    const ConstantRows<R>& constants;
    int64_t steps;
    Steps<const R> in;
    Steps<R> out, m;      // without a first row: not written
    const R* start;       // U before
    R *u, *fired;         // U after the tile; 1 for neurons that have fired, in and out
    bool first, last;     // the first tile: nothing has fired yet; the last one
    bool same_start;      // U before the tile is the same for all
};

template <class R>
void general_forward(const ForwardTile<R>& tile, int64_t n) {
    const Steps<const R> in = tile.in;
    const Steps<R> out = tile.out, kept = tile.m;
    const int64_t reset = tile.scan.reset;
    for (int64_t i = 0; i < n; i += GROUP<R>) {
        Constants<R> c[TOGETHER];
        Vec<R> u[TOGETHER], fired[TOGETHER], level[TOGETHER];
        EACH(k) {
            const int64_t at = i + k * WIDTH<R>;
            c[k] = tile.constants.at(at);
            level[k] = load<true>(tile.constants.level + tile.constants.place(at), 0);
            u[k] = load<true>(tile.start + at, 0);
            fired[k] = tile.first ? Vec<R>{} : load<true>(tile.fired + at, 0);
        }
        for (int64_t t = 0; t < tile.steps; ++t) {
            EACH(k) {
                const int64_t at = i + k * WIDTH<R>;
                const Vec<R> m = charge<R>(u[k], load<true>(in.at(t) + at, 0), c[k].keep, c[k].gain);
                const Vec<R> s = spike<R>(m, c[k].fire);
                u[k] = after_reset<R>(m, s, c[k].v, reset);
                fired[k] = s > fired[k] ? s : fired[k];
                if (out.first) store<true>(level[k] * s, out.at(t) + at, 0);
                if (kept.first) store<true>(m, kept.at(t) + at, 0);
            }
        }
        EACH(k) {
            store<true>(u[k], tile.u + i + k * WIDTH<R>, 0);
            store<true>(fired[k], tile.fired + i + k * WIDTH<R>, 0);
        }
    }
}

template <class R>
struct BackwardTile {
    const BackwardTask& task;
    const ConstantRows<R>& constants;
    int64_t steps;
    Steps<const R> in, g, g_m;
    Steps<R> dx;
    bool stream;             // dx bypasses the cache
    const R *u, *du_after;   // U before the tile, dL/dU after it
    R *du, *dv, *da;         // dL/dU before the tile, and sums over its steps
    R* du_lanes;             // only for fast_backward.h
    // U before the tile is the same for all; so is dL/dU after it, because no gradient goes into U
    bool same_u, same_du;
    GroupStep<R>* group;     // scratch, [TILE]; dM/da = I[t] - U[t-1] (raw input: -U[t-1])
};

template <class R>
void general_backward(const BackwardTile<R>& tile, int64_t n) {
    const Scan& scan = tile.task.scan;
    for (int64_t i = 0; i < n; i += GROUP<R>) {
        Constants<R> c[TOGETHER];
        Vec<R> u[TOGETHER];
        Gradients<R> gradients[TOGETHER];
        EACH(k) {
            const int64_t at = i + k * WIDTH<R>;
            c[k] = tile.constants.at(at);
            u[k] = load<true>(tile.u + at, 0);
            gradients[k] = {load<true>(tile.du_after + at, 0), Vec<R>{}, Vec<R>{}};
        }
        for (int64_t t = 0; t < tile.steps; ++t) {
            EACH(k) {
                const Vec<R> x = load<true>(tile.in.at(t) + i + k * WIDTH<R>, 0);
                const Vec<R> m = charge<R>(u[k], x, c[k].keep, c[k].gain);
                tile.group[t].m[k] = m;
                tile.group[t].by_a[k] = scan.decay_input ? x - u[k] : -u[k];
                u[k] = after_reset<R>(m, spike<R>(m, c[k].fire), c[k].v, scan.reset);
            }
        }
        slopes(tile.group, tile.steps, tile.task, tile.constants, i);
        for (int64_t t = tile.steps - 1; t >= 0; --t) {
            const Reached reached(tile.g.first != nullptr, t + 1 < tile.steps || !tile.same_du, scan);
            EACH(k) {
                const int64_t at = i + k * WIDTH<R>;
                const GroupStep<R>& step = tile.group[t];
                const Vec<R> m = step.m[k];
                const Vec<R> g = tile.g.first ? load<true>(tile.g.at(t) + at, 0) : Vec<R>{};
                const Vec<R> g_m = tile.g_m.first ? load<true>(tile.g_m.at(t) + at, 0) : Vec<R>{};
                const Vec<R> s = spike<R>(m, c[k].fire);
                const Vec<R> dx = gradients[k].back(m, s, step.by_a[k], step.f[k], g, g_m, reached, c[k], scan);
                store<true>(dx, tile.dx.at(t) + at, 0);
            }
        }
        EACH(k) {
            const int64_t at = i + k * WIDTH<R>;
            store<true>(gradients[k].du, tile.du + at, 0);
            store<true>(gradients[k].dv, tile.dv + at, 0);
            store<true>(gradients[k].da, tile.da + at, 0);
        }
    }
}

}  // namespace
