// The forward of one chunk of elements.
#pragma once
#include "block.h"

namespace {

template <class R, class IO, bool SCALED, bool SIMPLE>
struct ForwardBlock {
    const Scan& scan;
    const ConstantRows<R>& constants;
    const Input<R, IO>& input;
    const Output<R, IO>& output;
    const R* start;
    R *u_row, *m_row;          // U[T], and M[0] of n elements or null
    R *kept, *fired;           // U[T] of neurons that fired, and 1 for each of them

    template <bool FULL, int TOGETHER>
    void run(int64_t i, int64_t count) const {
        // Copies: what a pointer leads to would be read again after every store.
        const Input<R, IO> in = input;
        const Output<R, IO> out = output;
        const int64_t steps = scan.steps, reset = SIMPLE ? int64_t(SOFT) : scan.reset, size = scan.n;
        R* const m_at = SIMPLE ? nullptr : m_row;
        Constants<R> c[TOGETHER];
        Vec<R> u[TOGETHER], any[TOGETHER];
        EACH(k, TOGETHER) {
            c[k] = constants.at(i + k * WIDTH<R>);
            u[k] = load<true>(start + i + k * WIDTH<R>, 0);
            any[k] = Vec<R>{};
        }
        for (int64_t t = 0; t < steps; ++t) {
            EACH(k, TOGETHER) {
                const int64_t at = i + k * WIDTH<R>;
                const Vec<R> m = charge<R>(u[k], in.template at<FULL, SIMPLE>(t, at, count), c[k]);
                const Vec<R> s = spike<R>(m, c[k].fire), scaled = c[k].v * s;
                u[k] = reset == SOFT ? m - scaled : after_reset<R>(m, s, c[k].v, reset);
                any[k] = s > any[k] ? s : any[k];
                out.template put<FULL, SIMPLE>(SCALED ? scaled : s, t, at, count);
                if (m_at) store<FULL>(m, m_at + t * size + at, count);
            }
        }
        EACH(k, TOGETHER) {
            const int64_t at = i + k * WIDTH<R>;
            store<FULL>(u[k], u_row + at, count);
            store<true>(any[k] > Vec<R>{} ? u[k] : Vec<R>{}, kept + at, 0);
            store<true>(any[k], fired + at, 0);
        }
    }
};

template <class R, class IO, bool SCALED, bool SIMPLE>
void forward_blocks(const ForwardTask& task, int64_t chunk, void* scratch, double* sums) {
    const Scan& scan = task.scan;
    const Plan& plan = task.plan;
    const Geometry<R> geometry{scan.channels, scan.inner};
    Rows<R> rows{static_cast<R*>(scratch), plan.block};
    ConstantRows<R> constants(rows);
    R* start = rows.take();
    R *kept = rows.take(), *fired = rows.take();
    const int64_t last = (chunk + 1) * plan.chunk, end = last < scan.n ? last : scan.n;
    for (int64_t i0 = chunk * plan.chunk; i0 < end; i0 += plan.block) {
        const int64_t n = end - i0 < plan.block ? end - i0 : plan.block;
        Rows<R> spare = rows;
        constants.set(task.params, geometry, i0, n, plan.block);
        const Input<R, IO> input(scan, plan, i0, n, spare);
        const Output<R, IO> output(task.io.out, scan, plan, i0, spare);
        R* m = task.io.m ? static_cast<R*>(task.io.m) + i0 : nullptr;
        start_potential(scan, task.params, i0, n, start);
        const ForwardBlock<R, IO, SCALED, SIMPLE> block{scan, constants, input, output, start,
                                                        static_cast<R*>(task.io.u) + i0, m, kept, fired};
        for_registers<R, FORWARD_TOGETHER>(block, n);
        output.finish(scan.steps, n);
        geometry.add_to(sums, kept, i0, n);
        geometry.add_to(sums + scan.channels, fired, i0, n);
    }
    if (plan.stream) stream_end();
}

template <class R, class IO, bool SCALED>
void forward_chunk(const ForwardTask& task, int64_t chunk, void* scratch, double* sums) {
    const bool plain = simple(task.scan, task.plan) && !task.io.m;
    (plain ? forward_blocks<R, IO, SCALED, true> : forward_blocks<R, IO, SCALED, false>)(task, chunk, scratch, sums);
}

}  // namespace
