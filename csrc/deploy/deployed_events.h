// The events under a unit's pixels: lists of active channels, and the sums of their weights.
//
// An entry is (column * in_channels + channel) * block for a column of the padded input. The weights of tap (a, b)
// start at (a * kernel columns + b) * in_channels * block. With a dilation of 1, the weights of the event under the tap
// (a, b) of output column j are at the entry plus a * kernel columns * in_channels * block - j * stride * in_channels *
// block. The lists of all columns under one row of the kernel are therefore one list, processed by one loop.
#pragma once
#include "../conv/conv_lists.h"
#include "deployed_abi.h"

namespace {

// bytes of weights of one kernel row: processed at once if the second-level cache holds them
constexpr int64_t ROW_BYTES = 256 << 10;

struct Events {
    const LayerSource& source;
    const SpikeConv& conv;
    const ConvShape shape;
    const int64_t steps, rows, columns, tap_size;
    Room<uint32_t> starts;                    // of each pixel's list, on a grid with empty pixels for the padding
    std::unique_ptr<uint32_t[]> entries;

    Events(const LayerSource& from, const ConvPart& part, int64_t together)
        : source(from), conv(from.conv), shape(conv_shape(conv)), steps(together),
          rows((part.row1 - part.row0 - 1) * conv.stride[0] + (conv.kernel[0] - 1) * conv.dilation[0] + 1),
          columns((shape.out_width - 1) * conv.stride[1] + (conv.kernel[1] - 1) * conv.dilation[1] + 1),
          tap_size(conv.in_channels * shape.block), starts((part.image1 - part.image0) * rows * columns + 1) {
        const int64_t top = part.row0 * conv.stride[0] - conv.padding[0], last = top + rows;
        const int64_t begin = top < 0 ? 0 : top, end = last < conv.height ? last : conv.height;
        const int64_t pixels = end > begin ? (end - begin) * conv.width : 0;
        entries.reset(new uint32_t[size_t((part.image1 - part.image0) * pixels * conv.in_channels + LANES)]);
        PixelWords words(conv, 1);
        uint32_t *next = entries.get(), *start = starts.get();
        const uint32_t block = uint32_t(shape.block);
        for (int64_t image = part.image0; image < part.image1; ++image) {
            words.load(image, begin, end);
            for (int64_t i = top; i < last; ++i)
                for (int64_t q = 0; q < columns; ++q) {
                    const int64_t j = q - conv.padding[1];
                    *start++ = uint32_t(next - entries.get());
                    if (i < 0 || i >= conv.height || j < 0 || j >= conv.width) continue;
                    const uint32_t column = uint32_t(q * conv.in_channels);
                    for (int64_t c = 0; c < conv.in_channels; c += 64)
                        next = append(words.at(i, j, c / 64), conv.in_channels - c < 64 ? conv.in_channels - c : 64,
                                      (column + uint32_t(c)) * block, block, next);
                }
        }
        *start = uint32_t(next - entries.get());
    }

    // The position on the grid of output pixel `pixel` (of the part's rows, one sample after another) at its first
    // step.
    int64_t place(int64_t pixel, int64_t per_sample) const {
        const int64_t i = pixel % per_sample / shape.out_width, j = pixel % shape.out_width;
        return (pixel / per_sample * steps * rows + i * conv.stride[0]) * columns + j * conv.stride[1];
    }

    // Adds the weights of the events under `count` pixels, beginning with pixel `first`, at all steps, to sums
    // [pixel][step][block].
    void add(int64_t first, int64_t count, int64_t per_sample, int64_t b, float* sums) const {
        const bool by_row = conv.dilation[1] == 1 && conv.kernel[1] * tap_size * int64_t(sizeof(float)) <= ROW_BYTES;
        const int64_t width = by_row ? conv.kernel[1] : 1, groups = shape.taps / width;
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t a = g * width / conv.kernel[1], tap = g * width % conv.kernel[1], shift = tap * conv.dilation[1];
            const float* weights = source.packed + (b * shape.taps + g * width) * tap_size;
            const int64_t offset = a * conv.dilation[0] * columns + shift;
            for (int64_t k = 0; k < shape.block; k += 8 * LANES) {
                const int64_t registers = (shape.block - k) / LANES;
                float* const to = sums + k;
                if (registers >= 8) add_group<8>(first, count, per_sample, offset, shift, width, weights + k, to);
                else if (registers == 4) add_group<4>(first, count, per_sample, offset, shift, width, weights + k, to);
                else if (registers == 2) add_group<2>(first, count, per_sample, offset, shift, width, weights + k, to);
                else add_group<1>(first, count, per_sample, offset, shift, width, weights + k, to);
            }
        }
    }

  private:
    template <int R>
    void add_group(int64_t first, int64_t count, int64_t per_sample, int64_t offset, int64_t shift, int64_t width,
                   const float* weights, float* sums) const {
        const int64_t image = rows * columns;
        for (int64_t p = first; p < first + count; ++p) {
            const int64_t column = (p % shape.out_width * conv.stride[1] + shift) * tap_size;
            const uint32_t* at = starts.get() + place(p, per_sample) + offset;
            for (int64_t t = 0; t < steps; ++t, at += image, sums += shape.block) {
                const uint32_t* e = entries.get() + at[0];
                const uint32_t* const end = entries.get() + at[width];
                if (e == end) continue;
                Floats s[R];
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) s[r] = load<true>(sums + r * LANES, 0);
                do {
                    const float* from = weights + (int64_t(*e) - column);
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r) s[r] += load<true>(from + r * LANES, 0);
                } while (++e < end);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) store<true>(s[r], sums + r * LANES, 0);
            }
        }
    }
};

}  // namespace
