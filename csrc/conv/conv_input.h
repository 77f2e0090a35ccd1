// Input gradient at the requested elements: dot products of the output's gradient with a channel's weights, which stay
// in the cache for all elements of that channel.
#pragma once
#include "conv_weight.h"

namespace {

// Dot products at a time: their sums stay in registers.
constexpr int MOST_PLACES = STEADYSPIKE_REGISTER == 64 ? 16 : 8;

#if STEADYSPIKE_REGISTER == 64
// Sums of the four lanes of a, b, c and d, one after the other. Masks with all lanes: GCC 12 warns about the plain functions.
inline Floats lane_sums(Floats a, Floats b, Floats c, Floats d) {
    const auto halves = [](Floats x, Floats y) {
        return _mm512_add_ps(_mm512_maskz_shuffle_f32x4(0xffff, x, y, 0x44), _mm512_maskz_shuffle_f32x4(0xffff, x, y, 0xee));
    };
    const __m512 x = halves(a, b), y = halves(c, d);
    return _mm512_add_ps(_mm512_maskz_shuffle_f32x4(0xffff, x, y, 0x88), _mm512_maskz_shuffle_f32x4(0xffff, x, y, 0xdd));
}

// to[k] = the sum of the elements of s[k].
template <int N>
__attribute__((always_inline)) inline void write_sums(const Floats* s, float* to) {
    const auto quad = [&](int j, int step) {
        const Floats none{};
        const auto at = [&](int k) { return k < N ? s[k] : none; };
        return lane_sums(at(j), at(j + step), at(j + 2 * step), at(j + 3 * step));
    };
    const auto pairs = [](__m512 a, __m512 b) {
        return _mm512_add_ps(_mm512_maskz_unpacklo_ps(0xffff, a, b), _mm512_maskz_unpackhi_ps(0xffff, a, b));
    };
    if (N > 8) {
        const __m512 a = pairs(quad(0, 4), quad(1, 4)), b = pairs(quad(2, 4), quad(3, 4));
        store<true>(_mm512_add_ps(_mm512_maskz_shuffle_ps(0xffff, a, b, 0x44), _mm512_maskz_shuffle_ps(0xffff, a, b, 0xee)), to, 0);
    } else {
        const __m512 a = pairs(quad(0, 2), quad(1, 2));
        const __m512 sums = _mm512_add_ps(a, _mm512_maskz_shuffle_ps(0xffff, a, a, 0xee));
        store<true>(Floats(_mm512_maskz_compress_ps(0x3333, sums)), to, 0);
    }
}
#elif STEADYSPIKE_REGISTER == 32
template <int N>
__attribute__((always_inline)) inline void write_sums(const Floats* s, float* to) {
    const __m256 none{};
    const auto pairs = [&](int k) { return _mm256_hadd_ps(k < N ? __m256(s[k]) : none, k + 1 < N ? __m256(s[k + 1]) : none); };
    const __m256 low = _mm256_hadd_ps(pairs(0), pairs(2)), high = _mm256_hadd_ps(pairs(4), pairs(6));
    _mm256_storeu_ps(to, _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)));
}
#else
template <int N>
__attribute__((always_inline)) inline void write_sums(const Floats* s, float* to) {
    for (int k = 0; k < N; ++k) {
        to[k] = 0;
        for (int64_t l = 0; l < LANES; ++l) to[k] += s[k][l];
    }
}
#endif

// The dot products at N pixels of a list, over `taps` taps and R registers of each, in to[0 .. N).
template <int R, int N>
void dot_products(const float* tile, const uint32_t* places, const uint32_t* list, const float* weights, const int64_t* tap,
                  const int64_t* moved, int64_t taps, int64_t block, float* to) {
    Floats s[N];
    const float* from[N];
#pragma GCC unroll 16
    for (int k = 0; k < N; ++k) s[k] = Floats{}, from[k] = tile + places[list[k]];
    for (int64_t t = 0; t < taps; ++t) {
        const float* w = weights + tap[t] * block;
        const int64_t by = moved[t];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Floats value = load<true>(w + r * LANES, 0);
#pragma GCC unroll 16
            for (int k = 0; k < N; ++k) s[k] = multiply_add(value, load<true>(from[k] + by + r * LANES, 0), s[k]);
        }
    }
    write_sums<N>(s, to);
}

using DotProducts = void (*)(const float*, const uint32_t*, const uint32_t*, const float*, const int64_t*, const int64_t*, int64_t,
                             int64_t, float*);

// For 1, 2, ... places.
template <int R>
const DotProducts* dot_products_of() {
    static const DotProducts OF[] = {
        dot_products<R, 1>,  dot_products<R, 2>,  dot_products<R, 3>,  dot_products<R, 4>,  dot_products<R, 5>,  dot_products<R, 6>,
        dot_products<R, 7>,  dot_products<R, 8>,
#if STEADYSPIKE_REGISTER == 64
        dot_products<R, 9>,  dot_products<R, 10>, dot_products<R, 11>, dot_products<R, 12>, dot_products<R, 13>, dot_products<R, 14>,
        dot_products<R, 15>, dot_products<R, 16>,
#endif
    };
    return OF;
}

// The number of places that are computed together. A small rest would wait for its own additions.
inline int64_t places_together(int64_t left) {
    return left <= MOST_PLACES ? left : left < 2 * MOST_PLACES ? (left + 1) / 2 : MOST_PLACES;
}

constexpr int64_t TOGETHER = 16;  // input channels whose results are written together: one cache line

// Sums of a part for up to TOGETHER channels: [pixel][channel] for an image in channels_last, else [channel][pixel].
struct Results {
    const ConvTask& task;
    const ConvPart& part;
    const bool last;
    const int64_t pixels, count, per_pixel, per_channel;  // pixels: of an image in the part; count: of all
    Room<float> values;

    Results(const ConvTask& t, const ConvPart& p)
        : task(t), part(p), last(t.conv.channels_last), pixels((p.row1 - p.row0) * t.conv.width),
          count((p.image1 - p.image0) * pixels), per_pixel(last ? TOGETHER : 1), per_channel(last ? 1 : count),
          values(count * TOGETHER) {}

    void clear() { std::memset(values.get(), 0, size_t(count * TOGETHER) * sizeof(float)); }

    // Writes to the output from channel `first` on; more: adds to it.
    void write(int64_t first, int64_t channels, bool more) const {
        const SpikeConv& conv = task.conv;
        const int64_t size = conv.height * conv.width, row = last ? conv.in_channels : 1;
        const int64_t lines = last ? pixels : channels, to_next = last ? conv.in_channels : size;
        const int64_t length = last ? channels : pixels, from_next = last ? TOGETHER : count;
        for (int64_t n = part.image0; n < part.image1; ++n) {
            float* to = task.out + n * size * conv.in_channels + part.row0 * conv.width * row + first * (last ? 1 : size);
            const float* from = values.get() + (n - part.image0) * pixels * per_pixel;
            for (int64_t line = 0; line < lines; ++line, to += to_next, from += from_next)
                for (int64_t k = 0; k < length; k += LANES) {
                    const bool full = k + LANES <= length;
                    const int64_t rest = length - k;
                    Floats value = full ? load<true>(from + k, 0) : load<false>(from + k, rest);
                    if (more) value += full ? load<true>(to + k, 0) : load<false>(to + k, rest);
                    full ? store<true>(value, to + k, 0) : store<false>(value, to + k, rest);
                }
        }
    }
};

// Unit: a part of the input.
bool input_gradient_unit(const ConvTask& task, int64_t unit) {
    const SpikeConv& conv = task.conv;
    const ConvShape& shape = task.shape;
    const ConvPart part(task.plan, shape, conv.height, unit);
    const int64_t width = task.plan.width, registers = registers_of(width);
    GradientTile tile(task);
    const PixelTable pixels(tile, part);
    const PhaseTaps taps(tile, shape.taps);
    ChannelMasks needed(conv, 0, conv.in_channels, pixels.words);
    needed.load(part, pixels, [](int64_t n) { return n; });
    Results results(task, part);
    Room<uint32_t> list(64 * pixels.words + LANES), numbers(64 * pixels.words);  // numbers: pixel of a slot in the part
    for (int64_t slot = 0; slot < 64 * pixels.words; ++slot)
        numbers[slot] = pixels.pixels[slot] - uint32_t(part.row0 * conv.width) + pixels.images[slot] * uint32_t(results.pixels);
    const DotProducts* const dots = registers == 8   ? dot_products_of<8>()
                                    : registers == 4 ? dot_products_of<4>()
                                    : registers == 2 ? dot_products_of<2>()
                                                     : dot_products_of<1>();
    bool finite = true;
    for (int64_t channel = 0; channel < conv.out_channels; channel += width) {
        finite = tile.copy(part, channel) && finite;
        const float* weights = task.packed + (channel / shape.block * conv.in_channels * shape.taps) * shape.block + channel % shape.block;
        for (int64_t c = 0; c < conv.in_channels; ++c, weights += shape.taps * shape.block) {
            if (c % TOGETHER == 0) results.clear();
            for (int64_t phase = 0; phase < tile.phases(); ++phase) {
                const int64_t begin = taps.begin(phase), count = taps.ends[phase] - begin;
                if (count == 0) continue;
                uint32_t* end = list.get();
                for (int64_t w = pixels.begin(phase); w < pixels.ends[phase]; ++w)
                    end = append(needed.of(c)[w], 64, uint32_t(64 * w), 1, end);
                const int64_t total = end - list.get();
                float* const to = results.values.get() + c % TOGETHER * results.per_channel;
                for (int64_t e = 0, together; e < total; e += together) {
                    together = places_together(total - e);
                    for (int64_t k = 0; k < width; k += registers * LANES) {
                        alignas(64) float sums[MOST_PLACES];
                        dots[together - 1](tile.values.get() + k, pixels.places.get(), list.get() + e, weights + k, taps.tap.get() + begin,
                                           taps.moved.get() + begin, count, shape.block, sums);
                        for (int64_t n = 0; n < together; ++n) to[numbers[list[e + n]] * results.per_pixel] += sums[n];
                    }
                }
            }
            if (c % TOGETHER == TOGETHER - 1 || c == conv.in_channels - 1)
                results.write(c / TOGETHER * TOGETHER, c % TOGETHER + 1, channel > 0);
        }
    }
    return finite;
}

}  // namespace
