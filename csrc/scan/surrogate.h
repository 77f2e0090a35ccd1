// Surrogate derivatives f'(z), the formulas of core/surrogate.py, on a register of elements (without calls of libm).
#pragma once
#include "abi.h"
#include "lanes.h"

namespace {

template <class R>
struct Exp;

template <>
struct Exp<float> {
    static constexpr float smallest = -87.0f, round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    static constexpr float log2_high = 0.693359375f, log2_low = -2.12194440e-4f;
    static constexpr int mantissa = 23, bias = 127, terms = 7;
};

template <>
struct Exp<double> {
    static constexpr double smallest = -708.0, round = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double log2_high = 6.93145751953125e-1, log2_low = 1.42860682030941723212e-6;
    static constexpr int mantissa = 52, bias = 1023, terms = 13;
};

// exp(y) for y <= 0, from exp(y) = 2^k exp(r), abs(r) <= log(2)/2, by its Taylor sum; NaN stays NaN. Below the smallest
// normal number it is 0: otherwise a nearly infinite potential times the rest would be a gradient.
template <class R>
inline Vec<R> exp_negative(Vec<R> y) {
    using E = Exp<R>;
    using Bits = typename Lanes<R>::Bits;
    const Vec<R> smallest = all<R>(E::smallest), round = all<R>(E::round);
    const Vec<R> wanted = y, zero{};
    y = y < smallest ? smallest : y;
    const Vec<R> shifted = y * R(1.4426950408889634074) + round;
    const Vec<R> k = shifted - round;
    const Vec<R> r = (y - k * E::log2_high) - k * E::log2_low;
    constexpr double inverse[] = {1.0,           1.0,           1.0 / 2,         1.0 / 6,         1.0 / 24,
                                  1.0 / 120,     1.0 / 720,     1.0 / 5040,      1.0 / 40320,     1.0 / 362880,
                                  1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
    Vec<R> sum = all<R>(R(inverse[E::terms]));
#pragma GCC unroll 16
    for (int i = E::terms - 1; i >= 0; --i) sum = sum * r + R(inverse[i]);
    // `shifted` holds the integer k in its lowest bits; shifted into the exponent it is 2^k.
    const Bits power = Bits(shifted) - Bits(round) + E::bias;
    return wanted < smallest ? zero : sum * Vec<R>(power << E::mantissa);
}

// The constants of one surrogate, computed in double as in Python and then rounded (surrogate_list.h): width; the
// factor in front; the factor of the argument inside.
template <class R>
struct Shape {
    R width, height, steep;
};

// z = M/V - 1: the steep Dspike divides as the reference does; for the others a product is exact enough.
template <class R, int SURROGATE>
inline Vec<R> relative(Vec<R> m, Vec<R> v, Vec<R> inverse) {
    return (SURROGATE == DSPIKE ? m / v : m * inverse) - 1;
}

// f' at z. low, high: the smallest and the largest potential inside the window of a surrogate that has one, computed
// once per channel (window.h), so that an edge is decided as in the reference, without a division here.
template <class R, int SURROGATE>
inline Vec<R> slope(Vec<R> z, Vec<R> m, Vec<R> low, Vec<R> high, const Shape<R>& s) {
    const Vec<R> zero{};
    if constexpr (SURROGATE == RECT) {
        const Vec<R> below = m <= high ? all<R>(s.height) : zero;
        return m >= low ? below : zero;
    } else if constexpr (SURROGATE == TRIANGLE) {
        const Vec<R> left = s.width - magnitude<R>(z);
        return (left < zero ? zero : left) * s.height;
    } else if constexpr (SURROGATE == ARCTAN) {
        const Vec<R> y = s.steep * z;
        return s.height / (1 + y * y);
    } else {
        // Dspike: 1/cosh^2(y) = 4 e / (1 + e)^2 with e = exp(-2 abs(y)): no overflow for any temperature.
        const Vec<R> e = exp_negative<R>(-(s.steep * magnitude<R>(z)));
        const Vec<R> value = s.height * e / ((1 + e) * (1 + e));
        if constexpr (SURROGATE == SIGMOID) return value;
        const Vec<R> below = m > high ? zero : value;
        return m < low ? zero : below;
    }
}

}  // namespace
