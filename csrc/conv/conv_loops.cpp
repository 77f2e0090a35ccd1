// The loops of the spike convolution for one instruction set, named by STEADYSPIKE_CONV. Everything except that table
// has internal linkage, so no code for a newer CPU can be used by the common path.
#include "conv_forward.h"
#include "conv_input.h"
#include "conv_weight.h"
#include "conv_winograd.h"

namespace {

constexpr int64_t CHANNELS = 64, LINE = 16;  // bytes of input and output together: they stay in the first-level cache

// Block `unit` of output channels. False: a value is not finite.
bool pack_unit(const SpikeConv& conv, const ConvShape& shape, const ConvWeight& weight, const float* level, int64_t order,
               int64_t unit, float* packed) {
    const int64_t first = unit * shape.block, rest = conv.out_channels - first, channels = rest < shape.block ? rest : shape.block;
    float* const block = packed + unit * shape.taps * conv.in_channels * shape.block;
    if (channels < shape.block) std::memset(block, 0, size_t(shape.taps * conv.in_channels * shape.block) * sizeof(float));
    Room<int64_t> tap(shape.taps);
    for (int64_t t = 0; t < shape.taps; ++t)
        tap[t] = t / conv.kernel[1] * weight.stride[2] + t % conv.kernel[1] * weight.stride[3];
    const int64_t by_channel = order == BY_TAP ? 1 : shape.taps, by_tap = order == BY_TAP ? conv.in_channels : 1;
    uint32_t infinite = 0;
    for (int64_t c0 = 0; c0 < conv.in_channels; c0 += CHANNELS)
        for (int64_t k0 = 0; k0 < channels; k0 += LINE) {
            const int64_t count = conv.in_channels - c0 < CHANNELS ? conv.in_channels - c0 : CHANNELS;
            for (int64_t t = 0; t < shape.taps; ++t)
                for (int64_t k = k0; k < channels && k < k0 + LINE; ++k) {
                    const float* from = weight.data + (first + k) * weight.stride[0] + c0 * weight.stride[1] + tap[t];
                    float* to = block + (c0 * by_channel + t * by_tap) * shape.block + k;
                    for (int64_t c = 0; c < count; ++c) {
                        const float value = level ? level[c0 + c] * from[c * weight.stride[1]] : from[c * weight.stride[1]];
                        infinite |= is_infinite(value);
                        to[c * by_channel * shape.block] = value;
                    }
                }
        }
    return infinite == 0;
}

int64_t count_words(const uint64_t* words, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += __builtin_popcountll(words[i]);
    return count;
}

}  // namespace

extern const ConvLoops STEADYSPIKE_CONV;
const ConvLoops STEADYSPIKE_CONV = {forward_area, weight_gradient_unit, input_gradient_unit, winograd_unit,
                                     count_words,  pack_unit,            pack_winograd_unit};
