// The input current of a group of neurons, step by step: x, or a map of x that is computed when x is read.
#pragma once
#include <type_traits>

#include "bit_rows.h"

namespace {

constexpr int64_t AHEAD = 1024;  // bytes from a line that is read to the line that is prefetched

// COUNT: registers of elements. Prefetched memory need not exist.
template <int COUNT, class T>
inline void load_early(const T* from, int64_t ahead = AHEAD) {
    for (int64_t line = 0; line < COUNT * WIDTH<float> * int64_t(sizeof(T)); line += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(from) + ahead + line);
}

// MAPPED: scale x + shift [+ extra or level extra], rounded as in Input::map.
template <bool MAPPED, class IO>
struct Current {
    const IO* x;
    const float *scale = nullptr, *shift = nullptr, *extra = nullptr, *level = nullptr;
    const char* spikes = nullptr;
    int64_t x_stride, map_stride = 0, extra_stride = 0, spike_stride = 0;

    Current(const Steps<const IO>& in, const MapRows<float>& map, int64_t i) : x(in.first + i), x_stride(in.stride) {
        if constexpr (MAPPED) {
            scale = map.scale + i, shift = map.shift + i, map_stride = map.stride;
            if (map.extra.first) extra = map.extra.first + i, extra_stride = map.extra.stride;
            if (map.spikes.first)
                spikes = reinterpret_cast<const char*>(map.spikes.first) + i / 8, spike_stride = map.spikes.stride * 8;
            if (map.level) level = map.level + i;
        }
    }

    // Register k of the group.
    template <int COUNT>
    Floats at(const BitMasks<COUNT>& bits, int k) const {
        const int64_t at = k * WIDTH<float>;
        Floats current = load<true>(x + at, 0);
        if constexpr (MAPPED) {
            current = load<true>(scale + at, 0) * current + load<true>(shift + at, 0);
            if (spikes)
                current = current + where(bits.take(spikes, k), load<true>(level + at, 0));
            else if (extra && level)
                current = current + load<true>(level + at, 0) * load<true>(extra + at, 0);
            else if (extra)
                current = current + load<true>(extra + at, 0);
        }
        return current;
    }

    template <int COUNT>
    void early() const {
        load_early<COUNT>(x);
        if (MAPPED && extra) load_early<COUNT>(extra);
    }

    void next() {
        x += x_stride;
        if constexpr (MAPPED) {
            scale += map_stride, shift += map_stride;
            if (extra) extra += extra_stride;
            if (spikes) spikes += spike_stride;
        }
    }
};

}  // namespace
