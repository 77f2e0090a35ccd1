// Convolution of spikes: the C ABI that Python calls (kernels/conv/abi.py mirrors the structs), and what its driver
// passes to the loops of one instruction set. A fully connected layer is a 1x1 convolution of images of one row.
#pragma once
#include "export.h"

extern "C" {

// Spikes are bits, [steps][words], with each step in the memory order of its floats: bit i % 64 of word i / 64 is
// element i. A step is [batch][height][width][in_channels] (channels_last) or [batch][in_channels][height][width]; the
// output and its gradient have the same layout. The sizes of the output follow from the other fields. In channels_last the
// bits of a pixel may be more than its channels; for gradients they are equal.
struct SpikeConv {
    int64_t steps, batch, in_channels, height, width, out_channels;
    int64_t kernel[2], stride[2], padding[2], dilation[2];  // rows, columns
    int64_t channels_last;
    int64_t pixel_bits;                       // from one pixel's bits to the next; without channels_last: in_channels
    int64_t words;                            // from one step's bits to the next
    const uint64_t* bits;
    // isa: -1 for the best one of this CPU, otherwise an index as for the scan
    int64_t threads, isa;
};

// A weight [out_channels][in_channels][rows][columns], strides in elements.
struct ConvWeight {
    float* data;
    int64_t stride[4];
};

// A convolution of spikes that the scan of its output computes itself (csrc/scan/lif.cpp): scale * sums + bias, channels_last.
struct ConvInput {
    SpikeConv conv;
    const float *packed, *bias;               // weights packed BY_TAP; bias or null
    double scale;
};

// CONV_NOT_FINITE: some number is infinite or NaN, which times 0 is NaN; the result is not valid.
enum ConvStatus : int64_t { CONV_OK = 0, CONV_BAD_ARGUMENT = 1, CONV_OUT_OF_MEMORY = 2, CONV_NOT_FINITE = 3 };
// Order of packed weights: [out block][tap][in][block] and [out block][in][tap][block].
enum ConvOrder : int64_t { BY_TAP = 0, BY_CHANNEL = 1 };

// floats; -1: these loops do not support this shape
STEADYSPIKE_EXPORT int64_t steadyspike_conv_packed_size(const SpikeConv*);
// level: [in_channels] factors, or null.
STEADYSPIKE_EXPORT int64_t steadyspike_conv_pack(const SpikeConv*, const ConvWeight*, const float* level, int64_t order, float* packed);
// out = scale * sums + bias (null: none), of weights packed BY_TAP.
STEADYSPIKE_EXPORT int64_t steadyspike_conv_forward(const SpikeConv*, const float* packed, float scale, const float* bias, float* out);
// The gradient of the weight for spikes of level[0], or level[channel] if levels > 1.
STEADYSPIKE_EXPORT int64_t steadyspike_conv_weight_gradient(const SpikeConv*, const float* g, const float* level, int64_t levels,
                                                            const ConvWeight* gradient);
// The gradient of the input at the elements whose `bits` are set, 0 elsewhere; weights are packed BY_CHANNEL.
STEADYSPIKE_EXPORT int64_t steadyspike_conv_input_gradient(const SpikeConv*, const float* packed, const float* g, float* dx);
// The gradient of the input at all elements, for a kernel 3x3, stride and dilation 1, channels_last (conv_winograd.h). No bits are read.
STEADYSPIKE_EXPORT int64_t steadyspike_conv_full_input_gradient(const SpikeConv*, const ConvWeight*, const float* g, float* dx);
STEADYSPIKE_EXPORT int64_t steadyspike_conv_abi();
}

constexpr int64_t MAX_BLOCK = 64;  // output channels that are summed together

// Values that the loops derive from a call. The loops that take steps in pairs process two at a time. An image is then
// a pair of steps; if the number of steps is odd, the last one is alone.
struct ConvShape {
    int64_t images, out_height, out_width, taps;
    int64_t block, blocks;                    // output channels per block, and the number of blocks
    int64_t pair;                             // steps per image, 1 or 2
};

inline int64_t conv_output(const SpikeConv& c, int axis) {
    const int64_t size = axis ? c.width : c.height;
    return (size + 2 * c.padding[axis] - c.dilation[axis] * (c.kernel[axis] - 1) - 1) / c.stride[axis] + 1;
}

inline int64_t block_of(int64_t channels) { return channels > 32 ? 64 : channels > 16 ? 32 : 16; }

inline ConvShape conv_shape(const SpikeConv& c, int64_t pair = 1) {
    const int64_t block = block_of(c.out_channels);
    return {(c.steps + pair - 1) / pair * c.batch, conv_output(c, 0), conv_output(c, 1), c.kernel[0] * c.kernel[1], block,
            (c.out_channels + block - 1) / block, pair};
}

// Work is cut into parts of some images, or of some rows of one image. `splits` of the other axis (blocks of output
// channels, or of input channels) go to different threads.
struct ConvPlan {
    int64_t images, rows;                     // per part
    int64_t row_parts, parts, splits;         // row parts per image, and all parts
    int64_t chunk;                            // input channels per unit of the weight gradient
    int64_t width;                            // output channels in a tile of the gradient
};

struct ConvTask {
    const SpikeConv& conv;
    ConvShape shape;
    ConvPlan plan;
    const float *packed, *bias, *g;
    float scale;
    float* out;                               // dx, or partial sums of the weight gradient
    bool by_row;                              // of the forward, see `lists_by_row`
};

// The output that one unit of the forward computes: rows of images. The images are `runs` times `run` adjacent ones, from
// one run to the next `apart`: the same images at several steps.
struct ForwardArea {
    int64_t image0, run, runs, apart;
    int64_t row0, row1;

    int64_t images() const { return run * runs; }
    int64_t image(int64_t n) const { return image0 + n / run * apart + n % run; }
};

// One unit of work. False: a value was not finite.
using ConvLoop = bool (*)(const ConvTask&, int64_t unit);
struct ConvLoops {
    void (*forward)(const ConvTask&, const ForwardArea&, int64_t block0, int64_t block1, float* out);  // see conv_forward.h
    ConvLoop weight_gradient, input_gradient, winograd;
    int64_t (*count)(const uint64_t* words, int64_t n);
    bool (*pack)(const SpikeConv&, const ConvShape&, const ConvWeight&, const float* level, int64_t order, int64_t unit, float* packed);
    void (*pack_winograd)(const SpikeConv&, const ConvWeight&, int64_t unit, float* packed);
};

bool conv_is_valid(const SpikeConv&);
// Whether the forward processes the lists under a kernel row as one list. This decides the order of additions, so it is
// decided for a whole call, and results do not depend on how the call is cut into units.
bool lists_by_row(const SpikeConv&);
const ConvLoops& conv_loops(int64_t isa);

// Partial sums of the weight gradient are [split][out block][chunk][channel][tap][block].
inline int64_t conv_chunks(const SpikeConv& c, const ConvPlan& plan) { return (c.in_channels + plan.chunk - 1) / plan.chunk; }
