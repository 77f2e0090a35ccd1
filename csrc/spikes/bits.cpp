// Spikes as bits: n elements that are 0 or their channel's level, 64 per word, compared and restored bit by bit.
#include <atomic>
#include <cstdint>
#include <cstring>

#include "clones.h"
#include "export.h"
#include "threads.h"

namespace {

constexpr int64_t WORD = 64, BLOCK = 32 * WORD;

struct Levels {
    int64_t channels, inner;  // channel of element i: (i / inner) % channels
    const void* values;

    // The levels of elements i0 .. i0 + n.
    template <class E>
    void expand(int64_t i0, int64_t n, E* to) const {
        const E* value = static_cast<const E*>(values);
        int64_t c = (i0 / inner) % channels, left = inner - i0 % inner;
        for (int64_t i = 0; i < n; ++i) {
            to[i] = value[c];
            if (--left == 0) left = inner, c = c + 1 == channels ? 0 : c + 1;
        }
    }
};

// Returns whether an element is neither 0 nor its level. x and level hold BLOCK elements.
template <class E>
inline __attribute__((always_inline)) bool pack_block(const E* __restrict x, const E* __restrict level, uint64_t* __restrict words) {
    E other = 0;
    for (int64_t w = 0; w < BLOCK / WORD; ++w) {
        uint64_t word = 0;
        for (int64_t j = 0; j < WORD; ++j) {
            const E e = x[w * WORD + j], difference = E(e ^ level[w * WORD + j]);
            word |= uint64_t(difference == 0) << j;
            other = E(other | (difference == 0 ? E(0) : E(e << 1)));  // the shift removes the sign of -0
        }
        words[w] = word;
    }
    return other != 0;
}

template <class E>
inline __attribute__((always_inline)) void unpack_block(const uint64_t* __restrict words, const E* __restrict level, E* __restrict x) {
    for (int64_t w = 0; w < BLOCK / WORD; ++w)
        for (int64_t j = 0; j < WORD; ++j) x[w * WORD + j] = (words[w] >> j) & 1 ? level[w * WORD + j] : E(0);
}

#define STEADYSPIKE_BLOCKS(E)                                                                                        \
    STEADYSPIKE_CLONES bool pack(const E* x, const E* level, uint64_t* words) { return pack_block(x, level, words); } \
    STEADYSPIKE_CLONES void unpack(const uint64_t* words, const E* level, E* x) { unpack_block(words, level, x); }
STEADYSPIKE_BLOCKS(uint16_t)
STEADYSPIKE_BLOCKS(uint32_t)
STEADYSPIKE_BLOCKS(uint64_t)

// Calls f(first element, elements, levels of a whole block) for every block, in parallel.
template <class E, class F>
void for_blocks(int64_t n, const Levels& levels, int64_t threads, F f) {
    const int64_t blocks = (n + BLOCK - 1) / BLOCK;
    const bool one = levels.channels == 1;
    on_ranges(blocks > 8 ? threads : 1, blocks, [&](int64_t first, int64_t last) {
        E level[BLOCK];
        if (one) levels.expand(0, BLOCK, level);
        for (int64_t b = first; b < last; ++b) {
            const int64_t i0 = b * BLOCK, length = n - i0 < BLOCK ? n - i0 : BLOCK;
            if (!one) levels.expand(i0, BLOCK, level);
            f(i0, length, level);
        }
    });
}

template <class E>
int64_t pack_all(const void* from, int64_t n, const Levels& levels, uint64_t* words, int64_t threads) {
    const E* x = static_cast<const E*>(from);
    std::atomic<bool> refused{false};
    for_blocks<E>(n, levels, threads, [&](int64_t i0, int64_t length, const E* level) {
        // most tensors that are not spikes show this in their first block
        if (refused.load(std::memory_order_relaxed)) return;
        bool bad;
        if (length == BLOCK) {
            bad = pack(x + i0, level, words + i0 / WORD);
        } else {
            E tail[BLOCK] = {};
            uint64_t packed[BLOCK / WORD];
            std::memcpy(tail, x + i0, size_t(length) * sizeof(E));
            bad = pack(tail, level, packed);
            std::memcpy(words + i0 / WORD, packed, size_t((length + WORD - 1) / WORD) * sizeof(uint64_t));
        }
        if (bad) refused = true;
    });
    return refused ? 1 : 0;
}

template <class E>
int64_t unpack_all(const uint64_t* words, int64_t n, const Levels& levels, void* to, int64_t threads) {
    E* x = static_cast<E*>(to);
    for_blocks<E>(n, levels, threads, [&](int64_t i0, int64_t length, const E* level) {
        if (length == BLOCK) return unpack(words + i0 / WORD, level, x + i0);
        E tail[BLOCK];
        uint64_t packed[BLOCK / WORD] = {};
        std::memcpy(packed, words + i0 / WORD, size_t((length + WORD - 1) / WORD) * sizeof(uint64_t));
        unpack(packed, level, tail);
        std::memcpy(x + i0, tail, size_t(length) * sizeof(E));
    });
    return 0;
}

template <class E>
int64_t first_not_zero(const void* from, int64_t n) {
    const E* x = static_cast<const E*>(from);
    for (int64_t i0 = 0; i0 < n; i0 += WORD) {
        const int64_t length = n - i0 < WORD ? n - i0 : WORD;
        E any = 0;
        for (int64_t i = 0; i < length; ++i) any = E(any | x[i0 + i]);
        if (E(any << 1) == 0) continue;  // all are 0 or -0
        for (int64_t i = i0; i < i0 + length; ++i)
            if (E(x[i] << 1) != 0) return i;
    }
    return n;
}

// Returns 1 if one of `samples` words, scattered over all of them, does not match its elements.
template <class E>
int64_t sample_differs(const void* from, int64_t words, const Levels& levels, const uint64_t* bits, int64_t samples) {
    const E* x = static_cast<const E*>(from);
    for (int64_t k = 0; k < samples; ++k) {
        // 2^32 / golden ratio: its multiples are spread evenly over 32 bits, for any number of samples and without a
        // seed.
        const int64_t word = int64_t(uint64_t(uint32_t(k) * 2654435761u) * uint64_t(words) >> 32);
        E level[WORD];
        levels.expand(word * WORD, WORD, level);
        uint64_t wrong = 0;
        for (int64_t i = 0; i < WORD; ++i) wrong |= x[word * WORD + i] ^ (bits[word] >> i & 1 ? level[i] : E(0));
        if (wrong) return 1;
    }
    return 0;
}

STEADYSPIKE_CLONES int64_t count_bits(const uint64_t* words, int64_t n) {
    int64_t sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += __builtin_popcountll(words[i]);
    return sum;
}

// Calls f with an unsigned integer of `size` bytes; returns -1 for any other size.
template <class F>
int64_t for_size(int64_t size, F f) {
    return size == 2 ? f(uint16_t()) : size == 4 ? f(uint32_t()) : size == 8 ? f(uint64_t()) : -1;
}

}  // namespace

extern "C" {

// The index of the first element that is not 0, or n; -1 for a bad argument.
STEADYSPIKE_EXPORT int64_t steadyspike_bits_first(const void* x, int64_t n, int64_t size) {
    return for_size(size, [=](auto e) { return first_not_zero<decltype(e)>(x, n); });
}

// Counts the set bits in each of `rows` rows of `words` words.
STEADYSPIKE_EXPORT int64_t steadyspike_bits_count(const uint64_t* from, int64_t rows, int64_t words, int64_t* counts) {
    for (int64_t r = 0; r < rows; ++r) counts[r] = count_bits(from + r * words, words);
    return 0;
}

// Whether n elements (a multiple of 64) may still match `bits`: checks a sample of words. Returns 1 if they do not.
STEADYSPIKE_EXPORT int64_t steadyspike_bits_differ(const void* x, int64_t n, int64_t size, const void* values,
                                                   int64_t channels, int64_t inner, const uint64_t* bits, int64_t samples) {
    if (n < 0 || n % WORD != 0 || channels < 1 || inner < 1) return -1;
    const Levels levels{channels, inner, values};
    const int64_t words = n / WORD, looks = words == 0 ? 0 : samples;
    return for_size(size, [&](auto e) { return sample_differs<decltype(e)>(x, words, levels, bits, looks); });
}

// size: bytes per element, 2, 4 or 8; words: (n + 63) / 64. Returns 1 if an element is neither 0 nor its level, -1 for
// a bad argument.
STEADYSPIKE_EXPORT int64_t steadyspike_bits_pack(const void* x, int64_t n, int64_t size, const void* values,
                                                 int64_t channels, int64_t inner, uint64_t* words, int64_t threads) {
    if (n < 0 || channels < 1 || inner < 1) return -1;
    const Levels levels{channels, inner, values};
    return for_size(size, [&](auto e) { return pack_all<decltype(e)>(x, n, levels, words, threads); });
}

STEADYSPIKE_EXPORT int64_t steadyspike_bits_unpack(const uint64_t* words, int64_t n, int64_t size, const void* values,
                                                   int64_t channels, int64_t inner, void* x, int64_t threads) {
    if (n < 0 || channels < 1 || inner < 1) return -1;
    const Levels levels{channels, inner, values};
    return for_size(size, [&](auto e) { return unpack_all<decltype(e)>(words, n, levels, x, threads); });
}
}
