// The forward: the sums of an area of the output, in the output's layout.
#pragma once
#include "conv_sums.h"

namespace {

// Copies the sums of pixels [first, first + count), [pixel][block], to an output of the memory order [channel][pixel].
// to: the channel's first pixel in the area's first image
void write_planes(const ConvTask& task, const ForwardArea& area, int64_t first, int64_t count, int64_t channels, const float* sums,
                  float* to) {
    const int64_t size = task.shape.out_height * task.shape.out_width, per_image = (area.row1 - area.row0) * task.shape.out_width;
    for (int64_t q = 0; q < count;) {
        const int64_t n = (first + q) / per_image, at = (first + q) % per_image, run = smaller(per_image - at, count - q);
        float* out = to + n * task.conv.out_channels * size + at;
        for (int64_t k = 0; k < channels; ++k, out += size)
            for (int64_t p = 0; p < run; ++p) out[p] = sums[(q + p) * task.shape.block + k];
        q += run;
    }
}

// Blocks [block0, block1) of output channels of an area. Its pixels follow each other from `out` on if the layout is
// channels_last; otherwise `out` is the first pixel in channel 0 of the first of adjacent images.
void forward_area(const ConvTask& task, const ForwardArea& area, int64_t block0, int64_t block1, float* out) {
    const SpikeConv& conv = task.conv;
    const int64_t block = task.shape.block, total = conv.out_channels;
    AreaSums area_sums(task, area);
    Room<float> rows(PIXELS_TOGETHER * block), bias(block);
    for (int64_t b = block0; b < block1; ++b) {
        const int64_t channel = b * block, channels = smaller(block, total - channel);
        // The sums are written directly to the output if its layout is theirs.
        const bool direct = conv.channels_last && channels == block;
        for (int64_t k = 0; k < block; ++k) bias[k] = task.bias && k < channels ? task.bias[channel + k] : 0;
        for (int64_t p = 0; p < area_sums.pixels; p += PIXELS_TOGETHER) {
            const int64_t count = smaller(PIXELS_TOGETHER, area_sums.pixels - p);
            float* const to = out + p * total + channel;
            area_sums.compute(b, p, {nullptr, direct ? to : rows.get(), count, block, direct ? total : block, true, task.scale,
                                     task.bias ? bias.get() : nullptr});
            if (direct) continue;
            if (!conv.channels_last)
                write_planes(task, area, p, count, channels, rows.get(), out + channel * task.shape.out_height * task.shape.out_width);
            else
                for (int64_t q = 0; q < count; ++q)
                    std::memcpy(to + q * total, rows.get() + q * block, size_t(channels) * sizeof(float));
        }
    }
}

}  // namespace
