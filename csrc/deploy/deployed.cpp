// The driver of deployed layers (called by deploy/runtime/native_layer.py): checks a call, cuts it into units of work
// and gives them to threads. Every output belongs to one unit, so results do not depend on the number of threads.
#include <atomic>
#include <initializer_list>
#include <vector>

#include "../conv/conv_plan.h"
#include "deployed_abi.h"

extern const LayerLoop steadyspike_layer_base;
#if defined(STEADYSPIKE_X86)
extern const LayerLoop steadyspike_layer_avx2, steadyspike_layer_avx512;
#endif

namespace {

// pixels times steps of a unit: each weight is used several times
constexpr int64_t UNIT_PIXELS = 1024, LEAST_PIXELS = 64;

LayerLoop loop_for(int64_t isa) {
#if defined(STEADYSPIKE_X86)
    static const LayerLoop* const LOOPS[] = {&steadyspike_layer_base, &steadyspike_layer_avx2, &steadyspike_layer_avx512};
#else
    static const LayerLoop* const LOOPS[] = {&steadyspike_layer_base};
#endif
    return for_isa(LOOPS, isa);
}

bool valid(const LayerSource& s, const SpikeLayer& layer) {
    const SpikeConv& c = s.conv;
    if (s.kind == IDENTITY_OF_SPIKES) return s.bits && s.values;
    if (s.kind == NUMBERS) return s.values && s.sample_stride >= 0 && s.step_stride >= 0;
    return s.kind == CONV_OF_SPIKES && s.packed && c.bits && steadyspike_conv_packed_size(&c) > 0 && c.batch == 1 &&
           c.channels_last && c.steps == layer.samples * layer.steps && c.out_channels == layer.channels &&
           conv_output(c, 0) == layer.height && conv_output(c, 1) == layer.width;
}

bool valid(const SpikeLayer& layer) {
    for (const int64_t size : {layer.samples, layer.steps, layer.height, layer.width, layer.channels})
        if (size < 1) return false;
    for (int64_t i = 0; i < layer.sources; ++i)
        if (!valid(layer.source[i], layer)) return false;
    const bool neuron = layer.threshold && layer.fire && layer.keep && layer.factor && layer.start &&
                        (layer.start_pixels == 1 || layer.start_pixels == layer.height * layer.width);
    const auto rows = [&](const float* at, int64_t steps) { return !at || steps == 1 || steps >= layer.steps; };
    return layer.isa < steadyspike_isas() && layer.fired && (layer.emit == EMIT_CURRENT || neuron) &&
           (layer.emit == EMIT_SPIKES ? layer.bits != nullptr : layer.out != nullptr) && rows(layer.gain, layer.gain_steps) &&
           rows(layer.bias, layer.bias_steps) && layer.reset >= SOFT && layer.reset <= NONE;
}

LayerTask cut(const SpikeLayer& layer) {
    SpikeConv like{};
    like.out_channels = layer.channels;
    like.stride[0] = like.stride[1] = like.kernel[0] = like.kernel[1] = like.height = like.width = 1;
    const ConvShape shape = conv_shape(like);
    const int64_t size = layer.height * layer.width, steps = smaller(layer.steps, STEPS_TOGETHER);
    int64_t pixels = UNIT_PIXELS / steps;
    // First divide the blocks of channels, because then only one thread reads their weights.
    const int64_t units = 2 * layer.threads, splits = layer.threads > 1 ? smaller(shape.blocks, units) : 1;
    while (pixels * steps > LEAST_PIXELS && layer.samples * size / pixels * splits < units) pixels /= 2;
    // If the steps do not fit together, they are processed sample by sample.
    ConvPlan plan = cut(layer.samples, layer.height, layer.width, pixels);
    if (layer.steps > STEPS_TOGETHER) {
        plan.images = 1;
        plan.parts = layer.samples * plan.row_parts;
    }
    plan.splits = splits;
    return {layer, plan, shape.block, shape.blocks, nullptr};
}

void windows_of(const SpikeWindows& w, int64_t image) {
    const int64_t words = (w.channels + 63) / 64;
    const uint64_t* const bits = w.bits + image * w.height * w.width * words;
    float* out = w.out + image * w.out_height * w.out_width * w.channels;
    for (int64_t i = 0; i < w.out_height; ++i)
        for (int64_t j = 0; j < w.out_width; ++j, out += w.channels) {
            const int64_t top = i * w.stride[0] - w.padding[0], left = j * w.stride[1] - w.padding[1];
            const int64_t bottom = smaller(top + w.kernel[0], w.height), right = smaller(left + w.kernel[1], w.width);
            const int64_t padded_bottom = smaller(top + w.kernel[0], w.height + w.padding[0]);
            const int64_t padded_right = smaller(left + w.kernel[1], w.width + w.padding[1]);
            for (int64_t c = 0; c < w.channels; ++c) out[c] = 0;
            for (int64_t y = larger(top, 0); y < bottom; ++y)
                for (int64_t x = larger(left, 0); x < right; ++x)
                    for (int64_t k = 0; k < words; ++k)
                        for (uint64_t word = bits[(y * w.width + x) * words + k]; word; word &= word - 1)
                            out[64 * k + __builtin_ctzll(word)] += 1;
            const int64_t inside = (bottom - larger(top, 0)) * (right - larger(left, 0));
            const float pixels = float(w.count_padding ? (padded_bottom - top) * (padded_right - left) : inside);
            if (pixels != 1)
                for (int64_t c = 0; c < w.channels; ++c) out[c] /= pixels;
        }
}

}  // namespace

extern "C" {

int64_t steadyspike_layer_run(const SpikeLayer* layer) {
    if (!valid(*layer)) return CONV_BAD_ARGUMENT;
    std::vector<char> by_row;
    for (int64_t i = 0; i < layer->sources; ++i)
        by_row.push_back(layer->source[i].kind == CONV_OF_SPIKES && lists_by_row(layer->source[i].conv));
    LayerTask task = cut(*layer);
    task.by_row = by_row.data();
    const LayerLoop loop = loop_for(layer->isa);
    std::atomic<int64_t> spikes{0};
    std::atomic<bool> nan{false};
    const int64_t status = run(layer->threads, task.plan.parts * task.plan.splits, [&](int64_t unit) {
        const LayerCount count = loop(task, unit);
        spikes += count.spikes;
        if (count.nan) nan = true;
        return true;
    });
    layer->fired[0] = spikes;
    layer->fired[1] = nan;
    return status;
}

int64_t steadyspike_layer_windows(const SpikeWindows* w) {
    for (const int64_t size : {w->images, w->height, w->width, w->channels, w->out_height, w->out_width})
        if (size < 1) return CONV_BAD_ARGUMENT;
    for (int axis = 0; axis < 2; ++axis)
        if (w->kernel[axis] < 1 || w->stride[axis] < 1 || w->padding[axis] < 0 || 2 * w->padding[axis] > w->kernel[axis])
            return CONV_BAD_ARGUMENT;
    return run(w->threads, w->images, [&](int64_t image) {
        windows_of(*w, image);
        return true;
    });
}

int64_t steadyspike_layer_abi() { return int64_t(1000000 + sizeof(LayerSource) * 1000 + sizeof(SpikeLayer) + sizeof(SpikeWindows)); }
}
