// Forward and backward of one chunk of elements. Compiled once per instruction set, as STEADYSPIKE_CHUNKS names it;
// everything but that one table has internal linkage, so no code for a newer CPU can leak into the common path.
#include "geometry.h"
#include "step.h"
#include "stream.h"
#include "task.h"

namespace {

constexpr int64_t AHEAD = 1024;  // bytes from a line that is read to the line that is loaded early

// Hands out rows of a thread's scratch, each of a whole number of cache lines.
template <class R>
struct Rows {
    R* next;
    int64_t block;

    R* take(int64_t rows = 1) {
        R* row = next;
        next += rows * block;
        return row;
    }
    double* take_doubles() { return reinterpret_cast<double*>(take(int64_t(sizeof(double) / sizeof(R)))); }
};

// The constants of a block's elements, and which of the channels they are for.
template <class R>
struct ConstantRows {
    R *v, *fire, *keep, *gain, *inverse, *low, *high;
    int64_t channel = -1;

    explicit ConstantRows(Rows<R>& rows)
        : v(rows.take()), fire(rows.take()), keep(rows.take()), gain(rows.take()), inverse(rows.take()),
          low(rows.take()), high(rows.take()) {}

    void set(const ChannelParams& params, const Geometry<R>& geometry, int64_t i0, int64_t n, int64_t block) {
        const bool one = geometry.one_channel(i0, n);
        const int64_t c = geometry.channel(i0);
        if (one && c == channel) return;
        channel = one ? c : -1;
        const void* const from[] = {params.v, params.fire, params.keep, params.gain, params.inverse, params.low, params.high};
        R* const to[] = {v, fire, keep, gain, inverse, low, high};
        for (int k = 0; k < 7; ++k) {
            const R* values = static_cast<const R*>(from[k]);
            if (!one)
                geometry.expand(values, i0, n, to[k]);
            else
                for (int64_t i = 0; i < block; ++i) to[k][i] = values[c];
        }
    }

    Constants<R> at(int64_t i) const {
        return {load<true>(v + i, 0), load<true>(fire + i, 0), load<true>(keep + i, 0), load<true>(gain + i, 0)};
    }
};

// A block's input current: x, or an affine map of it with per-channel constants.
template <class R, class IO>
struct Input {
    const IO *x, *extra = nullptr;
    int64_t stride, extra_stride = 0;
    R *scale = nullptr, *shift = nullptr, *extra_scale = nullptr;
    bool early;

    Input(const Scan& scan, const Plan& plan, int64_t i0, int64_t n, Rows<R>& rows)
        : x(static_cast<const IO*>(scan.x) + i0), stride(scan.x_stride), early(plan.stream) {
        const Affine* affine = scan.affine;
        if (!affine) return;
        const Geometry<R> geometry{affine->channels, affine->inner};
        scale = rows.take(), shift = rows.take(), extra_scale = rows.take();
        geometry.expand(static_cast<const R*>(affine->scale), i0, n, scale);
        geometry.expand(static_cast<const R*>(affine->shift), i0, n, shift);
        if (!affine->extra) return;
        extra = static_cast<const IO*>(affine->extra) + i0;
        extra_stride = affine->extra_stride;
        if (affine->extra_scale)
            geometry.expand(static_cast<const R*>(affine->extra_scale), i0, n, extra_scale);
        else
            for (int64_t i = 0; i < n; ++i) extra_scale[i] = R(1);
    }

    template <bool FULL, bool SIMPLE>
    Vec<R> at(int64_t t, int64_t i, int64_t count) const {
        const IO* from = x + t * stride + i;
        if constexpr (SIMPLE) return load<FULL>(from, count);
        if (early) __builtin_prefetch(reinterpret_cast<const char*>(from) + AHEAD);
        Vec<R> value = load<FULL>(from, count);
        if (!scale) return value;
        value = load<true>(scale + i, 0) * value + load<true>(shift + i, 0);
        if (!extra) return value;
        from = extra + t * extra_stride + i;
        if (early) __builtin_prefetch(reinterpret_cast<const char*>(from) + AHEAD);
        return value + load<true>(extra_scale + i, 0) * load<FULL>(from, count);
    }
};

// Where a block's T rows of results go: to the tensor, past the cache if it is large. A row of it that does not start at
// a register's boundary, or is of half the width, is collected in scratch first and streamed as a whole.
template <class R, class IO>
struct Output {
    IO *tensor, *to;
    int64_t tensor_stride, stride;
    bool direct = false, collect = false;

    Output(void* base, const Scan& scan, const Plan& plan, int64_t i0, Rows<R>& rows)
        : tensor(static_cast<IO*>(base) + i0), to(tensor), tensor_stride(scan.n), stride(scan.n) {
        if (!plan.stream) return;
        const uintptr_t first = reinterpret_cast<uintptr_t>(base), step = uintptr_t(scan.n) * sizeof(IO);
        direct = sizeof(IO) == sizeof(R) && (first | step) % STEADYSPIKE_REGISTER == 0;
        collect = !direct && scan.steps <= COLLECTED_STEPS;
        if (!collect) return;
        to = reinterpret_cast<IO*>(rows.take(scan.steps));
        stride = plan.block;
    }

    template <bool FULL, bool SIMPLE>
    void put(Vec<R> value, int64_t t, int64_t i, int64_t count) const {
        if constexpr (FULL && !SIMPLE && sizeof(IO) == sizeof(R))
            if (direct) return stream_register(to + t * stride + i, value);
        store<FULL>(value, to + t * stride + i, count);
    }

    void finish(int64_t steps, int64_t n) const {
        if (!collect) return;
        for (int64_t t = 0; t < steps; ++t)
            stream_bytes(tensor + t * tensor_stride, to + t * stride, n * int64_t(sizeof(IO)));
    }
};

// Steps of one neuron depend on each other; registers of other neurons fill the waiting time. So many go together.
#if STEADYSPIKE_REGISTER == 64
constexpr int FORWARD_TOGETHER = 4, BACKWARD_TOGETHER = 4;
#else
constexpr int FORWARD_TOGETHER = 2, BACKWARD_TOGETHER = 2;
#endif
#define EACH(k, TOGETHER) _Pragma("GCC unroll 4") for (int k = 0; k < TOGETHER; ++k)

// Runs a block over a row of n elements: whole registers together, and what is left by one, which may be partial.
template <class R, int TOGETHER, class Block>
inline void for_registers(const Block& block, int64_t n) {
    constexpr int64_t stride = TOGETHER * WIDTH<R>;
    int64_t i = 0;
    for (; i + stride <= n; i += stride) block.template run<true, TOGETHER>(i, WIDTH<R>);
    for (; i < n; i += WIDTH<R>) block.template run<false, 1>(i, n - i < WIDTH<R> ? n - i : WIDTH<R>);
}

template <class R>
const R* start_potential(const Scan& scan, const ChannelParams& params, int64_t i0, int64_t n, R* row) {
    const R* from = static_cast<const R*>(scan.u0);
    if (scan.u0_kind == ELEMENT)
        for (int64_t i = 0; i < n; ++i) row[i] = from[i0 + i];
    else
        Geometry<R>{scan.channels, scan.inner}.expand(static_cast<const R*>(params.u0), i0, n, row);
    return row;
}

// Most calls are simple: a soft reset that gradients pass, results that stay in the cache, nothing but the spikes asked
// for. The compiler then needs no branch inside the loop over time, which in cache is half of the time.
inline bool simple(const Scan& scan, const Plan& plan) {
    return scan.reset == SOFT && scan.detach == KEEP && scan.decay_input && !scan.affine && !plan.stream;
}

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

#define FORWARD(R, IO) {forward_chunk<R, IO, false>, forward_chunk<R, IO, true>}
#define SURROGATES(R, IO, FAMILY)                                                                                   \
    {backward_chunk<R, IO, FAMILY, RECT>, backward_chunk<R, IO, FAMILY, TRIANGLE>, backward_chunk<R, IO, FAMILY, ARCTAN>, \
     backward_chunk<R, IO, FAMILY, SIGMOID>, backward_chunk<R, IO, FAMILY, DSPIKE>}
#define BACKWARD(R, IO) {SURROGATES(R, IO, AS), SURROGATES(R, IO, RS), SURROGATES(R, IO, TRSG)}

}  // namespace

extern const ChunkFunctions STEADYSPIKE_CHUNKS;
const ChunkFunctions STEADYSPIKE_CHUNKS = {
    {FORWARD(double, double), FORWARD(float, float), FORWARD(float, Bf16), FORWARD(float, Fp16)},
    {BACKWARD(double, double), BACKWARD(float, float), BACKWARD(float, Bf16), BACKWARD(float, Fp16)}};
