// Two registers of neighbouring elements, either in order or split: those with an even index in the first, those with
// an odd index in the second. bfloat16 is loaded and stored in split form by shifts alone, 32 bits at a time.
#pragma once
#include "lanes.h"

namespace {

struct Pair {
    Floats first, second;
};

inline Pair split(Pair pair) {
#if defined(__AVX512F__)
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const __m512 a = __m512(pair.first), b = __m512(pair.second);
    return {Floats(_mm512_permutex2var_ps(a, even, b)), Floats(_mm512_permutex2var_ps(a, odd, b))};
#elif defined(__AVX2__)
    const __m256 a = __m256(pair.first), b = __m256(pair.second);
    const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    return {Floats(_mm256_permute4x64_pd(even, 0xd8)), Floats(_mm256_permute4x64_pd(odd, 0xd8))};
#elif defined(__SSE2__)
    const __m128 a = __m128(pair.first), b = __m128(pair.second);
    return {Floats(_mm_shuffle_ps(a, b, 0x88)), Floats(_mm_shuffle_ps(a, b, 0xdd))};
#else
    float from[2 * WIDTH<float>], to[2 * WIDTH<float>];
    __builtin_memcpy(from, &pair, sizeof(from));
    for (int64_t i = 0; i < WIDTH<float>; ++i) to[i] = from[2 * i], to[WIDTH<float> + i] = from[2 * i + 1];
    __builtin_memcpy(&pair, to, sizeof(to));
    return pair;
#endif
}

inline Pair join(Pair pair) {
#if defined(__AVX512F__)
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const __m512 a = __m512(pair.first), b = __m512(pair.second);
    return {Floats(_mm512_permutex2var_ps(a, low, b)), Floats(_mm512_permutex2var_ps(a, high, b))};
#elif defined(__AVX2__)
    const __m256 low = _mm256_unpacklo_ps(__m256(pair.first), __m256(pair.second));
    const __m256 high = _mm256_unpackhi_ps(__m256(pair.first), __m256(pair.second));
    return {Floats(_mm256_permute2f128_ps(low, high, 0x20)), Floats(_mm256_permute2f128_ps(low, high, 0x31))};
#elif defined(__SSE2__)
    const __m128 a = __m128(pair.first), b = __m128(pair.second);
    return {Floats(_mm_unpacklo_ps(a, b)), Floats(_mm_unpackhi_ps(a, b))};
#else
    float from[2 * WIDTH<float>], to[2 * WIDTH<float>];
    __builtin_memcpy(from, &pair, sizeof(from));
    for (int64_t i = 0; i < WIDTH<float>; ++i) to[2 * i] = from[i], to[2 * i + 1] = from[WIDTH<float> + i];
    __builtin_memcpy(&pair, to, sizeof(to));
    return pair;
#endif
}

// A pair from a row in memory, which is in order.
// same: all elements are equal, so that there is nothing to split.
template <bool SPLIT>
inline Pair load_pair(const float* from, bool same) {
    const Pair pair{load<true>(from, 0), load<true>(from + WIDTH<float>, 0)};
    return SPLIT && !same ? split(pair) : pair;
}

template <bool SPLIT>
inline Pair load_pair(const Bf16* from) {
    if (!SPLIT) return {load<true>(from, 0), load<true>(from + WIDTH<float>, 0)};
    const Words raw = Words(take<true, FullHalves>(from, 0));
    return {Floats(raw << 16), Floats(raw & 0xffff0000u)};
}

template <bool SPLIT>
inline void store_pair(Pair pair, float* to) {
    if (SPLIT) pair = join(pair);
    store<true>(pair.first, to, 0), store<true>(pair.second, to + WIDTH<float>, 0);
}

// The low half of each word of `even` and the high half of each word of `odd`, in order.
inline FullHalves low_and_high(Words even, Words odd) {
#if defined(__AVX2__) && STEADYSPIKE_REGISTER == 32
    return FullHalves(_mm256_blend_epi16(__m256i(even), __m256i(odd), 0xaa));
#else
    return FullHalves((even & 0xffffu) | (odd & 0xffff0000u));
#endif
}

// A split pair as bfloat16, rounded to nearest, ties to even. The elements must not be NaN, which would be lost.
inline FullHalves narrow_split(Pair pair) {
    const Words even = Words(pair.first), odd = Words(pair.second);
    return low_and_high((even + 0x7fffu + ((even >> 16) & 1u)) >> 16, odd + 0x7fffu + ((odd >> 16) & 1u));
}

// One bit per element of a comparison, the first element lowest.
inline uint32_t half_bits(FullHalves mask) {
#if defined(__AVX512BW__)
    return uint32_t(_mm512_movepi16_mask(__m512i(mask)));
#elif defined(__AVX2__)
    const __m128i low = _mm256_castsi256_si128(__m256i(mask)), high = _mm256_extracti128_si256(__m256i(mask), 1);
    return uint32_t(_mm_movemask_epi8(_mm_packs_epi16(low, high)));
#elif defined(__SSE2__)
    return uint32_t(_mm_movemask_epi8(_mm_packs_epi16(__m128i(mask), _mm_setzero_si128())));
#else
    uint32_t bits = 0;
    for (int64_t i = 0; i < 2 * WIDTH<float>; ++i) bits |= (mask[i] & 1u) << i;
    return bits;
#endif
}

}  // namespace
