// The common case of general.h in float: a soft reset that passes gradients, decayed input, finite thresholds above 0,
// and only spikes as the result. This file has the parts that fast_forward.h and fast_backward.h share.
//
// A spike is a mask here, so a NaN potential would look like "no spike". But with this reset a NaN stays in U, so it is
// enough to check U after the last step. If there is one, both functions return false, and general.h computes the block
// again.
//
// A step of a neuron waits for its previous step, so several registers of neurons are computed at the same time. Their
// state fills most of the registers of AVX2. Other operands are therefore read from memory when they are used, and
// results are written as soon as they exist.
#pragma once
#include "current.h"
#include "general.h"
#include "lane_sums.h"
#include "pairs.h"

#define EACH_PAIR(k, count) _Pragma("GCC unroll 16") for (int k = 0; k < count; k += 2)
#define BOTH(j) _Pragma("GCC unroll 2") for (int j = 0; j < 2; ++j)

namespace {

// What the compiler may assume. PLAIN: all neurons of the block belong to one channel and start at the same U, the tile
// has all time steps, and U after the last one is neither returned nor has a gradient. The forward in float: a spike's
// output is V.
enum FastCase : int { MANY_CHANNELS, ONE_CHANNEL, PLAIN_CACHED, PLAIN_PAST_CACHE };

inline FastCase fast_case(bool one, bool plain, bool past_cache) {
    if (plain) return past_cache ? PLAIN_PAST_CACHE : PLAIN_CACHED;
    return one ? ONE_CHANNEL : MANY_CHANNELS;
}

// A row of constants, read when they are used. ONE: all are the same.
template <bool ONE>
struct Row {
    const float* row;

    Floats at(int64_t i) const { return load<true>(ONE ? row : row + i, 0); }
};

// The same, in a register if all are the same.
template <bool ONE>
struct Held {
    const float* row;
    Floats value;

    explicit Held(const float* row) : row(row), value(load<true>(row, 0)) {}
    Floats at(int64_t i) const { return ONE ? value : load<true>(row + i, 0); }
};

// After this the compiler reads memory again. Otherwise it would hold the constants of Row in registers, and the state
// of the neurons in memory.
inline __attribute__((always_inline)) void read_again() { __asm__ volatile("" ::: "memory"); }

// stream: the stores bypass the cache.
template <class V, class T>
inline __attribute__((always_inline)) void write_register(V value, T* to, bool stream) {
    if (stream)
        stream_register(to, value);
    else
        put<true>(value, to, 0);
}

inline void add_to_row(Floats value, float* row) { store<true>(load<true>(row, 0) + value, row, 0); }

}  // namespace
