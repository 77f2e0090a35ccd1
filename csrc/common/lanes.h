// A register of elements: its types, and how it is loaded and stored in each dtype. Written with the vector types that
// GCC and Clang share, so that the same source serves every instruction set; only the width differs.
#pragma once
#include <cstddef>
#include <cstdint>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
#define STEADYSPIKE_REGISTER 64
#elif defined(__AVX__)
#define STEADYSPIKE_REGISTER 32
#else
#define STEADYSPIKE_REGISTER 16
#endif

typedef float Floats __attribute__((vector_size(STEADYSPIKE_REGISTER)));
typedef double Doubles __attribute__((vector_size(STEADYSPIKE_REGISTER)));
typedef uint32_t Words __attribute__((vector_size(STEADYSPIKE_REGISTER)));
typedef uint64_t Longs __attribute__((vector_size(STEADYSPIKE_REGISTER)));
typedef uint16_t Halves __attribute__((vector_size(STEADYSPIKE_REGISTER / 2)));
typedef uint16_t FullHalves __attribute__((vector_size(STEADYSPIKE_REGISTER)));
typedef float HalfFloats __attribute__((vector_size(STEADYSPIKE_REGISTER / 2)));

struct Bf16 {
    uint16_t raw;
};
struct Fp16 {
    uint16_t raw;
};

template <class R>
struct Lanes;
template <>
struct Lanes<float> {
    using V = Floats;
    using Bits = Words;
};
template <>
struct Lanes<double> {
    using V = Doubles;
    using Bits = Longs;
};

template <class R>
using Vec = typename Lanes<R>::V;
template <class R>
constexpr int64_t WIDTH = STEADYSPIKE_REGISTER / int64_t(sizeof(R));

template <class R>
inline Vec<R> all(R value) {
    return Vec<R>{} + value;
}

template <class R>
inline Vec<R> magnitude(Vec<R> z) {
    using Bits = typename Lanes<R>::Bits;
    return Vec<R>(Bits(z) & (~Bits{} >> 1));
}

// GCC would widen half a register at a time.
inline Words widen_words(Halves raw) {
#if defined(__AVX2__) && STEADYSPIKE_REGISTER == 32
    return Words(_mm256_cvtepu16_epi32(__m128i(raw)));
#else
    return __builtin_convertvector(raw, Words);
#endif
}

inline Floats widen(Halves raw, Bf16) { return Floats(widen_words(raw) << 16); }

inline Floats widen(Halves raw, Fp16) {
    const Words h = widen_words(raw);
    const Words magnitude = (h & 0x7fff) << 13, sign = (h & 0x8000) << 16;
    // The exponent's bias is 15 in half precision and 127 in float. A subnormal has no leading 1. It is given the
    // exponent of the smallest normal number, and subtracting that number normalises it.
    const uint32_t rebias = 112u << 23;
    const Words smallest = Words{} + (rebias + (1u << 23));
    const Words tiny = Words(Floats(magnitude + smallest) - Floats(smallest));
    Words wide = magnitude + rebias;
    wide = magnitude >= (31u << 23) ? wide + rebias : wide;  // inf and NaN
    wide = magnitude < (1u << 23) ? tiny : wide;             // zero and subnormal
    return Floats(wide | sign);
}

// Round to nearest, ties to even; NaN stays NaN. The 16 bits of each element, in a word.
inline Words narrow_words(Floats value, Bf16) {
    const Words raw = Words(value);
    const Words rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16, nan = Words{} + 0x7fc0u;
    return (raw & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
}

inline Words narrow_words(Floats value, Fp16) {
    const Words raw = Words(value), magnitude = raw & 0x7fffffffu;
    const uint32_t rebias = 112u << 23;
    Words half = (magnitude - rebias + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Below 2^-14 the spacing is 2^-24, which is that of floats around 0.5: the addition rounds.
    const Floats one_half = Floats{} + 0.5f;
    const Words tiny = Words(Floats(magnitude) + one_half) - Words(one_half);
    half = magnitude < (113u << 23) ? tiny : half;
    half = magnitude >= (143u << 23) ? Words{} + 0x7c00u : half;
    half = magnitude > 0x7f800000u ? Words{} + 0x7e00u : half;
    return half | ((raw >> 16) & 0x8000u);
}

template <class H>
inline Halves narrow(Floats value, H half) {
    return __builtin_convertvector(narrow_words(value, half), Halves);
}

// Combines two registers of elements.
template <class H>
inline FullHalves narrow_two(Floats first, Floats second, H half) {
    const Words a = narrow_words(first, half), b = narrow_words(second, half);
#if defined(__AVX2__) && STEADYSPIKE_REGISTER == 32
    return FullHalves(_mm256_permute4x64_epi64(_mm256_packus_epi32(__m256i(a), __m256i(b)), 0xd8));
#else
    FullHalves both;
    const Halves low = __builtin_convertvector(a, Halves), high = __builtin_convertvector(b, Halves);
    __builtin_memcpy(&both, &low, sizeof(low));
    __builtin_memcpy(reinterpret_cast<char*>(&both) + sizeof(low), &high, sizeof(high));
    return both;
#endif
}

// Raw registers; the last one of a row may be partial, with `count` elements.
template <bool FULL, class Raw, class T>
inline Raw take(const T* from, int64_t count) {
    Raw raw{};
    __builtin_memcpy(&raw, from, FULL ? sizeof(Raw) : size_t(count) * sizeof(T));
    return raw;
}

template <bool FULL, class Raw, class T>
inline void put(Raw raw, T* to, int64_t count) {
    __builtin_memcpy(to, &raw, FULL ? sizeof(Raw) : size_t(count) * sizeof(T));
}

template <bool FULL>
inline Floats load(const float* from, int64_t count) { return take<FULL, Floats>(from, count); }
template <bool FULL>
inline Doubles load(const double* from, int64_t count) { return take<FULL, Doubles>(from, count); }
template <bool FULL, class H>
inline Floats load(const H* from, int64_t count) { return widen(take<FULL, Halves>(from, count), H{}); }

template <bool FULL>
inline void store(Floats value, float* to, int64_t count) { put<FULL>(value, to, count); }
template <bool FULL>
inline void store(Doubles value, double* to, int64_t count) { put<FULL>(value, to, count); }
template <bool FULL, class H>
inline void store(Floats value, H* to, int64_t count) { put<FULL>(narrow(value, H{}), to, count); }

// One bit per element of a comparison, the first element lowest.
inline uint32_t lane_bits(Words mask) {
#if defined(__AVX512DQ__)
    return uint32_t(_mm512_movepi32_mask(__m512i(mask)));
#elif defined(__AVX__)
    return uint32_t(_mm256_movemask_ps(__m256(mask)));
#elif defined(__SSE2__)
    return uint32_t(_mm_movemask_ps(__m128(mask)));
#else
    uint32_t bits = 0;
    for (int64_t i = 0; i < WIDTH<float>; ++i) bits |= (mask[i] & 1u) << i;
    return bits;
#endif
}

// A register of double from the same number of elements of either type.
inline Doubles load_doubles(const double* from) { return take<true, Doubles>(from, 0); }
inline Doubles load_doubles(const float* from) {
    const HalfFloats half = take<true, HalfFloats>(from, 0);
#if defined(__AVX512F__)
    return Doubles(_mm512_maskz_cvtps_pd(0xff, __m256(half)));  // all lanes; GCC 12 warns about the plain function
#elif defined(__AVX__)
    return Doubles(_mm256_cvtps_pd(__m128(half)));  // GCC would do it in two halves
#else
    return __builtin_convertvector(half, Doubles);
#endif
}

}  // namespace
