// Forward. Every pixel gets the list of its active channels. For every output pixel and block of output channels, the
// weights of the active channels below it are summed, in the order tap, channel.
#pragma once
#include "conv_lists.h"

namespace {

// bytes of weights that are processed at a time: they stay in the first-level cache
constexpr int64_t WEIGHT_BYTES = 36 << 10;
// Bytes of a kernel row's weights up to which the row is processed as one list. It is twice as many if a list has few
// entries: the processor mispredicts the end of a list, which then takes longer than loading weights from the
// second-level cache.
constexpr int64_t ROW_BYTES = 48 << 10, FEW = 10;
constexpr int64_t PIXELS_TOGETHER = 128;    // output pixels per pass over those weights
constexpr int64_t AT_ONCE = 32;             // entries that are copied without a check of how many there are

// Lists of active channels, times the block, on a grid of input pixels; the pixels of the padding are empty. The lists
// of neighbours in a row are adjacent in memory, so the lists under a whole kernel row are one list. An entry then also
// has its column, times the size of a tap, from which its tap follows.
struct ChannelLists {
    int64_t rows, columns;                    // pixels of the grid, per image
    // the first row's position in the image; the rows of the image on the grid
    int64_t top, begin, end;
    int64_t total;                            // active channels of all pixels
    int64_t taps_as_one;                      // the columns of the kernel, or 1
    Room<uint32_t> starts, entries;

    ChannelLists(const ConvTask& task, const ConvPart& part)
        : rows((part.row1 - part.row0 - 1) * task.conv.stride[0] + (task.conv.kernel[0] - 1) * task.conv.dilation[0] + 1),
          columns((task.shape.out_width - 1) * task.conv.stride[1] + (task.conv.kernel[1] - 1) * task.conv.dilation[1] + 1),
          top(part.row0 * task.conv.stride[0] - task.conv.padding[0]), begin(top < 0 ? 0 : top),
          end(top + rows < task.conv.height ? top + rows : task.conv.height),
          total(end > begin ? count_bits(task.conv, part.image0, part.image1, begin, end) : 0),
          taps_as_one(in_rows(task, part.image1 - part.image0) ? task.conv.kernel[1] : 1),
          starts((part.image1 - part.image0) * rows * columns + 1), entries(total + AT_ONCE) {
        const SpikeConv& conv = task.conv;
        PixelWords words(conv, end > begin ? end - begin : 1);
        uint32_t *next = entries.get(), *start = starts.get();
        const uint32_t block = uint32_t(task.shape.block);
        const uint32_t step = taps_as_one > 1 ? uint32_t(tap_size(task)) : 0;
        for (int64_t image = part.image0; image < part.image1; ++image) {
            if (end > begin) words.load(image, begin, end);
            for (int64_t r = 0; r < rows; ++r) {
                const int64_t i = top + r;
                const bool row_read = i >= 0 && i < conv.height && read(r, 0, conv);
                for (int64_t q = 0; q < columns; ++q) {
                    const int64_t j = q - conv.padding[1];
                    *start++ = uint32_t(next - entries.get());
                    if (!row_read || j < 0 || j >= conv.width || !read(q, 1, conv)) continue;
                    const uint32_t column = uint32_t(q) * step;
                    for (int64_t c = 0; c < conv.in_channels; c += 64)
                        next = append(words.at(i, j, c / 64), conv.in_channels - c < 64 ? conv.in_channels - c : 64,
                                      column + uint32_t(c) * block, block, next);
                }
            }
        }
        *start = uint32_t(next - entries.get());
    }

    static int64_t tap_size(const ConvTask& task) { return task.conv.in_channels * task.shape.block; }

    // Entries have 32 bits.
    bool in_rows(const ConvTask& task, int64_t images) const {
        const int64_t size = tap_size(task);
        const bool few = total <= FEW * images * (end - begin) * task.conv.width;
        return task.conv.dilation[1] == 1 && task.conv.kernel[1] * size * int64_t(sizeof(float)) <= (few ? 2 : 1) * ROW_BYTES &&
               (columns + 1) * size < (int64_t(1) << 31);
    }

    // Whether a tap reads grid line q: not all do if the stride is larger than the kernel.
    static bool read(int64_t q, int axis, const SpikeConv& conv) {
        return conv.stride[axis] == 1 || conv.kernel[axis] >= conv.stride[axis] || conv.dilation[axis] > 1 ||
               q % conv.stride[axis] < conv.kernel[axis];
    }
};

// An output pixel: the grid pixel under its first tap, and the column that entries there have.
struct OutputPixel {
    int64_t grid, column;
};

// under the groups of taps of one call, if there are several
constexpr int64_t MOST_ENTRIES = WEIGHT_BYTES / (16 * int64_t(sizeof(float)));

// Joins the lists under the groups of taps of one pixel into one, which has only one end. Returns the number of
// entries.
inline int64_t join_lists(const uint32_t* starts, const uint32_t* entries, int64_t taps, const int64_t* offset, int64_t groups,
                          uint32_t shift, uint32_t group_size, uint32_t* joined) {
    int64_t total = 0;
    for (int64_t g = 0; g < groups; ++g, shift += group_size) {
        const uint32_t *at = starts + offset[g], *from = entries + at[0];
        const int64_t count = int64_t(at[taps]) - int64_t(at[0]);
        const auto copy = [&](int64_t e) { put<true>(take<true, Words>(from + e, 0) + shift, joined + total + e, 0); };
#pragma GCC unroll 8
        for (int64_t e = 0; e < AT_ONCE; e += LANES) copy(e);
        for (int64_t e = AT_ONCE; e < count; e += LANES) copy(e);
        total += count;
    }
    return total;
}

// Adds the weights of the active channels under `groups` groups of taps, each of `taps_as_one`, to the sums of `pixels`
// output pixels, R registers each. A block of few channels has two sums, of the even and of the odd entries, because a
// single sum would wait for its last addition.
template <int R, int SUMS>
void add_events(const ChannelLists& lists, const OutputPixel* pixel, int64_t pixels, const int64_t* offset, int64_t groups,
                const float* weights, int64_t group_size, float* sums, int64_t block) {
    const uint32_t *starts = lists.starts.get(), *entries = lists.entries.get();
    const int64_t taps = lists.taps_as_one;
    uint32_t joined[MOST_ENTRIES + AT_ONCE];
    for (int64_t p = 0; p < pixels; ++p, sums += block) {
        Floats s[SUMS][R] = {};
        for (int r = 0; r < R; ++r) s[0][r] = load<true>(sums + r * LANES, 0);
        const uint32_t* at = starts + pixel[p].grid;
        const uint32_t *e, *end;
        const float* shifted = weights;
        if (groups == 1) {
            e = entries + at[offset[0]], end = entries + at[offset[0] + taps];
            shifted -= pixel[p].column;
        } else {
            e = joined;
            end = e + join_lists(at, entries, taps, offset, groups, uint32_t(-pixel[p].column), uint32_t(group_size), joined);
        }
        for (; e + (SUMS - 1) < end; e += SUMS)
#pragma GCC unroll 2
            for (int i = 0; i < SUMS; i += 2) {
                uint64_t two;  // one load for two entries, because loads limit this loop
                std::memcpy(&two, e + i, sizeof two);
                const float *from = shifted + uint32_t(two), *next = shifted + (two >> 32);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) s[i][r] += load<true>(from + r * LANES, 0);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) s[i + 1][r] += load<true>(next + r * LANES, 0);
            }
        for (; e < end; ++e)
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) s[0][r] += load<true>(shifted + *e + r * LANES, 0);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            store<true>(SUMS == 4 ? (s[0][r] + s[2 % SUMS][r]) + (s[1][r] + s[3 % SUMS][r]) : s[0][r] + s[1][r], sums + r * LANES, 0);
    }
}

using AddEvents = void (*)(const ChannelLists&, const OutputPixel*, int64_t, const int64_t*, int64_t, const float*, int64_t, float*, int64_t);

inline AddEvents add_events_of(int64_t block, int64_t registers) {
    if (block <= 32) return registers == 4 ? add_events<4, 4> : registers == 2 ? add_events<2, 4> : add_events<1, 4>;
    return registers == 8 ? add_events<8, 2> : add_events<4, 2>;
}

inline void write_out(const ConvTask& task, int64_t image, int64_t first, int64_t pixels, int64_t channel, const float* sums) {
    const ConvShape& shape = task.shape;
    const int64_t size = shape.out_height * shape.out_width, total = task.conv.out_channels;
    const int64_t channels = total - channel < shape.block ? total - channel : shape.block;
    const float* bias = task.bias ? task.bias + channel : nullptr;
    const float scale = task.scale;
    if (task.conv.channels_last) {
        float* out = task.out + (image * size + first) * total + channel;
        for (int64_t p = 0; p < pixels; ++p, out += total, sums += shape.block) {
            int64_t k = 0;
            for (; k + LANES <= channels; k += LANES) {
                Floats value = load<true>(sums + k, 0) * scale;
                if (bias) value += load<true>(bias + k, 0);
                store<true>(value, out + k, 0);
            }
            for (; k < channels; ++k) out[k] = sums[k] * scale + (bias ? bias[k] : 0);
        }
        return;
    }
    float* out = task.out + (image * total + channel) * size + first;
    for (int64_t k = 0; k < channels; ++k, out += size)
        for (int64_t p = 0; p < pixels; ++p) out[p] = sums[p * shape.block + k] * scale + (bias ? bias[k] : 0);
}

// Unit: a part of the output, and one of `splits` shares of the blocks of output channels.
bool forward_unit(const ConvTask& task, int64_t unit) {
    const SpikeConv& conv = task.conv;
    const ConvShape& shape = task.shape;
    const ConvPart part(task.plan, shape, shape.out_height, unit / task.plan.splits);
    const ChannelLists lists(task, part);
    const int64_t images = part.image1 - part.image0, rows = part.row1 - part.row0;
    const int64_t per_image = rows * shape.out_width, pixels = images * per_image;
    Room<OutputPixel> pixel(pixels);
    Room<int64_t> offset(shape.taps);
    const int64_t as_one = lists.taps_as_one, groups = shape.taps / as_one, tap_size = ChannelLists::tap_size(task);
    for (int64_t n = 0, p = 0; n < images; ++n)
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < shape.out_width; ++j, ++p)
                pixel[p] = {(n * lists.rows + i * conv.stride[0]) * lists.columns + j * conv.stride[1],
                            as_one > 1 ? j * conv.stride[1] * tap_size : 0};
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t t = g * as_one;
        offset[g] = t / conv.kernel[1] * conv.dilation[0] * lists.columns + t % conv.kernel[1] * conv.dilation[1];
    }
    const int64_t group_size = as_one * tap_size, group_bytes = group_size * int64_t(sizeof(float));
    const int64_t together = group_bytes > WEIGHT_BYTES ? 1 : WEIGHT_BYTES / group_bytes;
    const int64_t most = registers_of(shape.block), registers = shape.block <= 32 && most > 4 ? 4 : most;
    const AddEvents add = add_events_of(shape.block, registers);
    Room<float> sums(PIXELS_TOGETHER * shape.block);
    const int64_t split = unit % task.plan.splits, splits = task.plan.splits;
    for (int64_t b = shape.blocks * split / splits; b < shape.blocks * (split + 1) / splits; ++b) {
        const float* weights = task.packed + b * shape.taps * tap_size;
        for (int64_t p = 0; p < pixels; p += PIXELS_TOGETHER) {
            const int64_t count = pixels - p < PIXELS_TOGETHER ? pixels - p : PIXELS_TOGETHER;
            std::memset(sums.get(), 0, size_t(count * shape.block) * sizeof(float));
            for (int64_t g = 0; g < groups; g += together)
                for (int64_t k = 0; k < shape.block; k += registers * LANES)
                    add(lists, pixel.get() + p, count, offset.get() + g, groups - g < together ? groups - g : together,
                        weights + g * group_size + k, group_size, sums.get() + k, shape.block);
            for (int64_t q = 0; q < count;) {
                const int64_t n = (p + q) / per_image, first = (p + q) % per_image;
                const int64_t run = per_image - first < count - q ? per_image - first : count - q;
                write_out(task, part.image0 + n, part.row0 * shape.out_width + first, run, b * shape.block, sums.get() + q * shape.block);
                q += run;
            }
        }
    }
    return true;
}

}  // namespace
