// Surrogate derivatives f'(z), the formulas of core/surrogate.py, for loops that vectorise (no libm call inside).
#pragma once
#include <cstdint>

#include "half.h"

namespace {

enum SurrogateCode { RECT = 0, TRIANGLE = 1, ARCTAN = 2, SIGMOID = 3, DSPIKE = 4 };

template <class R>
struct Exp;

template <>
struct Exp<float> {
    using Bits = uint32_t;
    static constexpr float smallest = -87.0f, round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    static constexpr float log2_high = 0.693359375f, log2_low = -2.12194440e-4f;
    static constexpr int mantissa = 23, bias = 127, terms = 7;
};

template <>
struct Exp<double> {
    using Bits = uint64_t;
    static constexpr double smallest = -708.0, round = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double log2_high = 6.93145751953125e-1, log2_low = 1.42860682030941723212e-6;
    static constexpr int mantissa = 52, bias = 1023, terms = 13;
};

// exp(y) for y <= 0, from exp(y) = 2^k exp(r), abs(r) <= log(2)/2, by its Taylor sum; NaN stays NaN. Underflow ends at
// the smallest normal number instead of 0.
template <class R>
inline R exp_negative(R y) {
    using E = Exp<R>;
    y = y < E::smallest ? E::smallest : y;
    const R shifted = y * R(1.4426950408889634074) + E::round;
    const R k = shifted - E::round;
    const R r = (y - k * E::log2_high) - k * E::log2_low;
    constexpr double inverse[] = {1.0,           1.0,           1.0 / 2,         1.0 / 6,         1.0 / 24,
                                  1.0 / 120,     1.0 / 720,     1.0 / 5040,      1.0 / 40320,     1.0 / 362880,
                                  1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
    R sum = R(inverse[E::terms]);
#pragma GCC unroll 16
    for (int i = E::terms - 1; i >= 0; --i) sum = sum * r + R(inverse[i]);
    const typename E::Bits power = bits<typename E::Bits>(shifted) - bits<typename E::Bits>(E::round) + E::bias;
    return sum * bits<R>(typename E::Bits(power << E::mantissa));
}

inline float magnitude(float z) { return __builtin_fabsf(z); }
inline double magnitude(double z) { return __builtin_fabs(z); }

// The constants of one surrogate, computed in double as Python does and then rounded (make_shape in lif.cpp):
// width; half of it; the factor in front; the factor of the argument inside.
template <class R>
struct Shape {
    R width, half, height, steep;
};

template <class R, int SURROGATE>
inline R slope(R z, const Shape<R>& s) {
    const R distance = magnitude(z);
    if constexpr (SURROGATE == RECT) {
        return distance < s.half ? s.height : R(0);
    } else if constexpr (SURROGATE == TRIANGLE) {
        const R left = s.width - distance;
        return (left < 0 ? R(0) : left) * s.height;
    } else if constexpr (SURROGATE == ARCTAN) {
        const R y = s.steep * z;
        return s.height / (1 + y * y);
    } else if constexpr (SURROGATE == SIGMOID) {
        const R e = exp_negative<R>(-(s.steep * distance));
        return s.height * e / ((1 + e) * (1 + e));
    } else {
        // 1/cosh^2(y) = 4 e / (1 + e)^2 with e = exp(-2 abs(y)): no overflow for any temperature.
        const R e = exp_negative<R>(-(s.steep * distance));
        const R value = s.height * e / ((1 + e) * (1 + e));
        return distance > s.half ? R(0) : value;
    }
}

}  // namespace
