// For which elements of a register a comparison holds, in the fewest instructions of each instruction set: a mask
// register with AVX-512; otherwise a register that is all ones if the comparison does NOT hold. Potentials and
// thresholds are then compared as integers, for which a CPU has more units than for floats. The result is the same,
// because the thresholds are above 0.
#pragma once
#include "pairs.h"

namespace {

typedef int32_t Ints __attribute__((vector_size(STEADYSPIKE_REGISTER)));

#if defined(__AVX512F__)

struct Mask {
    __mmask16 on = 0;
};

inline Mask nowhere() { return {}; }
inline Mask either(Mask a, Mask b) { return {__mmask16(a.on | b.on)}; }

// m >= level, for a level above 0. For NaN either result is possible.
inline Mask at_least(Floats m, Floats level) { return {_mm512_cmp_ps_mask(__m512(m), __m512(level), _CMP_GE_OQ)}; }

// low <= m <= high, for high above 0. For NaN either result is possible.
inline Mask between(Floats m, Floats low, Floats high) {
    const __mmask16 above = _mm512_cmp_ps_mask(__m512(m), __m512(low), _CMP_GE_OQ);
    return {_mm512_mask_cmp_ps_mask(above, __m512(m), __m512(high), _CMP_LE_OQ)};
}

// The value if the mask holds, otherwise 0.
inline Floats where(Mask mask, Floats value) { return Floats(_mm512_maskz_mov_ps(mask.on, __m512(value))); }

inline Floats choose(Mask mask, Floats yes, Floats no) {
    return Floats(_mm512_mask_mov_ps(__m512(no), mask.on, __m512(yes)));
}

// Selects by the sign bit of `sign`.
inline Floats choose_by_sign(Floats sign, Floats if_set, Floats otherwise) {
    return choose({_mm512_movepi32_mask(__m512i(sign))}, if_set, otherwise);
}

// The numbers from low, which is above 0, to high, as integers. within: false for NaN.
struct Range {
    Words low, size;

    Range(Floats from, Floats to) : low(Words(from)), size(Words(to) - Words(from)) {}
};
inline Mask within(Floats m, const Range& range) {
    return {_mm512_cmple_epu32_mask(__m512i(Words(m) - range.low), __m512i(range.size))};
}

// m - (mask ? value : 0).
inline Floats minus_where(Floats m, Mask mask, Floats value) {
    return Floats(_mm512_mask_sub_ps(__m512(m), mask.on, __m512(m), __m512(value)));
}

// All ones; even and odd elements of twice as many halves.
inline FullHalves halves_where(Mask even, Mask odd) {
    const __m512i low = _mm512_maskz_set1_epi32(even.on, 0xffff), high = _mm512_set1_epi32(int32_t(0xffff0000u));
    return FullHalves(_mm512_mask_or_epi32(low, odd.on, low, high));
}

// One bit per element, the first lowest.
inline uint32_t mask_bits(Mask mask) { return mask.on; }

// Whether some element is NaN, and how many elements have a mask.
struct NanSeen {
    __mmask16 found = 0;

    void look(Floats a, Floats b) { found |= _mm512_cmp_ps_mask(__m512(a), __m512(b), _CMP_UNORD_Q); }
    bool any() const { return found != 0; }
};

struct MaskCount {
    int64_t count = 0;

    void add(Mask mask) { count += __builtin_popcount(mask.on); }
    int64_t total() const { return count; }
};

#else

struct Mask {
    Words off;
};

inline Mask nowhere() { return {~Words{}}; }
inline Mask either(Mask a, Mask b) { return {a.off & b.off}; }
inline Mask at_least(Floats m, Floats level) { return {Words(Ints(level) > Ints(m))}; }
inline Mask between(Floats m, Floats low, Floats high) { return {Words(m < low) | Words(Ints(m) > Ints(high))}; }
inline Floats where(Mask mask, Floats value) {
#if defined(__AVX__)
    return Floats(_mm256_andnot_ps(__m256(mask.off), __m256(value)));  // GCC would invert the mask for several uses
#elif defined(__SSE2__)
    return Floats(_mm_andnot_ps(__m128(mask.off), __m128(value)));
#else
    return Floats(~mask.off & Words(value));
#endif
}
inline Floats choose_by_sign(Floats sign, Floats if_set, Floats otherwise) {
#if defined(__AVX__)
    return Floats(_mm256_blendv_ps(__m256(otherwise), __m256(if_set), __m256(sign)));
#else
    const Words set = Words(Ints(sign) < Ints{});
    return Floats((set & Words(if_set)) | (~set & Words(otherwise)));
#endif
}
inline Floats choose(Mask mask, Floats yes, Floats no) { return choose_by_sign(Floats(mask.off), no, yes); }
struct Range {
    Words low, size;  // with the first bit flipped, because only signed comparisons are one instruction

    Range(Floats from, Floats to) : low(Words(from) + (1u << 31)), size(Words(to) - Words(from) + (1u << 31)) {}
};
inline Mask within(Floats m, const Range& range) { return {Words(Ints(Words(m) - range.low) > Ints(range.size))}; }
inline Floats minus_where(Floats m, Mask mask, Floats value) {
#if defined(__AVX__)
    // The difference need not wait for the mask.
    return Floats(_mm256_blendv_ps(__m256(m - value), __m256(m), __m256(mask.off)));
#else
    return m - where(mask, value);
#endif
}

inline FullHalves halves_where(Mask even, Mask odd) { return ~low_and_high(even.off, odd.off); }
inline uint32_t mask_bits(Mask mask) { return ~lane_bits(mask.off) & ((1u << WIDTH<float>)-1); }

struct NanSeen {
    Words found{};

    void look(Floats a, Floats b) {
#if defined(__AVX__)
        found |= Words(_mm256_cmp_ps(__m256(a), __m256(b), _CMP_UNORD_Q));
#elif defined(__SSE2__)
        found |= Words(_mm_cmpunord_ps(__m128(a), __m128(b)));
#else
        found |= Words(a != a) | Words(b != b);
#endif
    }
    bool any() const { return lane_bits(found) != 0; }
};

struct MaskCount {
    Words off{};
    int64_t seen = 0;

    void add(Mask mask) { off -= mask.off, ++seen; }
    int64_t total() const {
        int64_t count = seen * WIDTH<float>;
        for (int64_t i = 0; i < WIDTH<float>; ++i) count -= off[i];
        return count;
    }
};

#endif

}  // namespace
