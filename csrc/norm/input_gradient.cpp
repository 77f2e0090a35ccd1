// Two passes of a batch norm's backward. Sums: of g (y - mean) per channel. The last step: dy = scale g + by_y y +
// constant, with constants per channel that are computed from the sums.
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

#include "clones.h"
#include "export.h"
#include "threads.h"

// The numbers of a norm per channel: the sums of g and of g (y - mean) that its gradients are made of, mean, 1 / sd, and
// scale = weight / sd. dweight and dbias are written.
struct Norm {
    const double* sums;
    const void *mean, *invstd, *scale;
    void *dweight, *dbias;
};

namespace {

// Adjacent elements: of one channel each (step 0), or of consecutive channels (step 1).
template <class R>
inline __attribute__((always_inline)) void map_row(const R* g, const R* y, R* dy, int64_t n, const R* scale, const R* by_y,
                                                   const R* constant, int64_t step) {
    if (step == 0) {
        const R s = *scale, b = *by_y, c = *constant;
        for (int64_t i = 0; i < n; ++i) dy[i] = s * g[i] + b * y[i] + c;
    } else {
        for (int64_t i = 0; i < n; ++i) dy[i] = scale[i] * g[i] + by_y[i] * y[i] + constant[i];
    }
}

STEADYSPIKE_CLONES void row(const float* g, const float* y, float* dy, int64_t n, const float* scale, const float* by_y,
                            const float* constant, int64_t step) {
    map_row(g, y, dy, n, scale, by_y, constant, step);
}
STEADYSPIKE_CLONES void row(const double* g, const double* y, double* dy, int64_t n, const double* scale, const double* by_y,
                            const double* constant, int64_t step) {
    map_row(g, y, dy, n, scale, by_y, constant, step);
}

// dy = scale (g - mean(g) - xhat mean(g xhat)), with xhat = (y - mean) / sd, as scale g + by_y y + constant. Returns
// by_y, then constant, of all channels.
template <class R>
std::unique_ptr<R[]> gradients(const Norm& norm, int64_t channels, double count) {
    const R *mean = static_cast<const R*>(norm.mean), *invstd = static_cast<const R*>(norm.invstd);
    const R* scale = static_cast<const R*>(norm.scale);
    std::unique_ptr<R[]> constants(new R[size_t(2 * channels)]);
    for (int64_t c = 0; c < channels; ++c) {
        const double by_bias = norm.sums[c], by_weight = norm.sums[channels + c] * double(invstd[c]);
        const double by_y = -double(scale[c] * invstd[c]) * (by_weight / count);
        constants[size_t(c)] = R(by_y);
        constants[size_t(channels + c)] = R(-double(scale[c]) * (by_bias / count) - double(mean[c]) * by_y);
        static_cast<R*>(norm.dweight)[c] = R(by_weight);
        static_cast<R*>(norm.dbias)[c] = R(by_bias);
    }
    return constants;
}

// rows: of `inner` elements of one channel, or, if inner is 1, of all channels.
template <class R>
void map_all(const void* g, const void* y, void* dy, int64_t n, int64_t channels, int64_t inner, const Norm& norm, int64_t threads) {
    const bool last = inner == 1;
    const int64_t length = last ? channels : inner, rows = n / length;
    const std::unique_ptr<R[]> constants = gradients<R>(norm, channels, double(n / channels));
    const R *scale = static_cast<const R*>(norm.scale), *by_y = constants.get(), *constant = by_y + channels;
    on_ranges(n > 65536 ? threads : 1, rows, [=](int64_t first, int64_t end) {
        for (int64_t r = first; r < end; ++r) {
            const int64_t c = last ? 0 : r % channels, at = r * length;
            row(static_cast<const R*>(g) + at, static_cast<const R*>(y) + at, static_cast<R*>(dy) + at, length, scale + c, by_y + c,
                constant + c, last);
        }
    });
}

constexpr int64_t ROWS = 64, CHUNK = 64 * ROWS;  // rows that are added up in R, and those of one partial sum

// Adds g (y - mean) of some rows of all channels to `sum`.
template <class R>
inline __attribute__((always_inline)) void add_rows(const R* g, const R* y, const R* mean, R* sum, int64_t rows, int64_t channels) {
    for (int64_t r = 0; r < rows; ++r, g += channels, y += channels)
        for (int64_t c = 0; c < channels; ++c) sum[c] += g[c] * (y[c] - mean[c]);
}

STEADYSPIKE_CLONES void add(const float* g, const float* y, const float* mean, float* __restrict sum, int64_t rows, int64_t channels) {
    add_rows(g, y, mean, sum, rows, channels);
}
STEADYSPIKE_CLONES void add(const double* g, const double* y, const double* mean, double* __restrict sum, int64_t rows, int64_t channels) {
    add_rows(g, y, mean, sum, rows, channels);
}

// Chunks of rows have sums of their own, which are added in order, so that the number of threads does not matter.
template <class R>
void sum_all(const void* g, const void* y, const void* mean, double* sums, int64_t rows, int64_t channels, int64_t threads) {
    const int64_t chunks = (rows + CHUNK - 1) / CHUNK;
    const std::unique_ptr<double[]> partial(new double[size_t(chunks * channels)]());
    const std::unique_ptr<R[]> small(new R[size_t(threads * channels)]);
    std::atomic<int64_t> next{0};
    on_ranges(rows * channels > 65536 ? threads : 1, chunks, [&](int64_t first, int64_t end) {
        R* const sum = small.get() + next++ * channels;
        for (int64_t chunk = first; chunk < end; ++chunk)
            for (int64_t r = chunk * CHUNK; r < rows && r < (chunk + 1) * CHUNK; r += ROWS) {
                for (int64_t c = 0; c < channels; ++c) sum[c] = 0;
                add(static_cast<const R*>(g) + r * channels, static_cast<const R*>(y) + r * channels, static_cast<const R*>(mean), sum,
                    rows - r < ROWS ? rows - r : ROWS, channels);
                for (int64_t c = 0; c < channels; ++c) partial[chunk * channels + c] += double(sum[c]);
            }
    });
    for (int64_t c = 0; c < channels; ++c) {
        sums[c] = 0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) sums[c] += partial[chunk * channels + c];
    }
}

}  // namespace

extern "C" {

// sums[channel] of g (y - mean), for g and y [rows][channels], float (size 4) or double (8). Returns 1 for a bad
// argument, 2 if there is no memory.
STEADYSPIKE_EXPORT int64_t steadyspike_norm_sums(const void* g, const void* y, const void* mean, double* sums, int64_t size,
                                                 int64_t rows, int64_t channels, int64_t threads) {
    if (rows < 0 || channels < 1 || threads < 1) return 1;
    try {
        if (size == 4) sum_all<float>(g, y, mean, sums, rows, channels, threads);
        else if (size == 8) sum_all<double>(g, y, mean, sums, rows, channels, threads);
        else return 1;
    } catch (const std::bad_alloc&) {
        return 2;
    }
    return 0;
}

// g, y, dy: n elements in the same memory order (dy may be g), float (size 4) or double (8); channel of element i:
// (i / inner) % channels. Also writes dweight and dbias (see `Norm`). Returns 1 for a bad argument, 2 if there is no
// memory.
STEADYSPIKE_EXPORT int64_t steadyspike_norm_input_gradient(const void* g, const void* y, void* dy, int64_t size, int64_t n,
                                                           int64_t channels, int64_t inner, const Norm* norm,
                                                           int64_t threads) {
    if (n < 0 || channels < 1 || inner < 1 || n % (channels * inner) != 0) return 1;
    try {
        if (size == 4) map_all<float>(g, y, dy, n, channels, inner, *norm, threads);
        else if (size == 8) map_all<double>(g, y, dy, n, channels, inner, *norm, threads);
        else return 1;
    } catch (const std::bad_alloc&) {
        return 2;
    }
    return 0;
}
}
