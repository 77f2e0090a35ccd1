// Weight gradient. Every channel gets a list of the pixels at which it fired. For every channel the output's gradient
// is summed over that list, under all taps together, in registers. A neuron that fired at both steps of a pair is one
// entry, for which the tile has the sum of the two gradients.
#pragma once
#include "conv_tile.h"

namespace {

// The pixels of a part at which channels fired, as positions in a gradient tile, per phase of the stride. In every word of 64
// pixels those of the first step of a pair alone come first, then the second alone, then both.
struct PlaceLists {
    int64_t channels;
    Room<uint32_t> entries;
    Room<int64_t> starts;

    PlaceLists(int64_t channels_, int64_t phases, int64_t pixels)
        : channels(channels_), entries(channels * pixels + LANES), starts(phases * channels + 1) {}

    void fill(const ConvPart& part, const GradientTile& tile, const ConvShape& shape, int64_t first) {
        const SpikeConv& conv = tile.task.conv;
        const PixelTable pixels(tile, part);
        const bool pairs = shape.pair > 1;
        ChannelMasks a(conv, first, channels, pixels.words), b(conv, first, pairs ? channels : 0, pixels.words);
        a.load(part, pixels, [&](int64_t n) { return StepsOf(conv, shape, n).image; });
        b.load(part, pixels, [&](int64_t n) {
            const StepsOf steps(conv, shape, n);
            return steps.count > 1 ? steps.image + conv.batch : -1;
        });
        const uint32_t width = uint32_t(tile.width);
        uint32_t* end = entries.get();
        for (int64_t phase = 0; phase < tile.phases(); ++phase)
            for (int64_t c = 0; c < channels; ++c) {
                starts[phase * channels + c] = end - entries.get();
                for (int64_t w = pixels.begin(phase); w < pixels.ends[phase]; ++w) {
                    const uint32_t* const table = pixels.places.get() + 64 * w;
                    const uint64_t x = a.of(first + c)[w], y = pairs ? b.of(first + c)[w] : 0;
                    end = append_from(x & ~y, table, 0, end);
                    if (pairs) end = append_from(x & y, table, 2 * width, append_from(y & ~x, table, width, end));
                }
            }
        starts[tile.phases() * channels] = end - entries.get();
    }
};

constexpr int MOST_TAPS = 9;  // channels at a time, each with its sums in registers

// Adds the gradients at the positions of a list, as each of N taps reads them, to its R registers of sums.
template <int N, int R>
void add_places(const float* tile, const int64_t* moved, const uint32_t* list, int64_t count, const int64_t* tap, int64_t block,
                float* sums) {
    Floats s[N][R];
    for (int n = 0; n < N; ++n)
        for (int r = 0; r < R; ++r) s[n][r] = load<true>(sums + tap[n] * block + r * LANES, 0);
    for (int64_t e = 0; e < count; ++e) {
        const float* from = tile + list[e];
#pragma GCC unroll 9
        for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) s[n][r] += load<true>(from + moved[n] + r * LANES, 0);
    }
    for (int n = 0; n < N; ++n)
        for (int r = 0; r < R; ++r) store<true>(s[n][r], sums + tap[n] * block + r * LANES, 0);
}

using AddPlaces = void (*)(const float*, const int64_t*, const uint32_t*, int64_t, const int64_t*, int64_t, float*);

// For this many taps, and the registers that remain for each: at most nine in all.
inline AddPlaces add_places_of(int64_t taps, int64_t registers) {
    static const AddPlaces ONE[] = {add_places<1, 1>, add_places<2, 1>, add_places<3, 1>, add_places<4, 1>, add_places<5, 1>,
                                    add_places<6, 1>, add_places<7, 1>, add_places<8, 1>, add_places<9, 1>};
    static const AddPlaces TWO[] = {add_places<1, 2>, add_places<2, 2>, add_places<3, 2>, add_places<4, 2>};
    static const AddPlaces FOUR[] = {add_places<1, 4>, add_places<2, 4>};
    return (registers == 1 ? ONE : registers == 2 ? TWO : FOUR)[taps - 1];
}
inline int64_t registers_for(int64_t taps, int64_t width) {
    const int64_t most = taps > 4 ? 1 : taps > 2 ? 2 : 4;
    return width / LANES < most ? width / LANES : most;
}

// The taps of each phase of the stride, and how far each moves the position.
struct PhaseTaps {
    Room<int64_t> tap, moved, ends;

    PhaseTaps(const GradientTile& tile, int64_t taps) : tap(taps), moved(taps), ends(tile.phases()) {
        int64_t listed = 0;
        for (int64_t phase = 0; phase < tile.phases(); ++phase) {
            for (int64_t t = 0; t < taps; ++t)
                if (tile.tap_phase(t) == phase) tap[listed] = t, moved[listed++] = tile.tap_place(t);
            ends[phase] = listed;
        }
    }
    int64_t begin(int64_t phase) const { return phase ? ends[phase - 1] : 0; }
};

// Unit: one of `splits` runs of parts, a block of output channels, a chunk of input channels.
bool weight_gradient_unit(const ConvTask& task, int64_t unit) {
    const SpikeConv& conv = task.conv;
    const ConvShape& shape = task.shape;
    const int64_t chunks = conv_chunks(conv, task.plan), chunk = unit % chunks, b = unit / chunks % shape.blocks;
    const int64_t split = unit / chunks / shape.blocks, first = chunk * task.plan.chunk;
    const int64_t channels = conv.in_channels - first < task.plan.chunk ? conv.in_channels - first : task.plan.chunk;
    const int64_t width = task.plan.width, last = conv.out_channels - b * shape.block;
    float* const sums = task.out + unit * shape.taps * task.plan.chunk * shape.block;
    std::memset(sums, 0, size_t(shape.taps * task.plan.chunk * shape.block) * sizeof(float));
    GradientTile tile(task);
    const PhaseTaps taps(tile, shape.taps);
    const int64_t most = task.plan.images * task.plan.rows * conv.width;
    PlaceLists lists(channels, tile.phases(), most);
    bool finite = true;
    for (int64_t p = task.plan.parts * split / task.plan.splits; p < task.plan.parts * (split + 1) / task.plan.splits; ++p) {
        const ConvPart part(task.plan, shape, conv.height, p);
        lists.fill(part, tile, shape, first);
        for (int64_t from = 0; from < shape.block && from < last; from += width) {
            finite = tile.copy(part, b * shape.block + from) && finite;
            for (int64_t phase = 0; phase < tile.phases(); ++phase)
                for (int64_t t = taps.begin(phase); t < taps.ends[phase]; t += MOST_TAPS) {
                    const int64_t together = taps.ends[phase] - t < MOST_TAPS ? taps.ends[phase] - t : MOST_TAPS;
                    const int64_t registers = registers_for(together, width);
                    const AddPlaces add = add_places_of(together, registers);
                    for (int64_t c = 0; c < channels; ++c) {
                        const int64_t list = phase * channels + c, count = lists.starts[list + 1] - lists.starts[list];
                        if (count == 0) continue;
                        for (int64_t k = 0; k < width; k += registers * LANES)
                            add(tile.values.get() + k, taps.moved.get() + t, lists.entries.get() + lists.starts[list], count,
                                taps.tap.get() + t, shape.block, sums + c * shape.taps * shape.block + from + k);
                    }
                }
        }
    }
    return finite;
}

}  // namespace
