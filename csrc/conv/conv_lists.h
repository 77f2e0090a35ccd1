// Which neurons fired: from bits in either memory order to a word per pixel and 64 channels.
#pragma once
#include <cstring>
#include <memory>
#include <new>

#include "lanes.h"
#include "conv_plan.h"

namespace {

constexpr int64_t LANES = WIDTH<float>;

// The registers of a block of output channels, at most eight at a time.
inline int64_t registers_of(int64_t block) { return block / LANES < 8 ? block / LANES : 8; }

inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if STEADYSPIKE_REGISTER == 64
    return _mm512_fmadd_ps(a, b, c);
#elif STEADYSPIKE_REGISTER == 32
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

// Uninitialised memory that begins at a cache line; otherwise a register's load would touch two lines.
template <class T>
struct Room {
    static constexpr std::align_val_t LINE{64};
    struct Free {
        void operator()(T* memory) const { ::operator delete(memory, LINE); }
    };
    std::unique_ptr<T, Free> memory;
    explicit Room(int64_t n) : memory(static_cast<T*>(::operator new(size_t(n < 1 ? 1 : n) * sizeof(T), LINE))) {}
    T* get() const { return memory.get(); }
    T& operator[](int64_t i) const { return memory.get()[i]; }
};

// 1 for infinity and NaN, otherwise 0.
inline uint32_t is_infinite(float value) {
    uint32_t raw;
    std::memcpy(&raw, &value, sizeof raw);
    return (raw & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
}

// `count` <= 64 bits, beginning with bit `first`.
inline uint64_t bits_from(const uint64_t* words, int64_t first, int64_t count) {
    const int64_t shift = first % 64;
    const uint64_t* word = words + first / 64;
    uint64_t value = *word >> shift;
    if (shift + count > 64) value |= word[1] << (64 - shift);
    return count == 64 ? value : value & ((uint64_t(1) << count) - 1);
}

template <class F>
inline void for_each_bit(uint64_t word, F f) {
    for (; word; word &= word - 1) f(int64_t(__builtin_ctzll(word)));
}

#if STEADYSPIKE_REGISTER == 64
// first + k * block for lane k.
inline __m512i lane_entries(uint32_t first, uint32_t block) {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_add_epi32(_mm512_mullo_epi32(lanes, _mm512_set1_epi32(int32_t(block))), _mm512_set1_epi32(int32_t(first)));
}
#endif

// Appends first + k * block for every set bit k of `count` <= 64, and may write up to LANES - 1 additional entries.
// With AVX-512 no branch depends on the bits, because a processor mispredicts the end of almost every short list.
inline uint32_t* append(uint64_t word, int64_t count, uint32_t first, uint32_t block, uint32_t* next) {
#if STEADYSPIKE_REGISTER == 64
    __m512i entries = lane_entries(first, block);
    const __m512i further = _mm512_set1_epi32(int32_t(LANES * block));
    for (int64_t k = 0; k < count; k += LANES, word >>= LANES) {
        _mm512_storeu_si512(next, _mm512_maskz_compress_epi32(__mmask16(word), entries));
        next += __builtin_popcount(uint32_t(word & 0xffff));
        entries = _mm512_add_epi32(entries, further);
    }
#else
    (void)count;
    for_each_bit(word, [&](int64_t k) { *next++ = first + uint32_t(k) * block; });
#endif
    return next;
}

// Appends table[k] + more for every bit k of 64, and may write up to LANES - 1 entries more.
inline uint32_t* append_from(uint64_t word, const uint32_t* table, uint32_t more, uint32_t* next) {
    if (word == 0) return next;
#if STEADYSPIKE_REGISTER == 64
    for (int64_t k = 0; k < 64; k += LANES, word >>= LANES) {
        const __m512i entries = _mm512_add_epi32(_mm512_loadu_si512(table + k), _mm512_set1_epi32(int32_t(more)));
        _mm512_storeu_si512(next, _mm512_maskz_compress_epi32(__mmask16(word), entries));
        next += __builtin_popcount(uint32_t(word & 0xffff));
    }
#else
    for_each_bit(word, [&](int64_t k) { *next++ = table[k] + more; });
#endif
    return next;
}

// Bit k of word i becomes bit i of word k.
inline void transpose(uint64_t* words) {
    uint64_t mask = 0xffffffffu;
    for (int64_t j = 32; j; j /= 2, mask ^= mask << j)
        for (int64_t first = 0; first < 64; first += 2 * j)
            for (int64_t i = first; i < first + j; ++i) {
                const uint64_t swapped = ((words[i] >> j) ^ words[i + j]) & mask;
                words[i] ^= swapped << j;
                words[i + j] ^= swapped;
            }
}

// One word of 64 channels for each pixel of some rows of an image: channels [64 w, 64 w + 64) of pixel p are at(p, w).
struct PixelWords {
    const SpikeConv& conv;
    int64_t words;                            // per pixel
    Room<uint64_t> own;                       // of the rows, if they must be reordered first
    const uint64_t* step = nullptr;
    int64_t first = 0, row0 = 0;              // first: the first bit of the image
    bool ordered;

    PixelWords(const SpikeConv& c, int64_t rows)
        : conv(c), words((c.in_channels + 63) / 64), own(c.channels_last ? 1 : rows * c.width * words),
          ordered(c.channels_last) {}

    void load(int64_t image, int64_t begin, int64_t end) {
        const int64_t size = conv.height * conv.width;
        step = conv.bits + image / conv.batch * conv.words;
        first = image % conv.batch * size * conv.pixel_bits;
        row0 = begin;
        if (ordered) return;
        const int64_t pixels = (end - begin) * conv.width;
        std::memset(own.get(), 0, size_t(pixels * words) * sizeof(uint64_t));
        for (int64_t c = 0; c < conv.in_channels; ++c) {
            uint64_t* to = own.get() + c / 64;
            const uint64_t bit = uint64_t(1) << (c % 64);
            const int64_t at = first + c * size + begin * conv.width;
            for (int64_t p = 0; p < pixels; p += 64)
                for_each_bit(bits_from(step, at + p, pixels - p < 64 ? pixels - p : 64), [&](int64_t k) { to[(p + k) * words] |= bit; });
        }
    }

    uint64_t at(int64_t row, int64_t column, int64_t w) const {
        if (!ordered) return own[((row - row0) * conv.width + column) * words + w];
        const int64_t rest = conv.in_channels - 64 * w;
        return bits_from(step, first + (row * conv.width + column) * conv.pixel_bits + 64 * w, rest < 64 ? rest : 64);
    }

    // Appends first_entry + c * block for every active channel c of a pixel, and may write up to LANES - 1 entries more.
    uint32_t* append_to(uint32_t* next, int64_t row, int64_t column, uint32_t first_entry, uint32_t block) const {
#if STEADYSPIKE_REGISTER == 64
        // A register's channels are then two whole bytes of bits.
        if (ordered && conv.in_channels % LANES == 0 && conv.pixel_bits % LANES == 0) {
            const char* bits = reinterpret_cast<const char*>(step) + (first + (row * conv.width + column) * conv.pixel_bits) / 8;
            __m512i entries = lane_entries(first_entry, block);
            for (int64_t c = 0; c < conv.in_channels; c += LANES, bits += LANES / 8) {
                __mmask16 mask;
                std::memcpy(&mask, bits, sizeof mask);
                _mm512_storeu_si512(next, _mm512_maskz_compress_epi32(mask, entries));
                next += __builtin_popcount(mask);
                entries = _mm512_add_epi32(entries, _mm512_set1_epi32(int32_t(LANES * block)));
            }
            return next;
        }
#endif
        for (int64_t c = 0; c < conv.in_channels; c += 64)
            next = append(at(row, column, c / 64), conv.in_channels - c < 64 ? conv.in_channels - c : 64, first_entry + uint32_t(c) * block,
                          block, next);
        return next;
    }
};

// The steps of image n: the index of the first one among the images of all steps, and their number. The second, if
// there is one, is one batch further.
struct StepsOf {
    int64_t image, count;

    StepsOf(const SpikeConv& conv, const ConvShape& shape, int64_t n) {
        const int64_t step = n / conv.batch * shape.pair;
        image = step * conv.batch + n % conv.batch;
        count = conv.steps - step < shape.pair ? conv.steps - step : shape.pair;
    }
};

// Counts the neurons that fired in rows [begin, end) of the input images of an area.
inline int64_t count_bits(const SpikeConv& conv, const ForwardArea& area, int64_t begin, int64_t end) {
    const int64_t size = conv.height * conv.width, runs = conv.channels_last ? 1 : conv.in_channels;
    const int64_t row = conv.width * conv.pixel_bits / runs, length = (end - begin) * row;
    int64_t count = 0;
    for (int64_t n = 0; n < area.images(); ++n) {
        const int64_t image = area.image(n);
        const uint64_t* step = conv.bits + image / conv.batch * conv.words;
        for (int64_t run = 0; run < runs; ++run) {
            const int64_t first = image % conv.batch * size * conv.pixel_bits + run * size + begin * row;
            for (int64_t i = 0; i < length; i += 64)
                count += __builtin_popcountll(bits_from(step, first + i, length - i < 64 ? length - i : 64));
        }
    }
    return count;
}

}  // namespace
