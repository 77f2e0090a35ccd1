// The sums of the forward. Every pixel gets the list of its active channels. For every output pixel and block of output
// channels, the weights of the active channels below it are summed.
#pragma once
#include "conv_lists.h"
#include "units.h"

namespace {

// bytes of weights that are processed at a time: they stay in the first-level cache
constexpr int64_t WEIGHT_BYTES = 36 << 10;
constexpr int64_t PIXELS_TOGETHER = 128;    // output pixels per pass over those weights
constexpr int64_t AT_ONCE = 16;             // entries that are copied without a check of how many there are

// Lists of active channels, times the block, on a grid of input pixels; the pixels of the padding are empty. The lists
// of neighbours in a row are adjacent in memory, so the lists under a whole kernel row are one list. An entry then also
// has its column, times the size of a tap, from which its tap follows. If the weights of a whole kernel stay in the
// first-level cache, the lists under it are one list, too (`join_rows`).
struct ChannelLists {
    int64_t rows, columns;                    // pixels of the grid, per image
    // the first row's position in the image; the rows of the image on the grid
    int64_t top, begin, end;
    int64_t total;                            // active channels of all pixels
    int64_t taps_as_one;                      // the taps whose pixels have one list
    Room<uint32_t> starts, entries;

    ChannelLists(const ConvTask& task, const ForwardArea& area)
        : rows((area.row1 - area.row0 - 1) * task.conv.stride[0] + (task.conv.kernel[0] - 1) * task.conv.dilation[0] + 1),
          columns((task.shape.out_width - 1) * task.conv.stride[1] + (task.conv.kernel[1] - 1) * task.conv.dilation[1] + 1),
          top(area.row0 * task.conv.stride[0] - task.conv.padding[0]), begin(top < 0 ? 0 : top),
          end(top + rows < task.conv.height ? top + rows : task.conv.height),
          total(end > begin ? count_bits(task.conv, area, begin, end) : 0),
          taps_as_one(task.by_row ? task.conv.kernel[1] : 1),
          starts(area.images() * rows * columns + 1), entries(total + AT_ONCE) {
        const SpikeConv& conv = task.conv;
        PixelWords words(conv, end > begin ? end - begin : 1);
        uint32_t *next = entries.get(), *start = starts.get();
        const uint32_t block = uint32_t(task.shape.block);
        const uint32_t step = taps_as_one > 1 ? uint32_t(tap_size(task)) : 0;
        for (int64_t n = 0; n < area.images(); ++n) {
            if (end > begin) words.load(area.image(n), begin, end);
            for (int64_t r = 0; r < rows; ++r) {
                const int64_t i = top + r;
                const bool row_read = i >= 0 && i < conv.height && read(r, 0, conv);
                for (int64_t q = 0; q < columns; ++q) {
                    const int64_t j = q - conv.padding[1];
                    *start++ = uint32_t(next - entries.get());
                    if (!row_read || j < 0 || j >= conv.width || !read(q, 1, conv)) continue;
                    next = words.append_to(next, i, j, uint32_t(q) * step, block);
                }
            }
        }
        *start = uint32_t(next - entries.get());
        const int64_t bytes = task.shape.taps * tap_size(task) * int64_t(sizeof(float));
        if (taps_as_one > 1 && conv.kernel[0] > 1 && bytes <= WEIGHT_BYTES) join_rows(task, area);
    }

    static int64_t tap_size(const ConvTask& task) { return task.conv.in_channels * task.shape.block; }

    // Whether a tap reads grid line q: not all do if the stride is larger than the kernel.
    static bool read(int64_t q, int axis, const SpikeConv& conv) {
        return conv.stride[axis] == 1 || conv.kernel[axis] >= conv.stride[axis] || conv.dilation[axis] > 1 ||
               q % conv.stride[axis] < conv.kernel[axis];
    }

  private:
    // Joins the lists of the pixels of a column that the rows of a kernel read. The grid then has a row for every row
    // of the output, and the lists under a whole kernel are one list.
    void join_rows(const ConvTask& task, const ForwardArea& area) {
        const SpikeConv& conv = task.conv;
        const int64_t images = area.images(), out_rows = area.row1 - area.row0, down = conv.dilation[0] * columns;
        const uint32_t by_row = uint32_t(conv.kernel[1] * tap_size(task));
        Room<uint32_t> joined(conv.kernel[0] * total + AT_ONCE), joined_starts(images * out_rows * columns + 1);
        uint32_t *next = joined.get(), *start = joined_starts.get();
        for (int64_t n = 0; n < images; ++n)
            for (int64_t r = 0; r < out_rows; ++r) {
                const uint32_t* at = starts.get() + (n * rows + r * conv.stride[0]) * columns;
                for (int64_t q = 0; q < columns; ++q, ++at) {
                    *start++ = uint32_t(next - joined.get());
                    const uint32_t* pixel = at;
                    uint32_t more = 0;
                    for (int64_t a = 0; a < conv.kernel[0]; ++a, pixel += down, more += by_row) {
                        const uint32_t* const list = entries.get() + pixel[0];
                        const int64_t length = int64_t(pixel[1]) - int64_t(pixel[0]);
                        const auto copy = [&](int64_t e) { put<true>(take<true, Words>(list + e, 0) + more, next + e, 0); };
#pragma GCC unroll 4
                        for (int64_t e = 0; e < AT_ONCE; e += LANES) copy(e);
                        for (int64_t e = AT_ONCE; e < length; e += LANES) copy(e);
                        next += length;
                    }
                }
            }
        *start = uint32_t(next - joined.get());
        starts = std::move(joined_starts);
        entries = std::move(joined);
        rows = out_rows;
        taps_as_one = task.shape.taps;
    }
};

// An output pixel: the grid pixel under its first tap, and the column that entries there have.
struct OutputPixel {
    int64_t grid, column;
};

// The lists of some output pixels under one group of taps. They are ordered by their lengths: the processor then predicts
// where a list ends, because the one before it was about as long. Lists of single taps belong to layers of many channels;
// they are long enough without an order.
struct PixelLists {
    struct Pixel {
        const uint32_t* list;
        uint32_t length, number;              // number: of the output pixel
        int64_t column;
    };
    Room<Pixel> pixels;
    Room<uint32_t> ends;

    explicit PixelLists(int64_t longest) : pixels(PIXELS_TOGETHER), ends(longest + 2) {}

    void fill(const ChannelLists& lists, const OutputPixel* pixel, int64_t count, int64_t offset, int64_t columns) {
        const uint32_t* const starts = lists.starts.get() + offset;
        if (columns == 1) {
            for (int64_t p = 0; p < count; ++p) {
                const uint32_t* const at = starts + pixel[p].grid;
                pixels[p] = {lists.entries.get() + at[0], at[1] - at[0], uint32_t(p), pixel[p].column};
            }
            return;
        }
        uint32_t lengths[PIXELS_TOGETHER], most = 0;
        for (int64_t p = 0; p < count; ++p) {
            const uint32_t* const at = starts + pixel[p].grid;
            lengths[p] = at[columns] - at[0];
            most = lengths[p] > most ? lengths[p] : most;
        }
        std::memset(ends.get(), 0, size_t(most + 2) * sizeof(uint32_t));
        for (int64_t p = 0; p < count; ++p) ++ends[lengths[p] + 1];
        for (uint32_t n = 0; n < most; ++n) ends[n + 1] += ends[n];
        for (int64_t p = 0; p < count; ++p)
            pixels[ends[lengths[p]]++] = {lists.entries.get() + starts[pixel[p].grid], lengths[p], uint32_t(p), pixel[p].column};
    }
};

// The sums of `count` output pixels: begun `from` here, [pixel][block], or at 0 if null, and written `to` there. The
// final sums are multiplied by `scale`, and `bias` is added unless it is null.
struct Sums {
    const float* from;
    float* to;
    int64_t count, from_stride, to_stride;
    bool final;
    float scale;
    const float* bias;
};

// Adds the weights of the entries of every list to the pixel's sums, R registers each. The entries are added to SUMS
// sums in turn, because each addition to a sum waits for the previous one.
template <int R, int SUMS>
void add_events(const PixelLists& lists, const float* weights, const Sums& sums) {
    for (int64_t p = 0; p < sums.count; ++p) {
        const PixelLists::Pixel& pixel = lists.pixels[p];
        const uint32_t *e = pixel.list, *const end = e + pixel.length;
        const float* const shifted = weights - pixel.column;
        float* const to = sums.to + pixel.number * sums.to_stride;
        Floats s[SUMS][R] = {};
        if (sums.from)
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) s[0][r] = load<true>(sums.from + pixel.number * sums.from_stride + r * LANES, 0);
        for (; e + (SUMS - 1) < end; e += SUMS)
#pragma GCC unroll 2
            for (int i = 0; i < SUMS; i += 2) {
                uint64_t two;  // one load for two entries, because loads limit this loop
                std::memcpy(&two, e + i, sizeof two);
                const float *const from = shifted + uint32_t(two), *const next = shifted + (two >> 32);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) s[i][r] += load<true>(from + r * LANES, 0);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) s[i + 1][r] += load<true>(next + r * LANES, 0);
            }
        for (; e < end; ++e)
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) s[0][r] += load<true>(shifted + *e + r * LANES, 0);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            Floats value = SUMS == 4 ? (s[0][r] + s[2 % SUMS][r]) + (s[1][r] + s[3 % SUMS][r]) : s[0][r] + s[1][r];
            if (sums.final) {
                value *= sums.scale;
                if (sums.bias) value += load<true>(sums.bias + r * LANES, 0);
            }
            store<true>(value, to + r * LANES, 0);
        }
    }
}

using AddEvents = void (*)(const PixelLists&, const float*, const Sums&);

inline AddEvents add_events_of(int64_t block, int64_t registers) {
    if (block <= 32) return registers == 4 ? add_events<4, 4> : registers == 2 ? add_events<2, 4> : add_events<1, 4>;
    return registers == 8 ? add_events<8, 2> : add_events<4, 2>;
}

// The lists under the output pixels of an area, and the sums of their weights. Pixels are in the order [image][pixel],
// or with several images `together` in [image / together][pixel][image % together].
struct AreaSums {
    const ConvTask& task;
    const int64_t pixels;
    ChannelLists lists;
    // of taps that have one list, and of the weights of such a group
    const int64_t groups, columns, group_size;
    const int64_t registers;
    const AddEvents add;
    PixelLists ordered;
    Room<OutputPixel> pixel;
    Room<float> own;                          // sums that are not final

    AreaSums(const ConvTask& t, const ForwardArea& area, int64_t together = 1)
        : task(t), pixels(area.images() * (area.row1 - area.row0) * t.shape.out_width), lists(t, area),
          groups(t.shape.taps / lists.taps_as_one), columns(lists.taps_as_one > 1 ? t.conv.kernel[1] : 1),
          group_size(lists.taps_as_one * ChannelLists::tap_size(t)), registers(registers_at_once(t.shape.block)),
          add(add_events_of(t.shape.block, registers)), ordered(lists.taps_as_one * t.conv.in_channels), pixel(pixels),
          own(PIXELS_TOGETHER * t.shape.block) {
        const SpikeConv& conv = task.conv;
        const int64_t as_one = lists.taps_as_one, down = as_one > columns ? 1 : conv.stride[0], size = lists.rows * lists.columns;
        const int64_t tap_size = as_one > 1 ? ChannelLists::tap_size(task) : 0;
        OutputPixel* next = pixel.get();
        for (int64_t n = 0; n < area.images(); n += together)
            for (int64_t i = 0; i < area.row1 - area.row0; ++i)
                for (int64_t j = 0; j < task.shape.out_width; ++j)
                    for (int64_t k = n; k < n + together; ++k)
                        *next++ = {k * size + i * down * lists.columns + j * conv.stride[1], j * conv.stride[1] * tap_size};
    }

    // Computes `sums` of block b for at most PIXELS_TOGETHER pixels, beginning with pixel `first`.
    void compute(int64_t b, int64_t first, const Sums& sums) {
        const SpikeConv& conv = task.conv;
        const int64_t block = task.shape.block;
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t t = g * lists.taps_as_one;
            ordered.fill(lists, pixel.get() + first, sums.count,
                         t / conv.kernel[1] * conv.dilation[0] * lists.columns + t % conv.kernel[1] * conv.dilation[1], columns);
            const bool last = g == groups - 1;
            for (int64_t k = 0; k < block; k += registers * LANES) {
                const float* const from = g ? own.get() : sums.from;
                add(ordered, task.packed + (b * groups + g) * group_size + k,
                    {from ? from + k : nullptr, (last ? sums.to : own.get()) + k, sums.count, g ? block : sums.from_stride,
                     last ? sums.to_stride : block, last && sums.final, sums.scale, sums.bias ? sums.bias + k : nullptr});
            }
        }
    }

    static int64_t registers_at_once(int64_t block) {
        const int64_t most = registers_of(block);
        return block <= 32 && most > 4 ? 4 : most;
    }
};

}  // namespace
