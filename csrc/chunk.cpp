// Forward and backward of one chunk of elements. Compiled once per instruction set, as STEADYSPIKE_CHUNKS names it;
// everything but that one table has internal linkage, so no code for a newer CPU can leak into the common path.
#include "rows.h"
#include "stream.h"
#include "task.h"

namespace {

template <class R>
struct Geometry {
    int64_t channels, inner;

    int64_t channel(int64_t i) const { return (i / inner) % channels; }

    // Calls f(c, offset, length) for each run of elements i0+offset.. of one channel c within [i0, i0 + n).
    template <class F>
    void runs(int64_t i0, int64_t n, F f) const {
        for (int64_t done = 0; done < n;) {
            const int64_t left = inner - (i0 + done) % inner;
            const int64_t length = left < n - done ? left : n - done;
            f(channel(i0 + done), done, length);
            done += length;
        }
    }

    // Calls f(c, offset, length) for each run of consecutive channels c, c+1, ...; for inner == 1.
    template <class F>
    void channel_runs(int64_t i0, int64_t n, F f) const {
        for (int64_t done = 0; done < n;) {
            const int64_t c = (i0 + done) % channels;
            const int64_t length = channels - c < n - done ? channels - c : n - done;
            f(c, done, length);
            done += length;
        }
    }

    // A value per channel to a value per element.
    void expand(const R* per_channel, int64_t i0, int64_t n, R* to) const {
        if (inner == 1) {
            channel_runs(i0, n, [=](int64_t c, int64_t at, int64_t length) {
                for (int64_t i = 0; i < length; ++i) to[at + i] = per_channel[c + i];
            });
        } else {
            runs(i0, n, [=](int64_t c, int64_t at, int64_t length) {
                const R value = per_channel[c];
                for (int64_t i = 0; i < length; ++i) to[at + i] = value;
            });
        }
    }

    // Adds a value per element to its channel's sum, always in the same order.
    template <class S>
    void add_to(double* sums, const S* values, int64_t i0, int64_t n) const {
        if (inner == 1) {
            channel_runs(i0, n, [=](int64_t c, int64_t at, int64_t length) {
                for (int64_t i = 0; i < length; ++i) sums[c + i] += double(values[at + i]);
            });
        } else {
            runs(i0, n, [=](int64_t c, int64_t at, int64_t length) { sums[c] += total(values + at, length); });
        }
    }

    template <class S>
    static double total(const S* values, int64_t n) {
        constexpr int64_t LANES = 16;
        double lane[LANES] = {};
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES)
            for (int64_t j = 0; j < LANES; ++j) lane[j] += double(values[i + j]);
        for (int64_t j = 0; i + j < n; ++j) lane[j] += double(values[i + j]);
        for (int64_t width = LANES / 2; width > 0; width /= 2)
            for (int64_t j = 0; j < width; ++j) lane[j] += lane[j + width];
        return lane[0];
    }
};

// Hands out rows of a thread's scratch.
template <class R>
struct Rows {
    R* next;
    int64_t block;
    R* take(int64_t rows = 1) {
        R* row = next;
        next += rows * block;
        return row;
    }
};

template <class R>
void fill(int64_t n, R* to, R value) {
    for (int64_t i = 0; i < n; ++i) to[i] = value;
}

template <class R>
void copy(int64_t n, const R* from, R* to) {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

// Rows of a tensor in IO, read and written as R: in place if that is the same type, else through a spare row. Written
// rows go through the spare rows too if they are to bypass the cache.
template <class R, class IO>
struct Row {
    static const R* read(int64_t n, const IO* from, R* spare) {
        widen_row(n, from, spare);
        return spare;
    }
    static R* place(IO*, R* spare, bool) { return spare; }
    static void write(int64_t n, const R* row, IO* to, R* spare, bool stream) {
        if (!stream) return narrow_row(n, row, to);
        IO* packed = reinterpret_cast<IO*>(spare);
        narrow_row(n, row, packed);
        stream_bytes(to, packed, n * int64_t(sizeof(IO)));
    }
};

template <class R>
struct Row<R, R> {
    static const R* read(int64_t, const R* from, R*) { return from; }
    static R* place(R* to, R* spare, bool stream) { return stream ? spare : to; }
    static void write(int64_t n, const R* row, R* to, R*, bool stream) {
        if (stream) stream_bytes(to, row, n * int64_t(sizeof(R)));
    }
};

// Calls f(i0, n, params) for each block of the chunk, with parameters shared (one channel) or per element.
template <class R, class Task, class OneChannel, class Mixed>
void for_blocks(const Task& task, int64_t chunk, Rows<R>& rows, OneChannel one_channel, Mixed mixed) {
    const Plan& plan = task.plan;
    const Geometry<R> geometry{task.scan.channels, task.scan.inner};
    const R *v = static_cast<const R*>(task.params.v), *fire = static_cast<const R*>(task.params.fire);
    const R *keep = static_cast<const R*>(task.params.keep), *gain = static_cast<const R*>(task.params.gain);
    const R* inverse = static_cast<const R*>(task.params.inverse);
    R *v_row = rows.take(), *fire_row = rows.take(), *keep_row = rows.take(), *gain_row = rows.take();
    R* inverse_row = rows.take();
    const int64_t last = (chunk + 1) * plan.chunk, end = last < task.scan.n ? last : task.scan.n;
    for (int64_t i = chunk * plan.chunk; i < end;) {
        int64_t n = end - i < plan.block ? end - i : plan.block;
        if (plan.vector) {
            geometry.expand(v, i, n, v_row);
            geometry.expand(fire, i, n, fire_row);
            geometry.expand(keep, i, n, keep_row);
            geometry.expand(gain, i, n, gain_row);
            geometry.expand(inverse, i, n, inverse_row);
            mixed(i, n, Params<const R*>{v_row, fire_row, keep_row, gain_row, inverse_row});
        } else {
            const int64_t left = geometry.inner - i % geometry.inner, c = geometry.channel(i);
            n = n < left ? n : left;
            one_channel(i, n, Params<Shared<R>>{{v[c]}, {fire[c]}, {keep[c]}, {gain[c]}, {inverse[c]}});
        }
        i += n;
    }
}

template <class R, class Task>
void start_potential(const Task& task, int64_t i0, int64_t n, R* u) {
    if (task.scan.u0_kind == ELEMENT)
        copy(n, static_cast<const R*>(task.scan.u0) + i0, u);
    else
        Geometry<R>{task.scan.channels, task.scan.inner}.expand(static_cast<const R*>(task.params.u0), i0, n, u);
}

// The rows of a block's input current: those of x, or an affine map of them with per-channel constants.
template <class R, class IO>
struct Input {
    const Scan& scan;
    int64_t i0, n;
    R *x_spare, *scale = nullptr, *shift = nullptr, *extra_scale = nullptr, *extra_spare = nullptr;

    Input(const Scan& scan, int64_t i0, int64_t n, R* x_spare, Rows<R>& rows) : scan(scan), i0(i0), n(n), x_spare(x_spare) {
        if (!scan.affine) return;
        const Geometry<R> geometry{scan.affine->channels, scan.affine->inner};
        scale = rows.take(), shift = rows.take(), extra_scale = rows.take(), extra_spare = rows.take();
        geometry.expand(static_cast<const R*>(scan.affine->scale), i0, n, scale);
        geometry.expand(static_cast<const R*>(scan.affine->shift), i0, n, shift);
        if (scan.affine->extra_scale)
            geometry.expand(static_cast<const R*>(scan.affine->extra_scale), i0, n, extra_scale);
        else
            fill(n, extra_scale, R(1));
    }

    const R* row(int64_t t, bool prefetch) const {
        const IO* from = static_cast<const IO*>(scan.x) + t * scan.x_stride + i0;
        if (prefetch) prefetch_row(n, from + n);
        const R* x = Row<R, IO>::read(n, from, x_spare);
        if (!scan.affine) return x;
        if (!scan.affine->extra) {
            affine_row(n, x, scale, shift, x_spare);
        } else {
            const IO* extra = static_cast<const IO*>(scan.affine->extra) + t * scan.affine->extra_stride + i0;
            if (prefetch) prefetch_row(n, extra + n);
            affine_row(n, x, scale, shift, Row<R, IO>::read(n, extra, extra_spare), extra_scale, x_spare);
        }
        return x_spare;
    }
};

template <class R, class IO, class P>
void forward_block(const ForwardTask& task, int64_t i0, int64_t n, const Params<P>& params, Rows<R> rows, double* sums) {
    const Scan& scan = task.scan;
    const Plan& plan = task.plan;
    const auto step = pick_forward<R, P>(scan.reset, scan.family == TRSG, task.io.m != nullptr);
    R *fired = rows.take(), *x_spare = rows.take(), *out_spare = rows.take(), *packed = rows.take();
    R* u = static_cast<R*>(task.io.u) + i0;
    const Input<R, IO> input(scan, i0, n, x_spare, rows);
    const bool prefetch = plan.stream && i0 + 2 * n <= scan.n;  // the same row of the next block
    start_potential<R>(task, i0, n, u);
    fill(n, fired, R(0));
    for (int64_t t = 0; t < scan.steps; ++t) {
        const R* x = input.row(t, prefetch);
        IO* out = static_cast<IO*>(task.io.out) + t * scan.n + i0;
        R* m = task.io.m ? static_cast<R*>(task.io.m) + t * scan.n + i0 : nullptr;
        R* row = Row<R, IO>::place(out, out_spare, plan.stream);
        step(n, x, u, fired, row, m, params);
        Row<R, IO>::write(n, row, out, packed, plan.stream);
    }
    R* kept = x_spare;
    for (int64_t i = 0; i < n; ++i) kept[i] = fired[i] > 0 ? u[i] : R(0);
    const Geometry<R> geometry{scan.channels, scan.inner};
    geometry.add_to(sums, kept, i0, n);
    geometry.add_to(sums + scan.channels, fired, i0, n);
}

template <class R, class IO>
void forward_chunk(const ForwardTask& task, int64_t chunk, void* scratch, double* sums) {
    Rows<R> rows{static_cast<R*>(scratch), task.plan.block};
    for_blocks<R>(
        task, chunk, rows,
        [&](int64_t i, int64_t n, const Params<Shared<R>>& p) { forward_block<R, IO>(task, i, n, p, rows, sums); },
        [&](int64_t i, int64_t n, const Params<const R*>& p) { forward_block<R, IO>(task, i, n, p, rows, sums); });
    if (task.plan.stream) stream_end();
}

// Per-element sums over time, kept in the compute type for at most `SHORT` steps and then added up in double.
template <class R>
struct TimeSums {
    static constexpr int64_t SHORT = 16;
    R *dv, *da;
    int64_t steps;

    void clear(int64_t n) {
        fill(n, dv, R(0));
        fill(n, da, R(0));
        steps = 0;
    }
    void flush(const Geometry<R>& geometry, int64_t channels, int64_t i0, int64_t n, double* sums) {
        geometry.add_to(sums, dv, i0, n);
        geometry.add_to(sums + channels, da, i0, n);
        clear(n);
    }
};

template <class R, class IO, class P>
void backward_block(const BackwardTask& task, int64_t i0, int64_t n, const Params<P>& params, Rows<R> rows,
                    double* sums) {
    const Scan& scan = task.scan;
    const Backward& io = task.io;
    const Plan& plan = task.plan;
    const Geometry<R> geometry{scan.channels, scan.inner};
    const Shape<R> shape{R(task.shape.width), R(task.shape.half), R(task.shape.height), R(task.shape.steep)};
    const auto recompute = pick_recompute<R, P>(scan.reset, scan.decay_input != 0);
    const auto slopes = pick_slope<R, P>(scan.family == AS, scan.surrogate);
    const auto back = pick_backward<R, P>(scan.family, scan.reset, scan.detach);
    R *u = rows.take(), *du = rows.take(), *f = rows.take(), *zero = rows.take();
    R *x_spare = rows.take(), *g_spare = rows.take(), *dx_spare = rows.take(), *packed = rows.take();
    TimeSums<R> over_time{rows.take(), rows.take(), 0};
    R *m = rows.take(plan.window), *by_a = rows.take(plan.window), *starts = rows.take(plan.windows);

    const Input<R, IO> input(scan, i0, n, x_spare, rows);
    const bool prefetch = plan.stream && i0 + 2 * n <= scan.n;

    const auto recompute_window = [&](int64_t w) {
        const int64_t first = w * plan.window;
        const int64_t end = first + plan.window < scan.steps ? first + plan.window : scan.steps;
        for (int64_t t = first; t < end; ++t) {
            const R* x = input.row(t, prefetch && w == plan.windows - 1);
            recompute(n, x, u, m + (t - first) * plan.block, by_a + (t - first) * plan.block, params);
        }
        return end;
    };
    start_potential<R>(task, i0, n, u);
    for (int64_t w = 0; w + 1 < plan.windows; ++w) {
        copy(n, u, starts + w * plan.block);
        recompute_window(w);
    }

    fill(n, zero, R(0));
    over_time.clear(n);
    if (io.g_u)
        copy(n, static_cast<const R*>(io.g_u) + i0, du);
    else
        fill(n, du, R(0));
    for (int64_t w = plan.windows - 1; w >= 0; --w) {
        if (w + 1 < plan.windows) copy(n, starts + w * plan.block, u);
        const int64_t end = recompute_window(w), first = w * plan.window;
        for (int64_t t = end - 1; t >= first; --t) {
            const int64_t at = (t - first) * plan.block;
            const IO* g_out = static_cast<const IO*>(io.g_out) + t * io.g_out_stride + i0;
            if (prefetch && io.g_out) prefetch_row(n, g_out + n);
            const R* g = io.g_out ? Row<R, IO>::read(n, g_out, g_spare) : zero;
            const R* g_m = io.g_m ? static_cast<const R*>(io.g_m) + t * io.g_m_stride + i0 : zero;
            IO* dx = static_cast<IO*>(io.dx) + t * scan.n + i0;
            R* row = Row<R, IO>::place(dx, dx_spare, plan.stream);
            slopes(n, m + at, f, params, shape);
            back(n, m + at, by_a + at, f, g, g_m, du, row, over_time.dv, over_time.da, params);
            Row<R, IO>::write(n, row, dx, packed, plan.stream);
            if (++over_time.steps == TimeSums<R>::SHORT) over_time.flush(geometry, scan.channels, i0, n, sums);
        }
    }
    over_time.flush(geometry, scan.channels, i0, n, sums);
    if (scan.u0_kind == ELEMENT)
        copy(n, du, static_cast<R*>(io.du0) + i0);
    else
        geometry.add_to(sums + 2 * scan.channels, du, i0, n);
}

template <class R, class IO>
void backward_chunk(const BackwardTask& task, int64_t chunk, void* scratch, double* sums) {
    Rows<R> rows{static_cast<R*>(scratch), task.plan.block};
    for_blocks<R>(
        task, chunk, rows,
        [&](int64_t i, int64_t n, const Params<Shared<R>>& p) { backward_block<R, IO>(task, i, n, p, rows, sums); },
        [&](int64_t i, int64_t n, const Params<const R*>& p) { backward_block<R, IO>(task, i, n, p, rows, sums); });
    if (task.plan.stream) stream_end();
}

}  // namespace

extern const ChunkFunctions STEADYSPIKE_CHUNKS;
const ChunkFunctions STEADYSPIKE_CHUNKS = {
    {forward_chunk<double, double>, forward_chunk<float, float>, forward_chunk<float, Bf16>, forward_chunk<float, Fp16>},
    {backward_chunk<double, double>, backward_chunk<float, float>, backward_chunk<float, Bf16>,
     backward_chunk<float, Fp16>}};
