// The entry points: check the arguments, plan the work, run chunks in parallel, add up the partial sums in a fixed
// order.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "../conv/conv_plan.h"
#include "cache.h"
#include "task.h"
#include "window.h"

#if defined(STEADYSPIKE_X86)
extern const ChunkFunctions steadyspike_chunks_avx2, steadyspike_chunks_avx512;
#endif
extern const ChunkFunctions steadyspike_chunks_base;

namespace {

constexpr int64_t MAX_CHUNKS = 128, CHUNK_WORK = 32768, CHUNK_PER_CHANNEL = 8;
constexpr int64_t STREAM_BYTES = 32 << 20;     // outputs from this size on do not stay in a cache until they are read
constexpr int64_t HUGE_PAGE_BYTES = 32 << 20;  // glibc maps larger blocks newly for every allocation

// By instruction set, in the order of common/isa.h.
const ChunkFunctions* const CHUNKS[] = {
    &steadyspike_chunks_base,
#if defined(STEADYSPIKE_X86)
    &steadyspike_chunks_avx2, &steadyspike_chunks_avx512,
#endif
};

bool in(int64_t value, int64_t end) { return 0 <= value && value < end; }

bool valid(const Affine* affine, int64_t n) {
    return affine == nullptr || (affine->channels >= 1 && affine->inner >= 1 && affine->extra_stride >= 0 &&
                                 affine->step_stride >= 0 && n % (affine->channels * affine->inner) == 0 &&
                                 (!affine->extra_bits || (!affine->extra && affine->extra_scale && n % 64 == 0)));
}

bool valid(const ConvInput* input, const Scan& s) {
    if (!input) return true;
    const SpikeConv& c = input->conv;
    if (!conv_is_valid(c) || !c.channels_last || s.dtype != F32 || c.steps * c.batch % s.steps != 0) return false;
    const ConvShape shape = conv_shape(c);
    const int64_t row = shape.out_width * c.out_channels;
    return row % 64 == 0 && s.n * s.steps == shape.images * shape.out_height * row;
}

bool valid(const Scan& s) {
    if (!valid(s.affine, s.n) || !valid(s.conv, s)) return false;
    return in(s.dtype, 4) && s.steps >= 1 && s.n >= 0 && s.channels >= 1 && s.inner >= 1 && in(s.family, 3) &&
           in(s.surrogate, SURROGATE_COUNT) && in(s.reset, 3) && in(s.detach, 3) && in(s.u0_kind, 3) && in(s.v_kind, 2) &&
           in(s.a_kind, 2) && s.x_stride >= 0 && s.isa < steadyspike_isas() && s.n % (s.channels * s.inner) == 0;
}

int64_t io_size(int64_t dtype) { return dtype == F64 ? 8 : dtype == F32 ? 4 : 2; }

// A large new tensor has no pages yet. Requesting huge pages before the first write halves the time of that write.
void want_huge_pages(void* tensor, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (tensor == nullptr || bytes < HUGE_PAGE_BYTES) return;
    constexpr uintptr_t page = 2 << 20;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(tensor) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(tensor) + uintptr_t(bytes)) / page * page;
    // only a hint: if it fails, nothing changes
    (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    (void)tensor, (void)bytes;
#endif
}

// The input and the gradient are read too, and others use the cache, so an output can use only a quarter of it.
int64_t stream_bytes() {
    const int64_t share = last_cache_bytes() / 4;
    return share > 0 && share < STREAM_BYTES ? share : STREAM_BYTES;
}

// sums: of the backward, which keeps a copy of them if it has several tiles; 0 for the forward.
Plan make_plan(const Scan& scan, int64_t rows, int64_t sums, bool fast) {
    Plan plan{};
    plan.tiles = ceil(scan.steps, TILE);
    plan.chunk = ceil(scan.n, MAX_CHUNKS);
    if (plan.chunk * scan.steps < CHUNK_WORK) plan.chunk = CHUNK_WORK / scan.steps;
    plan.chunk = larger(plan.chunk, CHUNK_PER_CHANNEL * scan.channels);
    plan.fast = fast && scan.dtype != F64 && scan.reset == SOFT && scan.detach == KEEP && scan.decay_input;
    const bool in_place = plan.fast && (scan.dtype == F32 || scan.dtype == BF16) && !scan.affine && scan.channels == 1;
    plan.block = in_place && plan.chunk >= LARGE_BLOCK ? LARGE_BLOCK : BLOCK;
    plan.chunk = ceil(larger(plan.chunk, 1), plan.block) * plan.block;
    plan.chunks = ceil(scan.n, plan.chunk);
    plan.stream = scan.steps * scan.n * io_size(scan.dtype) >= stream_bytes();
    plan.scratch = (rows + (sums ? plan.tiles : 0)) * (plan.block + ROW_GAP) * (scan.dtype == F64 ? 8 : 4) + 8 * sums;
    return plan;
}

// Parameters per channel in the compute type, with the values that the rows need, derived from them once.
template <class R>
struct ParamTable {
    std::vector<R> v, fire, keep, gain, inverse, low, high, level, u0;
    bool ordinary = true;  // every threshold is finite and above 0

    // windows: compute low and high. wide: they may be too far out, for callers that do not need the exact edge.
    ParamTable(const Scan& scan, bool windows, bool wide) {
        const R *v_in = static_cast<const R*>(scan.v), *a_in = static_cast<const R*>(scan.a);
        const R* u0_in = static_cast<const R*>(scan.u0);
        for (int64_t c = 0; c < scan.channels; ++c) {
            const R value = v_in[scan.v_kind == CHANNEL ? c : 0], a = a_in[scan.a_kind == CHANNEL ? c : 0];
            v.push_back(value);
            fire.push_back(scan.strict ? above(value) : value);
            keep.push_back(1 - a);
            gain.push_back(scan.decay_input ? a : R(1));
            inverse.push_back(1 / value);
            level.push_back(scan.family == TRSG ? value : R(1));
            ordinary = ordinary && value > 0 && value < std::numeric_limits<R>::infinity();
            const bool exact = has_exact_window(scan.surrogate);
            const Window<R> window{value, R(scan.width / 2), scan.family == AS, window_is_closed(scan.surrogate)};
            const R reach = fades_out(scan.surrogate) ? triangle_reach(scan, value) : std::numeric_limits<R>::infinity();
            low.push_back(!windows ? R(0) : exact ? window.edge(false) : wide ? value - reach : R(0));
            high.push_back(!windows ? R(0) : exact ? window.edge(true) : wide ? value + reach : R(0));
            u0.push_back(scan.u0_kind == ELEMENT ? R(0) : u0_in[scan.u0_kind == CHANNEL ? c : 0]);
        }
    }

    // Whether all windows are above 0.
    bool above_zero() const {
        return std::all_of(low.begin(), low.end(), [](R edge) { return edge > 0; });
    }

    // How far from V the triangle may be above 0, with a margin for every rounding.
    static R triangle_reach(const Scan& scan, R value) {
        const R width = R(scan.width), size = std::fabs(value);
        return (scan.family == AS ? width : width * size) * R(1.001) + size * R(1e-5);
    }

    // M > V is the same as M >= the next number above V; no number is above infinity.
    static R above(R value) {
        const R infinity = std::numeric_limits<R>::infinity();
        return value == infinity ? std::numeric_limits<R>::quiet_NaN() : std::nextafter(value, infinity);
    }

    ChannelParams pointers() const {
        return {v.data(), fire.data(), keep.data(), gain.data(), inverse.data(),
                low.data(), high.data(), level.data(), u0.data()};
    }
};

// Runs all chunks; returns their `size` partial sums added up in the order of the chunks.
template <class Task, class Chunk>
int64_t run(const Task& task, Chunk chunk_function, int64_t size, std::vector<double>& sums) {
    const Plan& plan = task.plan;
    const size_t width = size_t(size);
    std::vector<double> partial(width * size_t(plan.chunks), 0.0);
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    const auto work = [&] {
        int64_t c = next++;
        if (c >= plan.chunks) return;
        std::unique_ptr<char[]> memory(new (std::nothrow) char[size_t(plan.scratch) + 64]);
        if (!memory) {
            failed = true;
            return;
        }
        void* aligned = memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64) % 64;
        try {
            for (; c < plan.chunks; c = next++)
                chunk_function(task, c, aligned, partial.data() + width * size_t(c));
        } catch (const std::bad_alloc&) {  // the lists of a convolution
            failed = true;
        }
    };
    // A free thread takes the next chunk. The sums are per chunk, so the order of work does not change them. It is
    // always torch's whole team: with a smaller one, libgomp would end threads that torch's next operation starts
    // again.
    on_threads(plan.chunks <= 1 ? 1 : task.scan.threads, work);
    if (failed) return OUT_OF_MEMORY;
    sums.assign(width, 0.0);
    for (int64_t c = 0; c < plan.chunks; ++c)
        for (size_t i = 0; i < width; ++i) sums[i] += partial[width * size_t(c) + i];
    return OK;
}

double total(const double* values, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += values[i];
    return sum;
}

// Sums, rounded to R and then multiplied by their factors, as an operator on the stored sums would do.
template <class R>
void store(const double* per_channel, int64_t channels, int64_t kind, void* to, const void* factors = nullptr) {
    R* out = static_cast<R*>(to);
    const R* factor = static_cast<const R*>(factors);
    if (out == nullptr) return;
    if (kind == SCALAR) out[0] = R(total(per_channel, channels)) * (factor ? factor[0] : R(1));
    if (kind == CHANNEL)
        for (int64_t c = 0; c < channels; ++c) out[c] = R(per_channel[c]) * (factor ? factor[c] : R(1));
}

// The convolution that computes x. The chunks of `plan` become its parts.
ForwardConv conv_of(const Scan& scan, Plan& plan) {
    const SpikeConv& c = scan.conv->conv;
    ConvShape shape = conv_shape(c);
    shape.images /= scan.steps;
    const ConvPlan parts = cut_forward(shape.images, shape, scan.steps, scan.threads);
    plan.chunks = parts.parts;
    plan.chunk = parts.images * parts.rows * shape.out_width * c.out_channels;
    const int64_t x_at = ceil(plan.scratch, 64) * 64;
    plan.scratch = x_at + scan.steps * plan.chunk * int64_t(sizeof(float));
    return {{c, shape, parts, scan.conv->packed, scan.conv->bias, nullptr, float(scan.conv->scale), nullptr,
             lists_by_row(c)},
            conv_loops(scan.isa).forward, x_at};
}

template <class R>
int64_t forward(const Scan& scan, const Forward& io) {
    const ParamTable<R> table(scan, io.needed != nullptr, true);
    const int64_t elements = scan.steps * scan.n;
    want_huge_pages(io.out, elements * io_size(scan.dtype));
    want_huge_pages(io.m, elements * int64_t(sizeof(R)));
    ForwardTask task{scan, io, make_plan(scan, FORWARD_ROWS, 0, table.ordinary && !io.m), table.pointers(), nullptr};
    std::unique_ptr<const ForwardConv> conv;
    if (scan.conv) {
        conv.reset(new ForwardConv(conv_of(scan, task.plan)));
        task.conv = conv.get();
    }
    std::vector<double> sums;
    const int64_t bit_sums = io.bits ? scan.steps + 1 : 0;
    const int64_t status = run(task, for_isa(CHUNKS, scan.isa).forward[sizeof(R) == 4], 2 * scan.channels + bit_sums, sums);
    if (status != OK) return status;
    const int64_t kind = io.channelwise ? CHANNEL : SCALAR, width = io.channelwise ? scan.channels : 1;
    store<double>(sums.data(), scan.channels, kind, io.active);
    store<double>(sums.data() + scan.channels, scan.channels, kind, io.active + width);
    for (int64_t i = 0; i < bit_sums; ++i) io.counts[i] = int64_t(sums[size_t(2 * scan.channels + i)]);
    if (io.bits) io.counts[scan.steps] = io.counts[scan.steps] > 0;
    return OK;
}

template <class R>
int64_t backward(const Scan& scan, const Backward& io) {
    const ParamTable<R> table(scan, true, false);
    want_huge_pages(io.dx, scan.steps * scan.n * io_size(scan.dtype));
    const bool fast = table.ordinary && io.g_out && !io.g_m;
    const SurrogateShape shape = surrogate_shape(scan.surrogate, scan.width, scan.scale, scan.temperature);
    const bool usual = scan.family == TRSG && scan.surrogate == RECT && shape.height == 1 && table.above_zero();
    const int64_t norm_sums = io.norm_sums ? 2 * scan.affine->channels : 0, count = 3 * scan.channels + norm_sums;
    const Plan plan = make_plan(scan, BACKWARD_ROWS, count, fast);
    const BackwardTask task{scan, io, plan, table.pointers(), shape, usual, count};
    std::vector<double> sums;
    const int64_t status = run(task, for_isa(CHUNKS, scan.isa).backward[sizeof(R) == 4], count, sums);
    if (status != OK) return status;
    store<R>(sums.data(), scan.channels, scan.v_kind, io.dv, io.v_slope);
    store<R>(sums.data() + scan.channels, scan.channels, scan.a_kind, io.da, io.a_slope);
    store<R>(sums.data() + 2 * scan.channels, scan.channels, scan.u0_kind, io.du0);
    for (int64_t i = 0; i < norm_sums; ++i) io.norm_sums[i] = sums[size_t(3 * scan.channels + i)];
    return OK;
}

}  // namespace

extern "C" {

int64_t steadyspike_lif_forward(const Scan* scan, const Forward* io) {
    if (!valid(*scan) || (io->bits == nullptr) != (io->counts == nullptr) || (io->needed && !io->bits)) return BAD_ARGUMENT;
    if (io->bits && scan->n % 64 != 0) return BAD_ARGUMENT;
    try {
        return scan->dtype == F64 ? forward<double>(*scan, *io) : forward<float>(*scan, *io);
    } catch (const std::bad_alloc&) {
        return OUT_OF_MEMORY;
    }
}

int64_t steadyspike_lif_backward(const Scan* scan, const Backward* io) {
    if (!valid(*scan) || scan->conv || io->g_out_stride < 0 || io->g_m_stride < 0) return BAD_ARGUMENT;
    if ((io->center == nullptr) != (io->norm_sums == nullptr) || (io->center && !scan->affine)) return BAD_ARGUMENT;
    try {
        return scan->dtype == F64 ? backward<double>(*scan, *io) : backward<float>(*scan, *io);
    } catch (const std::bad_alloc&) {
        return OUT_OF_MEMORY;
    }
}
}
