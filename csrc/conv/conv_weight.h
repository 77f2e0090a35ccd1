// Weight gradient: for every channel the list of pixels where it fired; for every tap and channel the sum of the output's
// gradient over that list, in registers.
#pragma once
#include "conv_tile.h"

namespace {

// Where channels [first, first + channels) fired in a part, as places in a gradient tile, per phase of the stride.
struct PixelLists {
    int64_t channels, capacity;
    Room<int64_t> counts;
    Room<uint32_t> entries;

    PixelLists(const GradientTile& tile, int64_t channels_)
        : channels(channels_), capacity(tile.capacity()), counts(tile.phases() * channels),
          entries(tile.phases() * channels * capacity) {}

    void fill(const ConvPart& part, const GradientTile& tile, PixelWords& words, int64_t first) {
        std::memset(counts.get(), 0, size_t(tile.phases() * channels) * sizeof(int64_t));
        const auto load = [&](int64_t n) { words.load(part.image0 + n, part.row0, part.row1); };
        tile.for_pixels(part, load, [&](int64_t, int64_t i, int64_t j, int64_t phase, int64_t place) {
            for (int64_t w = 0; w < (channels + 63) / 64; ++w)
                for_each_bit(words.at(i, j, first / 64 + w), [&](int64_t k) {
                    const int64_t list = phase * channels + 64 * w + k;
                    entries[list * capacity + counts[list]++] = uint32_t(place);
                });
        });
    }
};

template <int R>
void add_places(const float* tile, const uint32_t* list, int64_t count, float* sums) {
    Floats s[R];
    for (int r = 0; r < R; ++r) s[r] = load<true>(sums + r * LANES, 0);
    for (int64_t e = 0; e < count; ++e) {
        const float* from = tile + list[e];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) s[r] += load<true>(from + r * LANES, 0);
    }
    for (int r = 0; r < R; ++r) store<true>(s[r], sums + r * LANES, 0);
}

// Unit: one of `splits` runs of parts, a block of output channels, a chunk of input channels.
bool weight_gradient_unit(const ConvTask& task, int64_t unit) {
    const SpikeConv& conv = task.conv;
    const ConvShape& shape = task.shape;
    const int64_t chunks = conv_chunks(conv, task.plan), chunk = unit % chunks, b = unit / chunks % shape.blocks;
    const int64_t split = unit / chunks / shape.blocks, first = chunk * task.plan.chunk;
    const int64_t channels = conv.in_channels - first < task.plan.chunk ? conv.in_channels - first : task.plan.chunk;
    const int64_t registers = registers_of(shape.block);
    const auto add = registers == 8 ? add_places<8> : registers == 4 ? add_places<4> : registers == 2 ? add_places<2> : add_places<1>;
    float* sums = task.out + unit * shape.taps * task.plan.chunk * shape.block;
    std::memset(sums, 0, size_t(shape.taps * task.plan.chunk * shape.block) * sizeof(float));
    GradientTile tile(task);
    PixelLists lists(tile, channels);
    PixelWords words(conv, task.plan.rows);
    bool finite = true;
    for (int64_t p = task.plan.parts * split / task.plan.splits; p < task.plan.parts * (split + 1) / task.plan.splits; ++p) {
        const ConvPart part(task.plan, shape, conv.height, p);
        finite = tile.copy(part, b) && finite;
        lists.fill(part, tile, words, first);
        for (int64_t t = 0; t < shape.taps; ++t) {
            const float* from = tile.values.get() + tile.tap_place(t);
            const int64_t phase = tile.tap_phase(t) * channels;
            for (int64_t c = 0; c < channels; ++c) {
                const int64_t count = lists.counts[phase + c];
                if (count == 0) continue;
                float* to = sums + (t * task.plan.chunk + c) * shape.block;
                for (int64_t k = 0; k < shape.block; k += registers * LANES)
                    add(from + k, lists.entries.get() + (phase + c) * lists.capacity, count, to + k);
            }
        }
    }
    return finite;
}

}  // namespace
