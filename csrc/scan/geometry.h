// The channel of an element; constants from channels to elements, sums from elements to channels.
#pragma once
#include "lanes.h"

namespace {

template <class R>
struct Geometry {
    int64_t channels, inner;

    int64_t channel(int64_t i) const { return channels == 1 ? 0 : (i / inner) % channels; }

    // Two blocks of n elements with the same phase have the same constants, which need not be copied again. -1: unknown.
    int64_t phase(int64_t i0, int64_t n) const { return one_channel(i0, n) ? channel(i0) : inner == 1 ? i0 % channels : -1; }

    bool one_channel(int64_t i0, int64_t n) const { return channels == 1 || i0 % inner + n <= inner; }

    // Calls f(c, offset, length) for each run of elements i0+offset.. of one channel c within [i0, i0 + n).
    template <class F>
    void runs(int64_t i0, int64_t n, F f) const {
        for (int64_t done = 0; done < n;) {
            const int64_t left = inner - (i0 + done) % inner;
            const int64_t length = left < n - done ? left : n - done;
            f(channel(i0 + done), done, length);
            done += length;
        }
    }

    // Calls f(c, offset, length) for each run of consecutive channels c, c+1, ...; for inner == 1.
    template <class F>
    void channel_runs(int64_t i0, int64_t n, F f) const {
        for (int64_t done = 0; done < n;) {
            const int64_t c = (i0 + done) % channels;
            const int64_t length = channels - c < n - done ? channels - c : n - done;
            f(c, done, length);
            done += length;
        }
    }

    // A value per channel to a value per element.
    void expand(const R* per_channel, int64_t i0, int64_t n, R* to) const {
        if (inner == 1) {
            channel_runs(i0, n, [=](int64_t c, int64_t at, int64_t length) {
                for (int64_t i = 0; i < length; ++i) to[at + i] = per_channel[c + i];
            });
        } else {
            runs(i0, n, [=](int64_t c, int64_t at, int64_t length) {
                const R value = per_channel[c];
                for (int64_t i = 0; i < length; ++i) to[at + i] = value;
            });
        }
    }

    // Adds a value per element to its channel's sum, always in the same order.
    template <class S>
    void add_to(double* sums, const S* values, int64_t i0, int64_t n) const {
        if (inner == 1) {
            channel_runs(i0, n, [=](int64_t c, int64_t at, int64_t length) {
                for (int64_t i = 0; i < length; ++i) sums[c + i] += double(values[at + i]);
            });
        } else {
            runs(i0, n, [=](int64_t c, int64_t at, int64_t length) { sums[c] += total(values + at, length); });
        }
    }

    // It uses sixteen partial sums whatever the width of a register, so that every instruction set gives the same
    // result.
    template <class S>
    static double total(const S* values, int64_t n) {
        constexpr int64_t LANES = 16, REGISTERS = LANES / WIDTH<double>;
        Doubles sums[REGISTERS] = {};
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES)
#pragma GCC unroll 8
            for (int64_t j = 0; j < REGISTERS; ++j) sums[j] += load_doubles(values + i + j * WIDTH<double>);
        double lane[LANES];
        __builtin_memcpy(lane, sums, sizeof(lane));
        for (int64_t j = 0; i + j < n; ++j) lane[j] += double(values[i + j]);
        for (int64_t width = LANES / 2; width > 0; width /= 2)
            for (int64_t j = 0; j < width; ++j) lane[j] += lane[j + width];
        return lane[0];
    }
};

}  // namespace
