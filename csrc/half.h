// bfloat16 and float16 rows to and from float, by integer arithmetic that every compiler vectorises.
#pragma once
#include <cstdint>

namespace {

template <class To, class From>
inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits() keeps the size");
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}

struct Bf16 {
    uint16_t raw;
};
struct Fp16 {
    uint16_t raw;
};

inline float widen(Bf16 h) { return bits<float>(uint32_t(h.raw) << 16); }

inline float widen(Fp16 h) {
    const uint32_t magnitude = uint32_t(h.raw & 0x7fff) << 13;
    const uint32_t sign = uint32_t(h.raw & 0x8000) << 16;
    const uint32_t rebias = 112u << 23;
    const float tiny = bits<float>(magnitude + rebias + (1u << 23)) - bits<float>(rebias + (1u << 23));
    uint32_t wide = magnitude + rebias;
    wide = magnitude >= (31u << 23) ? wide + rebias : wide;             // inf and NaN
    wide = magnitude < (1u << 23) ? bits<uint32_t>(tiny) : wide;         // zero and subnormal
    return bits<float>(wide | sign);
}

// Round to nearest, ties to even; NaN stays NaN.
inline void narrow(float value, Bf16& to) {
    const uint32_t raw = bits<uint32_t>(value);
    const uint32_t rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
    to.raw = uint16_t((raw & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

inline void narrow(float value, Fp16& to) {
    const uint32_t raw = bits<uint32_t>(value);
    const uint32_t magnitude = raw & 0x7fffffffu;
    const uint32_t rebias = 112u << 23;
    uint32_t half = (magnitude - rebias + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Below 2^-14 the spacing is 2^-24, which is that of floats around 0.5: the addition rounds.
    const uint32_t tiny = bits<uint32_t>(bits<float>(magnitude) + 0.5f) - bits<uint32_t>(0.5f);
    half = magnitude < (113u << 23) ? tiny : half;
    half = magnitude >= (143u << 23) ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    to.raw = uint16_t(half | ((raw >> 16) & 0x8000u));
}

template <class IO>
void widen_row(int64_t n, const IO* __restrict from, float* __restrict to) {
    for (int64_t i = 0; i < n; ++i) to[i] = widen(from[i]);
}

template <class IO>
void narrow_row(int64_t n, const float* __restrict from, IO* __restrict to) {
    for (int64_t i = 0; i < n; ++i) narrow(from[i], to[i]);
}

}  // namespace
