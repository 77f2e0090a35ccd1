// Spikes of a group of neurons: from masks to bits in memory and back.
#pragma once
#include "masks.h"
#include "rows.h"

namespace {

// The destination of the bits: `stride` words from one time step to the next. Without a first word no bits are written.
struct BitRows {
    uint64_t* first = nullptr;  // of the tile's first step, at the block's first element
    int64_t stride = 0;

    char* at(int64_t i) const { return reinterpret_cast<char*>(first) + i / 8; }
};

// The bits of one group.
inline void put_bits(uint64_t bits, char* to) { __builtin_memcpy(to, &bits, TOGETHER * WIDTH<float> / 8); }

// The bits of a group of COUNT registers as masks.
template <int COUNT>
struct BitMasks {
#if defined(__AVX512F__)
    // Register k of the group whose bits begin at `from`.
    Mask take(const char* from, int k) const {
        Mask mask;
        __builtin_memcpy(&mask.on, from + 2 * k, 2);
        return mask;
    }
#else
    static constexpr int64_t BITS = COUNT * WIDTH<float>, BYTES = BITS < 32 ? BITS / 8 : 4, PERIOD = 32 / WIDTH<float>;
    Words lanes[PERIOD];

    BitMasks() {
        for (int k = 0; k < PERIOD; ++k)
            for (int64_t j = 0; j < WIDTH<float>; ++j) lanes[k][j] = 1u << (k * WIDTH<float> + j);
    }

    Mask take(const char* from, int k) const {
        uint32_t part = 0;
        __builtin_memcpy(&part, from + k / PERIOD * 4, size_t(BYTES));
        return {Words(((Words{} + part) & lanes[k % PERIOD]) == Words{})};
    }
#endif
};

}  // namespace
