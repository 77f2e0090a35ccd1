// The backward of one chunk of elements: recomputes the potentials, then goes back through them.
#pragma once
#include "block.h"

namespace {

// What a register's backward keeps of its recomputed steps.
template <class R>
struct Step {
    Vec<R> m, s, by_a;  // dM/da = I[t] - U[t-1] (raw input: -U[t-1])
};

constexpr int64_t SHORT = 16;  // steps whose sums over time are kept in the compute type before they go to double

template <class R, class IO, int FAMILY, int SURROGATE, bool SIMPLE>
struct BackwardBlock {
    const BackwardTask& task;
    const ConstantRows<R>& constants;
    const Input<R, IO>& input;
    const Output<R, IO>& output;
    const R *start, *g_u, *g_m;
    const IO* g_out;
    Step<R>* steps;            // [window][TOGETHER]
    Vec<R>* starts;            // [windows][TOGETHER]
    R *du_row, *dv_row, *da_row;
    double *dv_long, *da_long;  // sums of more than SHORT steps

    // From U[first-1] to U[end-1]; with the steps in between if they are wanted.
    template <bool FULL, int TOGETHER, bool KEPT>
    void recompute(Vec<R>* u, int64_t first, int64_t end, int64_t i, int64_t count, const Constants<R>* c) const {
        const Input<R, IO> in = input;
        const int64_t reset = SIMPLE ? int64_t(SOFT) : task.scan.reset;
        const bool decay_input = SIMPLE || task.scan.decay_input;
        Step<R>* step = steps;
        for (int64_t t = first; t < end; ++t, step += TOGETHER) {
            EACH(k, TOGETHER) {
                const Vec<R> x = in.template at<FULL, SIMPLE>(t, i + k * WIDTH<R>, count);
                const Vec<R> m = charge<R>(u[k], x, c[k]), s = spike<R>(m, c[k].fire);
                if constexpr (KEPT) step[k] = {m, s, decay_input ? x - u[k] : -u[k]};
                u[k] = after_reset<R>(m, s, c[k].v, reset);
            }
        }
    }

    template <bool FULL, int TOGETHER>
    void run(int64_t i, int64_t count) const {
        const int64_t window = task.plan.window, windows = task.plan.windows, all_steps = task.scan.steps;
        Constants<R> c[TOGETHER];
        Vec<R> u[TOGETHER];
        Gradients<R> gradients[TOGETHER];
        EACH(k, TOGETHER) {
            const int64_t at = i + k * WIDTH<R>;
            c[k] = constants.at(at);
            u[k] = load<true>(start + at, 0);
            gradients[k] = {g_u ? load<FULL>(g_u + at, count) : Vec<R>{}, Vec<R>{}, Vec<R>{}};
        }
        for (int64_t w = 0; w + 1 < windows; ++w) {
            EACH(k, TOGETHER) starts[w * TOGETHER + k] = u[k];
            recompute<FULL, TOGETHER, false>(u, w * window, (w + 1) * window, i, count, c);
        }
        for (int64_t w = windows - 1; w >= 0; --w) {
            if (w + 1 < windows) EACH(k, TOGETHER) u[k] = starts[w * TOGETHER + k];
            const int64_t first = w * window, end = first + window < all_steps ? first + window : all_steps;
            recompute<FULL, TOGETHER, true>(u, first, end, i, count, c);
            back<FULL, TOGETHER>(gradients, first, end, i, count, c);
        }
        EACH(k, TOGETHER) {
            const int64_t at = i + k * WIDTH<R>;
            store<true>(gradients[k].du, du_row + at, 0);
            store<true>(gradients[k].dv, dv_row + at, 0);
            store<true>(gradients[k].da, da_row + at, 0);
        }
    }

    // Steps end - 1 to first, which `recompute` kept.
    template <bool FULL, int TOGETHER>
    void back(Gradients<R>* gradients, int64_t first, int64_t end, int64_t i, int64_t count,
              const Constants<R>* c) const {
        const Shape<R> shape{R(task.shape.width), R(task.shape.height), R(task.shape.steep)};
        const Output<R, IO> out = output;
        const int64_t reset = SIMPLE ? int64_t(SOFT) : task.scan.reset;
        const int64_t detach = SIMPLE ? int64_t(KEEP) : task.scan.detach;
        const int64_t g_stride = task.io.g_out_stride, g_m_stride = task.io.g_m_stride;
        const IO* const g_at = g_out;
        const R* const g_m_at = SIMPLE ? nullptr : g_m;
        const bool early = !SIMPLE && input.early;
        const Step<R>* step = steps + (end - first) * TOGETHER;
        Vec<R> inverse[TOGETHER], low[TOGETHER], high[TOGETHER];
        EACH(k, TOGETHER) {
            inverse[k] = load<true>(constants.inverse + i + k * WIDTH<R>, 0);
            low[k] = load<true>(constants.low + i + k * WIDTH<R>, 0);
            high[k] = load<true>(constants.high + i + k * WIDTH<R>, 0);
        }
        for (int64_t t = end - 1; t >= first; --t) {
            step -= TOGETHER;
            EACH(k, TOGETHER) {
                const int64_t at = i + k * WIDTH<R>;
                Vec<R> g{}, into_m{};
                if (SIMPLE || g_at) {
                    const IO* from = g_at + t * g_stride + at;
                    if (early) __builtin_prefetch(reinterpret_cast<const char*>(from) + AHEAD);
                    g = load<FULL>(from, count);
                }
                if (g_m_at) into_m = load<FULL>(g_m_at + t * g_m_stride + at, count);
                const Vec<R> m = step[k].m, z = argument<R, FAMILY == AS, SURROGATE>(m, c[k].v, inverse[k]);
                const Vec<R> f = slope<R, SURROGATE>(z, m, low[k], high[k], shape);
                const Vec<R> dx = gradients[k].template back<FAMILY>(m, step[k].s, step[k].by_a, f, g, into_m, c[k],
                                                                     inverse[k], reset, detach);
                out.template put<FULL, SIMPLE>(dx, t, at, count);
            }
            if (t % SHORT == 0 && t > 0) EACH(k, TOGETHER) flush(gradients[k], i + k * WIDTH<R>);
        }
    }

    // Sums over some steps to their rows in double, which start at 0.
    void flush(Gradients<R>& gradients, int64_t i) const {
        for (int64_t j = 0; j < WIDTH<R>; ++j) {
            dv_long[i + j] += double(gradients.dv[j]);
            da_long[i + j] += double(gradients.da[j]);
        }
        gradients.dv = gradients.da = Vec<R>{};
    }
};

template <class R, class IO, int FAMILY, int SURROGATE, bool SIMPLE>
void backward_blocks(const BackwardTask& task, int64_t chunk, void* scratch, double* sums) {
    const Scan& scan = task.scan;
    const Backward& io = task.io;
    const Plan& plan = task.plan;
    const Geometry<R> geometry{scan.channels, scan.inner};
    Rows<R> rows{static_cast<R*>(scratch), plan.block};
    ConstantRows<R> constants(rows);
    R *start = rows.take(), *du = rows.take(), *dv = rows.take(), *da = rows.take();
    double *dv_long = rows.take_doubles(), *da_long = rows.take_doubles();
    const bool is_long = scan.steps > SHORT;
    const int64_t last = (chunk + 1) * plan.chunk, end = last < scan.n ? last : scan.n;
    for (int64_t i0 = chunk * plan.chunk; i0 < end; i0 += plan.block) {
        const int64_t n = end - i0 < plan.block ? end - i0 : plan.block;
        Rows<R> spare = rows;
        constants.set(task.params, geometry, i0, n, plan.block);
        const Input<R, IO> input(scan, plan, i0, n, spare);
        const Output<R, IO> output(io.dx, scan, plan, i0, spare);
        start_potential(scan, task.params, i0, n, start);
        if (is_long)
            for (int64_t i = 0; i < plan.block; ++i) dv_long[i] = da_long[i] = 0;
        Step<R>* steps = reinterpret_cast<Step<R>*>(spare.next);
        const BackwardBlock<R, IO, FAMILY, SURROGATE, SIMPLE> block{
            task, constants, input, output, start,
            io.g_u ? static_cast<const R*>(io.g_u) + i0 : nullptr,
            io.g_m ? static_cast<const R*>(io.g_m) + i0 : nullptr,
            io.g_out ? static_cast<const IO*>(io.g_out) + i0 : nullptr,
            steps, reinterpret_cast<Vec<R>*>(steps + plan.window * BACKWARD_TOGETHER), du, dv, da, dv_long, da_long};
        for_registers<R, BACKWARD_TOGETHER>(block, n);
        output.finish(scan.steps, n);
        geometry.add_to(sums, dv, i0, n);
        geometry.add_to(sums + scan.channels, da, i0, n);
        if (is_long) {
            geometry.add_to(sums, dv_long, i0, n);
            geometry.add_to(sums + scan.channels, da_long, i0, n);
        }
        if (scan.u0_kind == ELEMENT)
            for (int64_t i = 0; i < n; ++i) static_cast<R*>(io.du0)[i0 + i] = du[i];
        else
            geometry.add_to(sums + 2 * scan.channels, du, i0, n);
    }
    if (plan.stream) stream_end();
}

template <class R, class IO, int FAMILY, int SURROGATE>
void backward_chunk(const BackwardTask& task, int64_t chunk, void* scratch, double* sums) {
    constexpr auto general = backward_blocks<R, IO, FAMILY, SURROGATE, false>;
    if constexpr (sizeof(IO) == sizeof(float)) {  // the others are rare and would take as long to compile
        const bool plain = simple(task.scan, task.plan) && task.io.g_out && !task.io.g_m;
        (plain ? backward_blocks<R, IO, FAMILY, SURROGATE, true> : general)(task, chunk, scratch, sums);
    } else {
        general(task, chunk, scratch, sums);
    }
}

}  // namespace
