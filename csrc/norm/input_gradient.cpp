// The last step of a batch norm's backward: dy = scale g + by_y y + constant, with constants per channel.
#include <cstdint>

#include "clones.h"
#include "export.h"
#include "threads.h"

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

// rows: of `inner` elements of one channel, or, if inner is 1, of all channels.
template <class R>
void map_all(const void* g, const void* y, void* dy, int64_t n, int64_t channels, int64_t inner, const void* scale,
             const void* by_y, const void* constant, int64_t threads) {
    const bool last = inner == 1;
    const int64_t length = last ? channels : inner, rows = n / length;
    on_ranges(n > 65536 ? threads : 1, rows, [=](int64_t first, int64_t end) {
        for (int64_t r = first; r < end; ++r) {
            const int64_t c = last ? 0 : r % channels, at = r * length;
            row(static_cast<const R*>(g) + at, static_cast<const R*>(y) + at, static_cast<R*>(dy) + at, length,
                static_cast<const R*>(scale) + c, static_cast<const R*>(by_y) + c, static_cast<const R*>(constant) + c, last);
        }
    });
}

}  // namespace

extern "C" {

// g, y, dy: n elements in the same memory order (dy may be g), float (size 4) or double (8); channel of element i:
// (i / inner) % channels. Returns 1 for a bad argument.
STEADYSPIKE_EXPORT int64_t steadyspike_norm_input_gradient(const void* g, const void* y, void* dy, int64_t size, int64_t n,
                                                           int64_t channels, int64_t inner, const void* scale,
                                                           const void* by_y, const void* constant, int64_t threads) {
    if (n < 0 || channels < 1 || inner < 1 || n % (channels * inner) != 0) return 1;
    if (size == 4) map_all<float>(g, y, dy, n, channels, inner, scale, by_y, constant, threads);
    else if (size == 8) map_all<double>(g, y, dy, n, channels, inner, scale, by_y, constant, threads);
    else return 1;
    return 0;
}
}
