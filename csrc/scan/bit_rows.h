// Spikes of a group of neurons, TOGETHER registers of them: from masks to bits in memory and back.
#pragma once
#include "masks.h"
#include "rows.h"

namespace {

// Where bits go: `stride` words from one time step to the next. Without a first word: they are not wanted.
struct BitRows {
    uint64_t* first = nullptr;  // of the tile's first step, at the block's first element
    int64_t stride = 0;

    char* at(int64_t i) const { return reinterpret_cast<char*>(first) + i / 8; }
};

// The bits of one group.
inline void put_bits(uint64_t bits, char* to) { __builtin_memcpy(to, &bits, TOGETHER * WIDTH<float> / 8); }

// The bits of a group as masks.
struct BitMasks {
#if defined(__AVX512F__)
    // Register k of the group whose bits begin at `from`.
    Mask take(const char* from, int k) const {
        Mask mask;
        __builtin_memcpy(&mask.on, from + 2 * k, 2);
        return mask;
    }
#else
    Words lanes[TOGETHER];

    BitMasks() {
        for (int k = 0; k < TOGETHER; ++k)
            for (int64_t j = 0; j < WIDTH<float>; ++j) lanes[k][j] = 1u << ((k * WIDTH<float> + j) % 32);
    }

    Mask take(const char* from, int k) const {
        constexpr int64_t BITS = TOGETHER * WIDTH<float>;
        uint32_t part = 0;
        __builtin_memcpy(&part, from + k * WIDTH<float> / 32 * 4, BITS < 32 ? BITS / 8 : 4);
        return {Words(((Words{} + part) & lanes[k]) == Words{})};
    }
#endif
};

}  // namespace
