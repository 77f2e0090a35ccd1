// The gradient of the output, copied for some channels to a tile with zeros around it. The neighbours of an input pixel
// are then at fixed distances, and none needs a check. For a pair of steps, a pixel has the gradients of both and their
// sum.
//
// Input row i is read by output row (i + padding - a dilation) / stride under tap a, if the division is exact. Let q =
// (i + padding) / stride, with the remainder as its phase. The tap's rows are those of phase (a dilation) % stride, at
// q - (a dilation) / stride.
#pragma once
#include "conv_lists.h"
#include "units.h"

namespace {

constexpr int64_t AHEAD = 64;                 // pixels whose gradient is requested from memory before it is copied

struct Axis {
    int64_t padding, stride, dilation, kernel, border;
    Axis(const SpikeConv& c, int axis)
        : padding(c.padding[axis]), stride(c.stride[axis]), dilation(c.dilation[axis]), kernel(c.kernel[axis]),
          border((kernel - 1) * dilation / stride) {}
    int64_t place(int64_t i) const { return (i + padding) / stride; }
    int64_t phase(int64_t i) const { return (i + padding) % stride; }
    int64_t tap_phase(int64_t a) const { return a * dilation % stride; }
    bool meets(int64_t i) const {
        for (int64_t a = 0; a < kernel; ++a)
            if (tap_phase(a) == phase(i)) return true;
        return false;
    }
    int64_t tap_place(int64_t a) const { return border - a * dilation / stride; }
    int64_t extent(int64_t begin, int64_t end) const { return place(end - 1) - place(begin) + border + 1; }
};

struct GradientTile {
    const ConvTask& task;
    const Axis down, across;
    const int64_t width, pixel;               // channels per tile; floats of a pixel
    int64_t rows, columns, image_size;
    Room<float> values;
    Room<int64_t> column_place, column_phase;  // of every input column; phase -1: no tap reads it

    GradientTile(const ConvTask& t)
        : task(t), down(t.conv, 0), across(t.conv, 1), width(t.plan.width), pixel(width * (t.shape.pair > 1 ? 3 : 1)),
          rows((t.plan.rows - 1) / down.stride + 2 + down.border), columns(across.extent(0, t.conv.width)),
          image_size(rows * columns * pixel), values(t.plan.images * image_size), column_place(t.conv.width),
          column_phase(t.conv.width) {
        for (int64_t j = 0; j < t.conv.width; ++j) {
            column_place[j] = (across.place(j) - across.place(0)) * pixel;
            column_phase[j] = across.meets(j) ? across.phase(j) : -1;
        }
    }

    int64_t phases() const { return down.stride * across.stride; }
    int64_t tap_phase(int64_t t) const {
        return down.tap_phase(t / across.kernel) * across.stride + across.tap_phase(t % across.kernel);
    }
    // How far a tap moves the position at which an input pixel reads.
    int64_t tap_place(int64_t t) const {
        return (down.tap_place(t / across.kernel) * columns + across.tap_place(t % across.kernel)) * pixel;
    }

    // Channels [channel, channel + width) of the output's gradient that the part's input pixels need. False: not all
    // are finite.
    bool copy(const ConvPart& part, int64_t channel) {
        const ConvShape& shape = task.shape;
        const int64_t total = task.conv.out_channels, size = shape.out_height * shape.out_width;
        const int64_t channels = total - channel < width ? total - channel : width;
        const int64_t used = down.extent(part.row0, part.row1), left = across.place(0) - across.border;
        const int64_t begin = left < 0 ? smaller(-left, columns) : 0, end = larger(begin, smaller(shape.out_width - left, columns));
        const bool last = task.conv.channels_last;
        const int64_t per_pixel = last ? total : 1, per_channel = last ? 1 : size;
        uint32_t infinite = 0;
        for (int64_t n = part.image0; n < part.image1; ++n) {
            const StepsOf steps(task.conv, shape, n);
            for (int64_t r = 0; r < used; ++r) {
                const int64_t i = r + down.place(part.row0) - down.border;
                float* const row = values.get() + (n - part.image0) * image_size + r * columns * pixel;
                if (i < 0 || i >= shape.out_height) {
                    std::memset(row, 0, size_t(columns * pixel) * sizeof(float));
                    continue;
                }
                std::memset(row, 0, size_t(begin * pixel) * sizeof(float));
                std::memset(row + end * pixel, 0, size_t((columns - end) * pixel) * sizeof(float));
                const int64_t first = i * shape.out_width + begin + left;
                const float* from = task.g + steps.image * size * total + channel * per_channel + first * per_pixel;
                infinite |= copy_row(from, steps.count > 1 ? from + task.conv.batch * size * total : nullptr, per_pixel,
                                     per_channel, end - begin, channels, row + begin * pixel);
            }
        }
        return infinite == 0;
    }

  private:
    // a, b: the gradients of the two steps; b is null if there is only one step.
    uint32_t copy_row(const float* a, const float* b, int64_t per_pixel, int64_t per_channel, int64_t pixels, int64_t channels,
                      float* to) const {
        if (channels < width) std::memset(to, 0, size_t(pixels * pixel) * sizeof(float));
        if (per_channel == 1 && channels % LANES == 0)
            return b ? copy_pixels<true>(a, b, per_pixel, pixels, channels, to) : copy_pixels<false>(a, a, per_pixel, pixels, channels, to);
        uint32_t infinite = 0;
        for (int64_t k = 0; k < channels; ++k)
            for (int64_t p = 0; p < pixels; ++p) {
                const int64_t from = k * per_channel + p * per_pixel;
                float* const at = to + p * pixel + k;
                const float x = a[from], y = b ? b[from] : 0;
                infinite |= is_infinite(x + y);  // the sum is not finite if one of the two is not
                at[0] = x;
                if (b) at[width] = y, at[2 * width] = x + y;
            }
        return infinite;
    }

    template <bool BOTH>
    uint32_t copy_pixels(const float* a, const float* b, int64_t per_pixel, int64_t pixels, int64_t channels, float* to) const {
        Words infinite{};
        for (int64_t p = 0; p < pixels; ++p, a += per_pixel, b += per_pixel, to += pixel)
            for (int64_t k = 0; k < channels; k += LANES) {
                // The processor does not foresee a part of every pixel; the rows below follow in memory.
                __builtin_prefetch(a + k + AHEAD * per_pixel);
                if (BOTH) __builtin_prefetch(b + k + AHEAD * per_pixel);
                const Floats x = load<true>(a + k, 0);
                Floats sum = x;
                store<true>(x, to + k, 0);
                if (BOTH) {
                    const Floats y = load<true>(b + k, 0);
                    sum += y;
                    store<true>(y, to + width + k, 0);
                    store<true>(sum, to + 2 * width + k, 0);
                }
                infinite |= Words((Words(sum) & 0x7f800000u) == 0x7f800000u);
            }
        return lane_bits(infinite);
    }
};

// The input pixels of a part that a tap reads, ordered by phase of the stride, 64 per word. Each phase starts a new word.
struct PixelTable {
    static constexpr uint32_t NONE = ~uint32_t(0);  // image of the unused slots at the end of a phase
    int64_t words = 0;
    Room<int64_t> ends;                       // of each phase, in words
    Room<uint32_t> places, images, pixels;    // per slot: its position in a gradient tile, its image in the part, its pixel in the image

    PixelTable(const GradientTile& tile, const ConvPart& part)
        : PixelTable(tile, part, 64 * tile.phases() + (part.image1 - part.image0) * (part.row1 - part.row0) * tile.task.conv.width) {}

    int64_t begin(int64_t phase) const { return phase ? ends[phase - 1] : 0; }

  private:
    PixelTable(const GradientTile& tile, const ConvPart& part, int64_t most)
        : ends(tile.phases()), places(most), images(most), pixels(most) {
        const int64_t stride = tile.across.stride;
        int64_t slot = 0;
        for (int64_t phase = 0; phase < tile.phases(); ++phase) {
            for (int64_t n = 0; n < part.image1 - part.image0; ++n)
                for (int64_t i = part.row0; i < part.row1; ++i) {
                    if (tile.down.phase(i) != phase / stride || !tile.down.meets(i)) continue;
                    const int64_t row = n * tile.image_size + (tile.down.place(i) - tile.down.place(part.row0)) * tile.columns * tile.pixel;
                    for (int64_t j = 0; j < tile.task.conv.width; ++j) {
                        if (tile.column_phase[j] != phase % stride) continue;
                        places[slot] = uint32_t(row + tile.column_place[j]);
                        images[slot] = uint32_t(n);
                        pixels[slot++] = uint32_t(i * tile.task.conv.width + j);
                    }
                }
            for (; slot % 64; ++slot) places[slot] = 0, images[slot] = NONE, pixels[slot] = 0;
            ends[phase] = words = slot / 64;
        }
    }
};

// The bits of channels [first, first + channels) in the order of a table's slots.
struct ChannelMasks {
    const SpikeConv& conv;
    int64_t first, channels, words;
    Room<uint64_t> masks;

    ChannelMasks(const SpikeConv& c, int64_t first_, int64_t channels_, int64_t words_)
        : conv(c), first(first_), channels(channels_), words(words_), masks(channels * words) {}

    const uint64_t* of(int64_t channel) const { return masks.get() + (channel - first) * words; }

    // image(n): the index of image n among the images of all steps; -1: there is none, its bits are 0.
    template <class Image>
    void load(const ConvPart& part, const PixelTable& table, Image image) {
        const int64_t images = part.image1 - part.image0, size = conv.height * conv.width;
        Room<const uint64_t*> steps(images);
        Room<int64_t> starts(images);
        for (int64_t n = 0; n < images; ++n) {
            const int64_t at = image(part.image0 + n);
            steps[n] = at < 0 ? nullptr : conv.bits + at / conv.batch * conv.words;
            starts[n] = at < 0 ? 0 : at % conv.batch * size * conv.in_channels;
        }
        const int64_t per_pixel = conv.channels_last ? conv.in_channels : 1, per_channel = conv.channels_last ? 1 : size;
        uint64_t block[64];
        for (int64_t w = 0; w < words; ++w)
            for (int64_t c = 0; c < channels; c += 64) {
                const int64_t count = channels - c < 64 ? channels - c : 64;
                std::memset(block, 0, sizeof block);
                for (int64_t k = 0; k < 64; ++k) {
                    const uint32_t n = table.images[64 * w + k];
                    if (n == PixelTable::NONE || !steps[n]) continue;
                    const int64_t bit = starts[n] + table.pixels[64 * w + k] * per_pixel + (first + c) * per_channel;
                    if (conv.channels_last)
                        block[k] = bits_from(steps[n], bit, count);
                    else
                        for (int64_t i = 0; i < count; ++i) block[i] |= bits_from(steps[n], bit + i * size, 1) << k;
                }
                if (conv.channels_last) transpose(block);
                for (int64_t i = 0; i < count; ++i) masks[(c + i) * words + w] = block[i];
            }
    }
};

}  // namespace
