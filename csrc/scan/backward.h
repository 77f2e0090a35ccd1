// The backward of one chunk of elements: recomputes the potentials tile by tile, then goes back through them.
#pragma once
#include "fast_backward.h"

namespace {

// Sums for each element over a tile of dx and of dx (x - center), for the batch norm whose affine map of x is the
// input.
template <class R>
struct NormRows {
    R *center, *by_bias, *by_weight, *x_rows;
    int64_t width, phase = -1;  // phase: the one for which center was filled

    explicit NormRows(Rows<R>& rows)
        : center(rows.take()), by_bias(rows.take()), by_weight(rows.take()), x_rows(rows.take(TILE)), width(rows.width) {}

    void set(const BackwardTask& task, int64_t i0, int64_t n) {
        if (!task.io.center) return;
        const Geometry<R> geometry{task.scan.affine->channels, task.scan.affine->inner};
        const int64_t wanted = n == width ? geometry.phase(i0, n) : -1;
        if (wanted >= 0 && wanted == phase) return;
        phase = wanted;
        geometry.expand(static_cast<const R*>(task.io.center), i0, n, center);
    }

    // From dx in scratch, unless the fast scan has already added these sums itself.
    void find(const BackwardTask& task, Steps<R> dx, int64_t first, int64_t steps, int64_t i0, int64_t n) const {
        const Scan& scan = task.scan;
        const Steps<const R> x = read_steps<R>(scan.x, scan.dtype, scan.x_stride, first, steps, i0, n, x_rows);
        for (int64_t i = 0; i < padded(n); i += WIDTH<R>) {
            const Vec<R> middle = load<true>(center + i, 0);
            Vec<R> bias{}, weight{};
            for (int64_t t = 0; t < steps; ++t) {
                const Vec<R> g = load<true>(dx.at(t) + i, 0);
                bias += g;
                weight += g * (load<true>(x.at(t) + i, 0) - middle);
            }
            store<true>(bias, by_bias + i, 0);
            store<true>(weight, by_weight + i, 0);
        }
    }

    void add(const BackwardTask& task, int64_t i0, int64_t n, double* sums) const {
        const Affine& affine = *task.scan.affine;
        const Geometry<R> geometry{affine.channels, affine.inner};
        geometry.add_to(sums, by_bias, i0, n);
        geometry.add_to(sums + affine.channels, by_weight, i0, n);
    }
};

template <class IO>
using FastBackward = bool (*)(const BackwardTile<float>&, Steps<const IO>, const MapRows<float>&, const NormSumRows&,
                              Steps<const IO>, Steps<IO>, int64_t);

template <class IO, bool MAPPED>
FastBackward<IO> fast_backward_for(const BackwardTask& task, FastCase fast_case) {
    const bool rectangle = task.scan.surrogate == RECT, trsg = task.scan.family == TRSG, one = fast_case != MANY_CHANNELS;
    if (task.usual) {
        static constexpr FastBackward<IO> table[] = {
            fast_backward<MANY_CHANNELS, USUAL, true, IO, MAPPED>, fast_backward<ONE_CHANNEL, USUAL, true, IO, MAPPED>,
            fast_backward<PLAIN_CACHED, USUAL, true, IO, MAPPED>, fast_backward<PLAIN_PAST_CACHE, USUAL, true, IO, MAPPED>};
        return table[fast_case];
    }
    static constexpr FastBackward<IO> table[] = {
        fast_backward<MANY_CHANNELS, OTHER_SHAPE, false, IO, MAPPED>, fast_backward<MANY_CHANNELS, OTHER_SHAPE, true, IO, MAPPED>,
        fast_backward<MANY_CHANNELS, RECTANGLE, false, IO, MAPPED>,   fast_backward<MANY_CHANNELS, RECTANGLE, true, IO, MAPPED>,
        fast_backward<ONE_CHANNEL, OTHER_SHAPE, false, IO, MAPPED>,   fast_backward<ONE_CHANNEL, OTHER_SHAPE, true, IO, MAPPED>,
        fast_backward<ONE_CHANNEL, RECTANGLE, false, IO, MAPPED>,     fast_backward<ONE_CHANNEL, RECTANGLE, true, IO, MAPPED>};
    return table[4 * one + 2 * rectangle + trsg];
}

template <class R>
struct BackwardBlock {
    const BackwardTask& task;
    const ConstantRows<R>& constants;
    const Input<R>& input;
    const NormRows<R>& norm;
    StartRow<R>& start_row;
    R *starts, *du, *dv, *da, *lanes, *dx_rows, *g_rows, *g_m_rows;  // lanes: [3][places_of(block)]
    GroupStep<R>* group;   // [TILE], of any COUNT
    LaneSums<R>& lane_sums;
    double* sums;

    const R* start(int64_t tile) const { return tile == 0 ? start_row.row : starts + tile * task.plan.block; }

    int64_t steps_of(int64_t tile) const {
        const int64_t left = task.scan.steps - tile * TILE;
        return left < TILE ? left : TILE;
    }

    // U at the start of every tile but the first.
    void find_starts() const {
        if (task.plan.tiles > 1) start_row.every();
        for (int64_t tile = 0; tile + 1 < task.plan.tiles; ++tile)
            general_forward<R>({task.scan, constants, steps_of(tile), input.tile(tile * TILE, steps_of(tile)), {}, {},
                                start(tile), starts + (tile + 1) * task.plan.block, da, true, false, false}, padded(input.n));
    }

    // dL/dU after the last step.
    const R* last_gradient() const {
        static const R zeros[LARGE_BLOCK] = {};
        if (!task.io.g_u) return zeros;
        widen_row(static_cast<const R*>(task.io.g_u) + input.i0, input.n, du);
        return du;
    }

    bool run(bool fast) const {
        const Backward& io = task.io;
        const Scan& scan = task.scan;
        const int64_t i0 = input.i0, n = input.n;
        const bool mapped = fast && sizeof(R) == 4 && input.maps_on_the_way();
        const bool collect = (io.norm_sums != nullptr && !mapped) || (!fast && task.plan.stream);
        const bool halves = fast && scan.dtype == BF16 && !scan.affine && n % PAD == 0;
        const Output<R> output(io.dx, scan, task.plan.stream, i0, n, collect, dx_rows);
        if (!fast) start_row.every();
        const bool one = fast && constants.one, sum_du = one && scan.u0_kind != ELEMENT;
        const R* du_after = last_gradient();
        const int64_t places = places_of(task.plan.block);
        if (one) std::memset(lanes, 0, size_t(3 * places) * sizeof(R));
        for (int64_t tile = task.plan.tiles - 1; tile >= 0; --tile) {
            const int64_t first = tile * TILE, steps = steps_of(tile);
            const bool last = tile == task.plan.tiles - 1;
            const Steps<const R> g = halves ? Steps<const R>{} : read_steps<R>(io.g_out, scan.dtype, io.g_out_stride, first, steps, i0, n, g_rows);
            const Steps<const R> in = halves || mapped ? Steps<const R>{} : input.tile(first, steps);
            const bool past = halves ? task.plan.stream && streams_halves(io.dx, scan.n) : output.streams();
            const Steps<const R> g_m =
                read_steps<R>(io.g_m, sizeof(R) == 8 ? F64 : F32, io.g_m_stride, first, steps, i0, n, g_m_rows);
            const BackwardTile<R> work{task, constants, steps, in, g, g_m, output.tile(first), past, start(tile), du_after,
                                       sum_du && tile == 0 ? nullptr : du, one ? lanes : dv, one ? lanes + places : da,
                                       lanes + 2 * places, tile == 0 && scan.u0_kind != ELEMENT && constants.one,
                                       last && !io.g_u, group};
            const bool plain = one && !work.du && work.same_u && work.same_du;
            if constexpr (sizeof(R) == 4) {
                const FastCase which = fast_case(one, plain, past);
                if (halves) {
                    const auto run_fast = fast_backward_for<Bf16, false>(task, which);
                    if (!run_fast(work, rows_of<Bf16>(scan.x, scan.x_stride, first, i0), {}, {},
                                  rows_of<Bf16>(io.g_out, io.g_out_stride, first, i0), rows_of<Bf16>(io.dx, scan.n, first, i0), n))
                        return false;
                } else if (mapped) {
                    const NormSumRows sums_of_norm{io.norm_sums ? norm.center : nullptr, norm.by_bias, norm.by_weight};
                    const auto run_fast = fast_backward_for<float, true>(task, which);
                    if (!run_fast(work, rows_of<float>(scan.x, scan.x_stride, first, i0), input.map_rows(first, steps), sums_of_norm,
                                  g, output.tile(first), n))
                        return false;
                } else if (fast) {
                    if (!fast_backward_for<float, false>(task, which)(work, in, {}, {}, g, output.tile(first), padded(n)))
                        return false;
                }
            }
            if (!fast) general_backward<R>(work, padded(n));
            if (io.norm_sums && !mapped) norm.find(task, output.tile(first), first, steps, i0, n);
            add_sums(one);
            if (!halves) output.finish(first, steps);
            du_after = du;
        }
        if (one) {
            const R inverse = constants.inverse[0];
            if (scan.family == TRSG)  // still V dL/dV
                for (int64_t i = 0; i < places; ++i) lanes[i] *= inverse;
            lane_sums.add(constants.channel, lanes, places);
        }
        if (!sum_du) add_start(du);
        return true;
    }

    // dL/dU[0].
    void add_start(const R* gradient) const {
        const Scan& scan = task.scan;
        if (!task.io.du0) return;
        if (scan.u0_kind == ELEMENT)
            std::memcpy(static_cast<R*>(task.io.du0) + input.i0, gradient, size_t(input.n) * sizeof(R));
        else
            Geometry<R>{scan.channels, scan.inner}.add_to(sums + 2 * scan.channels, gradient, input.i0, input.n);
    }

    void add_sums(bool one) const {
        const Geometry<R> geometry{task.scan.channels, task.scan.inner};
        const int64_t channels = task.scan.channels;
        if (!one) {
            if (task.io.dv) geometry.add_to(sums, dv, input.i0, input.n);
            if (task.io.da) geometry.add_to(sums + channels, da, input.i0, input.n);
        }
        if (task.io.norm_sums) norm.add(task, input.i0, input.n, sums + 3 * channels);
    }
};

template <class R>
void backward_chunk(const BackwardTask& task, int64_t chunk, void* scratch, double* sums) {
    const Scan& scan = task.scan;
    const Plan& plan = task.plan;
    const Geometry<R> geometry{scan.channels, scan.inner};
    Rows<R> rows{static_cast<R*>(scratch), plan.block};
    ConstantRows<R> constants(rows);
    Input<R> input(scan, rows);
    NormRows<R> norm(rows);
    StartRow<R> start(rows);
    LaneSums<R> lane_sums(rows, sums, 3, scan.channels);
    R *du = rows.take(), *dv = rows.take(), *da = rows.take(), *lanes = rows.take();
    R *dx_rows = rows.take(TILE), *g_rows = rows.take(TILE), *g_m_rows = rows.take(TILE);
    GroupStep<R>* group = reinterpret_cast<GroupStep<R>*>(rows.take(3 * TILE * PAD / plan.block + 1));
    const BackwardBlock<R> block{task, constants, input, norm, start, rows.next, du, dv, da, lanes, dx_rows, g_rows,
                                 g_m_rows, group, lane_sums, sums};
    const int64_t last = (chunk + 1) * plan.chunk, end = last < scan.n ? last : scan.n;
    for (int64_t i0 = chunk * plan.chunk; i0 < end; i0 += plan.block) {
        const int64_t n = end - i0 < plan.block ? end - i0 : plan.block;
        constants.set(task.params, geometry, i0, n);
        input.set(i0, n);
        norm.set(task, i0, n);
        start.set(scan, task.params, constants.channel, i0, n);
        block.find_starts();
        // Tiles are added to the sums one by one. If one of them fails, all are done again, so the sums of the others
        // must be discarded.
        double* const before = reinterpret_cast<double*>(rows.next + plan.tiles * plan.block);
        if (plan.fast && plan.tiles > 1) std::memcpy(before, sums, size_t(task.sums) * sizeof(double));
        if (plan.fast && block.run(true)) continue;
        if (plan.fast && plan.tiles > 1) std::memcpy(sums, before, size_t(task.sums) * sizeof(double));
        block.run(false);
    }
    lane_sums.finish();
    if (plan.stream) stream_end();
}

}  // namespace
