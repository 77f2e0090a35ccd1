// One layer of a deployed network: the current from all its inputs, the LIF scan over all steps, bits as output. This
// is the C ABI that Python calls (deploy/runtime/native_abi.py mirrors the structs), and what its driver passes to the
// loops.
//
// Spikes are bits [sample][step][pixel][words], words = (channels + 63) / 64: a pixel's channels are consecutive bits
// and begin with a new word. Constants per channel are floats [64 words]; those after the last channel are 0, and
// `fire` there is infinite.
#pragma once
#include "../scan/abi.h"

extern "C" {

enum SourceKind : int64_t { CONV_OF_SPIKES = 0, IDENTITY_OF_SPIKES = 1, NUMBERS = 2 };

// One summand of a layer's current.
struct LayerSource {
    int64_t kind;
    SpikeConv conv;                           // CONV_OF_SPIKES: steps are [sample][step], batch is 1
    const float* packed;                      // its weights, packed BY_TAP
    const uint64_t* bits;                     // IDENTITY_OF_SPIKES
    const float* values;                      // IDENTITY_OF_SPIKES: a spike's current per channel. NUMBERS: [pixel][channels]
    int64_t sample_stride, step_stride;       // of NUMBERS, in floats; step_stride 0: the same at every step
};

enum LayerEmit : int64_t { EMIT_SPIKES = 0, EMIT_POTENTIAL = 1, EMIT_CURRENT = 2 };

// current = gain * (sum of the convolutions) + bias + the other sources.
struct SpikeLayer {
    int64_t samples, steps, height, width, channels;
    int64_t sources;
    const LayerSource* source;
    const float *gain, *bias;                 // [gain_steps][64 words], or null
    int64_t gain_steps, bias_steps;           // 1, or at least `steps`
    // V, the smallest potential that fires, 1 - a, factor of the current
    const float *threshold, *fire, *keep, *factor;
    const float* start;                       // U[0], [start_pixels][64 words]
    int64_t start_pixels;                     // 1, or height * width
    int64_t reset, emit;                      // reset: ResetCode
    uint64_t* bits;                           // EMIT_SPIKES
    float* out;                               // otherwise: M or the current, [sample][step][pixel][channels]
    int64_t* fired;                           // [2]: the number of spikes; 1 if a potential is NaN, which has no bit
    int64_t threads, isa;
};

// Numbers from bits: the spikes in each window, divided by the number of its pixels. A window of one pixel only
// unpacks.
struct SpikeWindows {
    int64_t images, height, width, channels, out_height, out_width;
    int64_t kernel[2], stride[2], padding[2];
    int64_t count_padding;                    // 1: pixels of the padding are counted
    const uint64_t* bits;
    float* out;                               // [image][out pixel][channels]
    int64_t threads;
};

// Results are those of ConvStatus.
STEADYSPIKE_EXPORT int64_t steadyspike_layer_run(const SpikeLayer*);
STEADYSPIKE_EXPORT int64_t steadyspike_layer_windows(const SpikeWindows*);
STEADYSPIKE_EXPORT int64_t steadyspike_layer_abi();
}

constexpr int64_t STEPS_TOGETHER = 16;        // time steps whose currents are held at a time

struct LayerTask {
    const SpikeLayer& layer;
    ConvPlan plan;                            // its images are samples
    int64_t block, blocks;                    // output channels at a time
    const char* by_row;                       // ConvTask::by_row of each source
};

struct LayerCount {
    int64_t spikes = 0;
    bool nan = false;
};

// One unit of work.
using LayerLoop = LayerCount (*)(const LayerTask&, int64_t unit);
