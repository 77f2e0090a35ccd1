// The driver of the spike convolution: checks a call, cuts it into units of work and gives them to threads. Results do
// not depend on the number of threads: an output belongs to one unit, and sums over units are added up in a fixed
// order.
#include <memory>
#include <new>
#include <vector>

#include "conv_plan.h"

extern const ConvLoops steadyspike_conv_base;
#if defined(STEADYSPIKE_X86)
extern const ConvLoops steadyspike_conv_avx2, steadyspike_conv_avx512;
#endif

namespace {

// bytes of the gradient that stay in the second-level cache, and about those that stay in the first
constexpr int64_t TILE_BYTES = 96 << 10, INPUT_TILE_BYTES = 44 << 10;
constexpr int64_t UNITS = 16;             // parts of the weight gradient, if splitting the images can make this many
constexpr int64_t TILES = 96;             // of a unit of the full input gradient: a multiple of the tiles that are multiplied at a time
// Bytes of a kernel row's weights up to which its lists are one list. It is twice as many if few channels of a pixel fire
// on average: the processor mispredicts the end of a list, which then takes longer than loading weights from the
// second-level cache.
constexpr int64_t ROW_BYTES = 48 << 10, FEW = 12;
constexpr int64_t MAX_PHASES = 64, MAX_INDEX = int64_t(1) << 31;

bool in(int64_t value, int64_t low, int64_t end) { return low <= value && value < end; }

const ConvLoops& loops_for(const SpikeConv& c) { return conv_loops(c.isa); }

// Parts whose tile of the gradient has about this many bytes, including borders, for `width` output channels at a time.
ConvPlan cut_tiles(const SpikeConv& c, const ConvShape& shape, int64_t width, int64_t bytes) {
    const int64_t columns = ceil(c.width + 2 * c.padding[1], c.stride[1]) + (c.kernel[1] - 1) * c.dilation[1] / c.stride[1];
    const int64_t border = (c.kernel[0] - 1) * c.dilation[0] / c.stride[0];
    const int64_t tile_rows = larger(1, bytes / (columns * width * (shape.pair > 1 ? 3 : 1) * int64_t(sizeof(float))));
    const int64_t height = ceil(c.height, c.stride[0]) + border;
    const int64_t images = tile_rows / height, rows = larger(1, tile_rows - border) * c.stride[0];
    ConvPlan plan = cut(shape.images, c.height, c.width, (images > 1 ? images * c.height : rows) * c.width);
    plan.width = width;
    return plan;
}

int64_t forward(const SpikeConv& c, const float* packed, float scale, const float* bias, float* out) {
    const ConvShape shape = conv_shape(c);
    ConvPlan plan = cut_forward(shape.images, shape, 1, c.threads);
    if (plan.parts < 2 * c.threads) plan.splits = smaller(shape.blocks, ceil(2 * c.threads, plan.parts));
    const ConvTask task{c, shape, plan, packed, bias, nullptr, scale, nullptr, lists_by_row(c)};
    const int64_t image = shape.out_height * shape.out_width * c.out_channels;
    // Unit: a part of the output, and one of `splits` shares of the blocks of output channels.
    return run(c.threads, plan.parts * plan.splits, [&](int64_t unit) {
        const ConvPart part(plan, shape, shape.out_height, unit / plan.splits);
        const int64_t split = unit % plan.splits, first = part.row0 * shape.out_width;
        const ForwardArea area{part.image0, part.image1 - part.image0, 1, 0, part.row0, part.row1};
        loops_for(c).forward(task, area, shape.blocks * split / plan.splits, shape.blocks * (split + 1) / plan.splits,
                             out + part.image0 * image + first * (c.channels_last ? c.out_channels : 1));
        return true;
    });
}

int64_t weight_gradient(const SpikeConv& c, const float* g, const float* level, int64_t levels, const ConvWeight& gradient) {
    const ConvShape shape = conv_shape(c, c.steps > 1 ? 2 : 1);
    // If fewer taps read a pixel, more channels are needed for the same number of sums at a time.
    const int64_t taps = ceil(c.kernel[0], c.stride[0]) * ceil(c.kernel[1], c.stride[1]);
    ConvPlan plan = cut_tiles(c, shape, smaller(shape.block, taps > 4 ? 16 : taps > 2 ? 32 : 64), TILE_BYTES);
    plan.chunk = smaller(ceil(c.in_channels, 64) * 64, shape.taps >= 9 ? 128 : 512);
    const int64_t chunks = conv_chunks(c, plan);
    plan.splits = smaller(plan.parts, ceil(UNITS, chunks * shape.blocks));
    const int64_t size = shape.taps * plan.chunk * shape.block, units = plan.splits * shape.blocks * chunks;
    const std::unique_ptr<float[]> sums(new float[size_t(units * size)]);
    const ConvTask task{c, shape, plan, nullptr, nullptr, g, 1, sums.get(), false};
    const int64_t status = run(c.threads, units, [&](int64_t unit) { return loops_for(c).weight_gradient(task, unit); });
    if (status != CONV_OK) return status;
    return run(c.threads, shape.blocks, [&](int64_t b) {
        const int64_t first = b * shape.block, channels = smaller(shape.block, c.out_channels - first);
        std::vector<float> sum(static_cast<size_t>(shape.block));
        for (int64_t i = 0; i < c.in_channels; ++i)
            for (int64_t t = 0; t < shape.taps; ++t) {
                for (int64_t k = 0; k < channels; ++k) sum[size_t(k)] = 0;
                for (int64_t s = 0; s < plan.splits; ++s) {
                    const float* from = sums.get() + ((s * shape.blocks + b) * chunks + i / plan.chunk) * size +
                                        (i % plan.chunk * shape.taps + t) * shape.block;
                    for (int64_t k = 0; k < channels; ++k) sum[size_t(k)] += from[k];
                }
                float* to = gradient.data + first * gradient.stride[0] + i * gradient.stride[1] +
                            t / c.kernel[1] * gradient.stride[2] + t % c.kernel[1] * gradient.stride[3];
                const float factor = level[levels > 1 ? i : 0];
                for (int64_t k = 0; k < channels; ++k) to[k * gradient.stride[0]] = sum[size_t(k)] * factor;
            }
        return true;
    });
}

int64_t input_gradient(const SpikeConv& c, const float* packed, const float* g, float* dx) {
    const ConvShape shape = conv_shape(c);
    const ConvPlan plan = cut_tiles(c, shape, shape.block, INPUT_TILE_BYTES);
    const ConvTask task{c, shape, plan, packed, nullptr, g, 1, dx, false};
    return run(c.threads, plan.parts, [&](int64_t unit) { return loops_for(c).input_gradient(task, unit); });
}

int64_t full_input_gradient(const SpikeConv& c, const ConvWeight& weight, const float* g, float* dx) {
    const ConvShape shape = conv_shape(c);
    const int64_t block = block_of(c.in_channels), blocks = ceil(c.in_channels, block);
    const std::unique_ptr<float[]> packed(new float[size_t(16 * blocks * (c.out_channels * block + 16))]);
    const int64_t status = run(c.threads, blocks, [&](int64_t unit) {
        loops_for(c).pack_winograd(c, weight, unit, packed.get());
        return true;
    });
    if (status != CONV_OK) return status;
    ConvPlan plan{};
    plan.images = TILES;
    plan.parts = ceil(shape.images * ceil(c.height, 2) * ceil(c.width, 2), plan.images);
    const ConvTask task{c, shape, plan, packed.get(), nullptr, g, 1, dx, false};
    return run(c.threads, plan.parts, [&](int64_t unit) { return loops_for(c).winograd(task, unit); });
}

template <class F>
int64_t checked(const SpikeConv* c, F f) {
    if (!conv_is_valid(*c)) return CONV_BAD_ARGUMENT;
    try {
        return f(*c);
    } catch (const std::bad_alloc&) {
        return CONV_OUT_OF_MEMORY;
    }
}

}  // namespace

const ConvLoops& conv_loops(int64_t isa) {
#if defined(STEADYSPIKE_X86)
    static const ConvLoops* const LOOPS[] = {&steadyspike_conv_base, &steadyspike_conv_avx2, &steadyspike_conv_avx512};
#else
    static const ConvLoops* const LOOPS[] = {&steadyspike_conv_base};
#endif
    return for_isa(LOOPS, isa);
}

bool conv_is_valid(const SpikeConv& c) {
    for (const int64_t size : {c.steps, c.batch, c.in_channels, c.height, c.width, c.out_channels})
        if (!in(size, 1, MAX_INDEX)) return false;
    for (int axis = 0; axis < 2; ++axis) {
        if (!in(c.kernel[axis], 1, MAX_INDEX) || !in(c.stride[axis], 1, MAX_INDEX) || !in(c.dilation[axis], 1, MAX_INDEX) ||
            !in(c.padding[axis], 0, MAX_INDEX))
            return false;
        const int64_t size = (axis ? c.width : c.height) + 2 * c.padding[axis];
        if (c.dilation[axis] * (c.kernel[axis] - 1) + 1 > size) return false;
    }
    const int64_t step = c.batch * c.pixel_bits * c.height * c.width;
    if (c.channels_last ? !in(c.pixel_bits, c.in_channels, MAX_INDEX) : c.pixel_bits != c.in_channels) return false;
    return c.isa < steadyspike_isas() && c.words >= (step + 63) / 64 && c.stride[0] * c.stride[1] <= MAX_PHASES &&
           in((c.height + 2 * c.padding[0]) * (c.width + 2 * c.padding[1]), 1, MAX_INDEX / MAX_BLOCK) &&
           in(c.pixel_bits * c.height * c.width, 1, MAX_INDEX) && in(c.in_channels * MAX_BLOCK, 1, MAX_INDEX);
}

bool lists_by_row(const SpikeConv& c) {
    const int64_t tap = c.in_channels * block_of(c.out_channels), bytes = c.kernel[1] * tap * int64_t(sizeof(float));
    const int64_t columns = c.width + 2 * c.padding[1];
    if (c.dilation[1] > 1 || bytes > 2 * ROW_BYTES || (columns + 1) * tap >= MAX_INDEX) return false;  // entries have 32 bits
    return bytes <= ROW_BYTES || loops_for(c).count(c.bits, c.steps * c.words) <= FEW * c.steps * c.batch * c.height * c.width;
}

extern "C" {

int64_t steadyspike_conv_packed_size(const SpikeConv* c) {
    if (!conv_is_valid(*c)) return -1;
    const ConvShape shape = conv_shape(*c);
    return shape.blocks * shape.taps * c->in_channels * shape.block;
}

int64_t steadyspike_conv_pack(const SpikeConv* conv, const ConvWeight* weight, const float* level, int64_t order, float* packed) {
    if (!in(order, BY_TAP, BY_CHANNEL + 1)) return CONV_BAD_ARGUMENT;
    return checked(conv, [&](const SpikeConv& c) {
        const ConvShape shape = conv_shape(c);
        return run(c.threads, shape.blocks,
                   [&](int64_t unit) { return loops_for(c).pack(c, shape, *weight, level, order, unit, packed); });
    });
}

int64_t steadyspike_conv_forward(const SpikeConv* conv, const float* packed, float scale, const float* bias, float* out) {
    return checked(conv, [&](const SpikeConv& c) { return forward(c, packed, scale, bias, out); });
}

int64_t steadyspike_conv_weight_gradient(const SpikeConv* conv, const float* g, const float* level, int64_t levels,
                                         const ConvWeight* gradient) {
    if ((levels != 1 && levels != conv->in_channels) || conv->pixel_bits != conv->in_channels) return CONV_BAD_ARGUMENT;
    return checked(conv, [&](const SpikeConv& c) { return weight_gradient(c, g, level, levels, *gradient); });
}

int64_t steadyspike_conv_input_gradient(const SpikeConv* conv, const float* packed, const float* g, float* dx) {
    if (conv->pixel_bits != conv->in_channels) return CONV_BAD_ARGUMENT;
    return checked(conv, [&](const SpikeConv& c) { return input_gradient(c, packed, g, dx); });
}

int64_t steadyspike_conv_full_input_gradient(const SpikeConv* conv, const ConvWeight* weight, const float* g, float* dx) {
    for (int axis = 0; axis < 2; ++axis)
        if (conv->kernel[axis] != 3 || conv->stride[axis] != 1 || conv->dilation[axis] != 1 || !conv->channels_last) return CONV_BAD_ARGUMENT;
    return checked(conv, [&](const SpikeConv& c) { return full_input_gradient(c, *weight, g, dx); });
}

int64_t steadyspike_conv_abi() { return int64_t(1000 + sizeof(SpikeConv)); }
}
