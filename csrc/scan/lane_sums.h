// Sums over the neurons of one channel, from block to block of a chunk.
#pragma once
#include "rows.h"

namespace {

// If all neurons of a block belong to one channel, they are added to LANES separate sums, element i to sum i % LANES.
// The order of the additions, and so the result, is then the same with registers of any width.
constexpr int64_t LANES = 32;
static_assert(PAD % LANES == 0, "what a row is filled up with adds 0 to a place");

// fast_backward.h first keeps them in the compute type, in registers with SUM_LANES lanes in all; an element's sum is
// at its position among these. If a register has every second element, a lane belongs to a pair of elements.
constexpr int64_t SUM_LANES = 16;

// The register of sums, out of `sums`, for a group's register k of elements.
template <bool SPLIT>
constexpr int sum_of(int k, int sums) {
    return (SPLIT ? k / 2 : k) % sums;
}

// Where the lanes of a group that begins at element i are added. A slot gets the same number of elements whatever the
// size of the block: there are SUM_LANES slots for every second group of PAD, up to BLOCK elements.
inline int64_t place_of(int64_t i) { return i / BLOCK * LANES + i / PAD % 2 * SUM_LANES; }
inline int64_t places_of(int64_t n) { return (n + BLOCK - 1) / BLOCK * LANES; }
static_assert(LANES == 2 * SUM_LANES && PAD % LANES == 0, "whole places");

// Unrolled, because the compiler would make one slow instruction of a loop.
template <int64_t N, class R>
inline void clear(R* row) {
#pragma GCC unroll 64
    for (int64_t i = 0; i < N; i += WIDTH<R>) store<true>(Vec<R>{}, row + i, 0);
}

// The sums of a block are added up in double, slot by slot; the slots themselves only when the channel changes or the
// chunk ends. The order of additions is the same on every instruction set.
template <class R>
struct LaneSums {
    double* places;           // [kinds][LANES]
    double* sums;             // [kinds][channels]
    int64_t kinds, channels;
    int64_t channel = -1;     // of what is in places

    LaneSums(Rows<R>& rows, double* sums, int64_t kinds, int64_t channels)
        : places(reinterpret_cast<double*>(rows.take())), sums(sums), kinds(kinds), channels(channels) {}

    // rows: [kinds][n], n a multiple of LANES.
    void add(int64_t c, const R* rows, int64_t n) {
        if (c != channel) {
            finish();
            channel = c;
            for (int64_t kind = 0; kind < kinds; ++kind) clear<LANES>(places + kind * LANES);
        }
        constexpr int64_t REGISTERS = LANES / WIDTH<double>;
        for (int64_t kind = 0; kind < kinds; ++kind) {
            Doubles sum[REGISTERS];
#pragma GCC unroll 16
            for (int64_t j = 0; j < REGISTERS; ++j) sum[j] = load<true>(places + kind * LANES + j * WIDTH<double>, 0);
            for (int64_t i = 0; i < n; i += LANES)
#pragma GCC unroll 16
                for (int64_t j = 0; j < REGISTERS; ++j) sum[j] += load_doubles(rows + kind * n + i + j * WIDTH<double>);
#pragma GCC unroll 16
            for (int64_t j = 0; j < REGISTERS; ++j) store<true>(sum[j], places + kind * LANES + j * WIDTH<double>, 0);
        }
    }

    void finish() {
        if (channel < 0) return;
        for (int64_t kind = 0; kind < kinds; ++kind)
            sums[kind * channels + channel] += Geometry<R>::total(places + kind * LANES, LANES);
    }
};
static_assert(3 * LANES * sizeof(double) <= BLOCK * sizeof(float), "the places fit a row");

}  // namespace
