// The gradient of the output, copied for some channels to a tile with zeros around it. The neighbours of an input pixel
// are then at fixed distances, and none needs a check. For a pair of steps, a pixel has the gradients of both and their
// sum.
//
// Input row i is read by output row (i + padding - a dilation) / stride under tap a, if the division is exact. Let q =
// (i + padding) / stride, with the remainder as its phase. The tap's rows are those of phase (a dilation) % stride, at
// q - (a dilation) / stride.
#pragma once
#include "conv_lists.h"

namespace {

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
    int64_t rows, columns, row0 = -1, row1 = -1, image_size;
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

    // Calls f(n, i, j, phase, position) for the pixels of a part's rows that a tap reads; load(n) comes before those of
    // image n.
    template <class Load, class F>
    void for_pixels(const ConvPart& part, Load load, F f) const {
        for (int64_t n = 0; n < part.image1 - part.image0; ++n) {
            load(n);
            for (int64_t i = part.row0; i < part.row1; ++i) {
                if (!down.meets(i)) continue;
                const int64_t phase = down.phase(i) * across.stride;
                const int64_t place = n * image_size + (down.place(i) - down.place(part.row0)) * columns * pixel;
                for (int64_t j = 0; j < task.conv.width; ++j)
                    if (column_phase[j] >= 0) f(n, i, j, phase + column_phase[j], place + column_place[j]);
            }
        }
    }
    // The number of pixels of one phase that a part can have.
    int64_t capacity() const {
        return task.plan.images * ((task.plan.rows - 1) / down.stride + 1) * ((task.conv.width - 1) / across.stride + 1);
    }

    // Channels [channel, channel + width) of the output's gradient that the part's input pixels need. False: not all
    // are finite.
    bool copy(const ConvPart& part, int64_t channel) {
        const ConvShape& shape = task.shape;
        if (part.row0 != row0 || part.row1 != row1) {
            row0 = part.row0, row1 = part.row1;
            std::memset(values.get(), 0, size_t(task.plan.images * image_size) * sizeof(float));
        }
        const int64_t total = task.conv.out_channels, size = shape.out_height * shape.out_width;
        const int64_t channels = total - channel < width ? total - channel : width;
        const int64_t used = down.extent(row0, row1), left = across.place(0) - across.border;
        const int64_t begin = left < 0 ? -left : 0, end = shape.out_width - left < columns ? shape.out_width - left : columns;
        const bool last = task.conv.channels_last;
        const int64_t per_pixel = last ? total : 1, per_channel = last ? 1 : size;
        uint32_t infinite = 0;
        for (int64_t n = part.image0; n < part.image1; ++n) {
            const StepsOf steps(task.conv, shape, n);
            for (int64_t r = 0; r < used; ++r) {
                const int64_t i = r + down.place(row0) - down.border;
                if (i < 0 || i >= shape.out_height) continue;
                const int64_t first = i * shape.out_width + begin + left;
                const float* from = task.g + steps.image * size * total + channel * per_channel + first * per_pixel;
                float* to = values.get() + (n - part.image0) * image_size + (r * columns + begin) * pixel;
                infinite |= copy_row(from, steps.count > 1 ? from + task.conv.batch * size * total : nullptr, per_pixel,
                                     per_channel, end - begin, channels, to);
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

}  // namespace
