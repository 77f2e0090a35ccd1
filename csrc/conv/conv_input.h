// Input gradient at the requested elements: dot products of the output's gradient with a channel's weights, which stay
// in the cache for all elements of that channel.
#pragma once
#include "conv_weight.h"

namespace {

constexpr int64_t PLACES = 8;  // dot products at a time

#if STEADYSPIKE_REGISTER == 64
inline __m256 half_sum(__m512 s) {  // masks with all lanes: GCC 12 warns about the plain functions
    return _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, s, 0), _mm512_maskz_extractf32x8_ps(0xff, s, 1));
}
#elif STEADYSPIKE_REGISTER == 32
inline __m256 half_sum(__m256 s) { return s; }
#endif

// to[k] += the sum of the elements of s[k].
inline void add_sums(const Floats* s, float* to) {
#if STEADYSPIKE_REGISTER >= 32
    const auto pairs = [&](int k) { return _mm256_hadd_ps(half_sum(s[k]), half_sum(s[k + 1])); };
    const __m256 low = _mm256_hadd_ps(pairs(0), pairs(2)), high = _mm256_hadd_ps(pairs(4), pairs(6));
    const __m256 sums = _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
    _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), sums));
#else
    for (int64_t k = 0; k < PLACES; ++k) {
        float parts[LANES];
        store<true>(s[k], parts, 0);
        for (int64_t half = LANES / 2; half > 0; half /= 2)
            for (int64_t l = 0; l < half; ++l) parts[l] += parts[l + half];
        to[k] += parts[0];
    }
#endif
}

// Adds to `sums` the dot products for PLACES elements, over `taps` taps and R registers each.
template <int R>
void add_products(const float* tile, const uint32_t* list, const float* weights, const int64_t* tap, const int64_t* place,
                  int64_t taps, int64_t block, float* sums) {
    Floats s[PLACES] = {};
    const float* from[PLACES];
    for (int64_t k = 0; k < PLACES; ++k) from[k] = tile + list[k];
    for (int64_t t = 0; t < taps; ++t) {
        const float* w = weights + tap[t] * block;
        const int64_t moved = place[t];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Floats value = load<true>(w + r * LANES, 0);
#pragma GCC unroll 8
            for (int64_t k = 0; k < PLACES; ++k) s[k] = multiply_add(value, load<true>(from[k] + moved + r * LANES, 0), s[k]);
        }
    }
    add_sums(s, sums);
}

// The elements in a part whose gradient is needed, per channel and phase: positions of the gradients in the tile, and
// their own positions in dx.
struct PlaceLists {
    int64_t capacity;
    Room<int64_t> counts;
    Room<uint32_t> places, pixels;
    Room<float> sums;

    PlaceLists(const GradientTile& tile, int64_t channels)
        : capacity((tile.capacity() + PLACES - 1) / PLACES * PLACES), counts(tile.phases() * channels),
          places(tile.phases() * channels * capacity), pixels(tile.phases() * channels * capacity),
          sums(tile.phases() * channels * capacity) {}

    void fill(const SpikeConv& conv, const ConvPart& part, const GradientTile& tile, int64_t image_pixels) {
        const int64_t phases = tile.phases(), lists = phases * conv.in_channels;
        std::memset(counts.get(), 0, size_t(lists) * sizeof(int64_t));
        PixelWords words(conv, part.row1 - part.row0);
        const auto load = [&](int64_t n) { words.load(part.image0 + n, part.row0, part.row1); };
        tile.for_pixels(part, load, [&](int64_t n, int64_t i, int64_t j, int64_t phase, int64_t place) {
            const uint32_t pixel = uint32_t(n * image_pixels + i * conv.width + j);
            for (int64_t w = 0; w < words.words; ++w)
                for_each_bit(words.at(i, j, w), [&](int64_t k) {
                    const int64_t list = (64 * w + k) * phases + phase, at = list * capacity + counts[list]++;
                    places[at] = uint32_t(place), pixels[at] = pixel;
                });
        });
        for (int64_t list = 0; list < lists; ++list) {
            const int64_t first = list * capacity, full = (counts[list] + PLACES - 1) / PLACES * PLACES;
            for (int64_t e = counts[list]; e < full; ++e) places[first + e] = places[first];
            std::memset(sums.get() + first, 0, size_t(full) * sizeof(float));
        }
    }
};

inline void clear(const ConvTask& task, const ConvPart& part) {
    const SpikeConv& conv = task.conv;
    const int64_t row = conv.width * (conv.channels_last ? conv.in_channels : 1), planes = conv.channels_last ? 1 : conv.in_channels;
    for (int64_t plane = part.image0 * planes; plane < part.image1 * planes; ++plane)
        std::memset(task.out + (plane * conv.height + part.row0) * row, 0, size_t((part.row1 - part.row0) * row) * sizeof(float));
}

// Unit: a part of the input.
bool input_gradient_unit(const ConvTask& task, int64_t unit) {
    const SpikeConv& conv = task.conv;
    const ConvShape& shape = task.shape;
    const ConvPart part(task.plan, shape, conv.height, unit);
    const int64_t size = conv.height * conv.width, per_pixel = conv.channels_last ? conv.in_channels : 1;
    GradientTile tile(task);
    const int64_t phases = tile.phases(), width = task.plan.width;
    PlaceLists lists(tile, conv.in_channels);
    const PhaseTaps taps(tile, shape.taps);
    clear(task, part);
    lists.fill(conv, part, tile, conv.channels_last ? size : size * conv.in_channels);
    const int64_t registers = registers_of(width);
    const auto add = registers == 8 ? add_products<8> : registers == 4 ? add_products<4> : registers == 2 ? add_products<2> : add_products<1>;
    bool finite = true;
    for (int64_t channel = 0; channel < conv.out_channels; channel += width) {
        finite = tile.copy(part, channel) && finite;
        for (int64_t c = 0; c < conv.in_channels; ++c) {
            const float* weights = task.packed + (channel / shape.block * conv.in_channels + c) * shape.taps * shape.block + channel % shape.block;
            for (int64_t phase = 0; phase < phases; ++phase) {
                const int64_t list = c * phases + phase, begin = taps.begin(phase), count = taps.ends[phase] - begin;
                if (count == 0) continue;
                for (int64_t e = list * lists.capacity; e < list * lists.capacity + lists.counts[list]; e += PLACES)
                    for (int64_t k = 0; k < width; k += registers * LANES)
                        add(tile.values.get() + k, lists.places.get() + e, weights + k, taps.tap.get() + begin,
                            taps.moved.get() + begin, count, shape.block, lists.sums.get() + e);
            }
        }
    }
    float* out = task.out + part.image0 * size * conv.in_channels;
    for (int64_t list = 0; list < conv.in_channels * phases; ++list) {
        const int64_t c = list / phases, channel = conv.channels_last ? c : c * size;
        for (int64_t e = list * lists.capacity; e < list * lists.capacity + lists.counts[list]; ++e)
            out[int64_t(lists.pixels[e]) * per_pixel + channel] = lists.sums[e];
    }
    return finite;
}

}  // namespace
