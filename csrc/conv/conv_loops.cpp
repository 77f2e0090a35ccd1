// The loops of the spike convolution for one instruction set, as STEADYSPIKE_CONV names them; everything but that one table
// has internal linkage, so no code for a newer CPU can leak into the common path.
#include "conv_forward.h"
#include "conv_input.h"
#include "conv_weight.h"

namespace {

constexpr int64_t TOGETHER = 16;  // input channels: what is read of them lies in a few lines of the cache

// Block `unit` of output channels. False: something is not finite.
bool pack_unit(const SpikeConv& conv, const ConvShape& shape, const ConvWeight& weight, const float* level, int64_t order,
               int64_t unit, float* packed) {
    const int64_t first = unit * shape.block, rest = conv.out_channels - first, channels = rest < shape.block ? rest : shape.block;
    float* const block = packed + unit * shape.taps * conv.in_channels * shape.block;
    if (channels < shape.block) std::memset(block, 0, size_t(shape.taps * conv.in_channels * shape.block) * sizeof(float));
    Room<int64_t> tap(shape.taps);
    for (int64_t t = 0; t < shape.taps; ++t)
        tap[t] = t / conv.kernel[1] * weight.stride[2] + t % conv.kernel[1] * weight.stride[3];
    const int64_t by_channel = order == BY_TAP ? 1 : shape.taps, by_tap = order == BY_TAP ? conv.in_channels : 1;
    float check = 0;  // 0 times what is not finite is NaN
    for (int64_t c0 = 0; c0 < conv.in_channels; c0 += TOGETHER)
        for (int64_t k = 0; k < channels; ++k)
            for (int64_t c = c0; c < conv.in_channels && c < c0 + TOGETHER; ++c) {
                const float factor = level ? level[c] : 1;
                const float* from = weight.data + (first + k) * weight.stride[0] + c * weight.stride[1];
                float* to = block + c * by_channel * shape.block + k;
                for (int64_t t = 0; t < shape.taps; ++t, to += by_tap * shape.block) {
                    const float value = factor * from[tap[t]];
                    check += value * 0;
                    *to = value;
                }
            }
    return check == 0;
}

}  // namespace

extern const ConvLoops STEADYSPIKE_CONV;
const ConvLoops STEADYSPIKE_CONV = {forward_unit, weight_gradient_unit, input_gradient_unit, pack_unit};
