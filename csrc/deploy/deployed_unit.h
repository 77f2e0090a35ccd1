// One unit of a layer: some samples, or some rows of one sample, through all time steps. Currents never leave the
// cache.
#pragma once
#include <vector>

#include "../conv/conv_sums.h"
#include "../scan/step.h"
#include "deployed_abi.h"

namespace {

constexpr int64_t CURRENTS_TOGETHER = PIXELS_TOGETHER;  // pixels times steps per pass over a block's weights

// The convolution of a source, and the sums under a unit's pixels, [sample][pixel][step].
struct Convolved {
    const ConvTask task;
    AreaSums sums;

    Convolved(const LayerSource& source, bool by_row, const ForwardArea& area, int64_t steps)
        : task{source.conv, conv_shape(source.conv), {}, source.packed, nullptr, nullptr, 1, nullptr, by_row}, sums(task, area, steps) {}
};

// A pixel of the layer: the position of its values in tensors of all pixels.
struct Place {
    int64_t sample, pixel;
};

struct LayerBlock {
    const LayerTask& task;
    const SpikeLayer& layer;
    int64_t b, channel, channels, words;      // channels of this block that exist

    LayerBlock(const LayerTask& t, int64_t block)
        : task(t), layer(t.layer), b(block), channel(block * t.block),
          channels(layer.channels - channel < t.block ? layer.channels - channel : t.block), words((layer.channels + 63) / 64) {}

    int64_t image_pixel(Place at, int64_t t) const {
        return (at.sample * layer.steps + t) * layer.height * layer.width + at.pixel;
    }
    const float* constants(const float* rows, int64_t steps, int64_t t) const {
        return rows + (steps > 1 ? t : 0) * 64 * words + channel;
    }

    // Adds what does not come from a convolution to the current of one pixel at one step.
    void complete(float* __restrict sums, Place at, int64_t t) const {
        if (layer.gain) {
            const float* gain = constants(layer.gain, layer.gain_steps, t);
            for (int64_t k = 0; k < task.block; ++k) sums[k] *= gain[k];
        }
        if (layer.bias) {
            const float* bias = constants(layer.bias, layer.bias_steps, t);
            for (int64_t k = 0; k < task.block; ++k) sums[k] += bias[k];
        }
        for (int64_t i = 0; i < layer.sources; ++i) {
            const LayerSource& source = layer.source[i];
            if (source.kind == IDENTITY_OF_SPIKES) {
                const float* values = source.values + channel;
                for_each_bit(source.bits[image_pixel(at, t) * words + b], [&](int64_t k) { sums[k] += values[k]; });
            } else if (source.kind == NUMBERS) {
                const float* values = source.values + at.sample * source.sample_stride + t * source.step_stride +
                                      at.pixel * layer.channels + channel;
                for (int64_t k = 0; k < channels; ++k) sums[k] += values[k];
            }
        }
    }

    // The scan of one pixel, beginning with step t0: currents [steps][block] in, U in and out, bits or potentials out.
    template <int64_t RESET>
    void scan(float* currents, float* potential, Place at, int64_t t0, int64_t steps, LayerCount& count) const {
        uint64_t fired[STEPS_TOGETHER] = {};
        Words nan{};
        for (int64_t k = 0; k < task.block; k += LANES) {
            const int64_t c = channel + k;
            const Floats v = load<true>(layer.threshold + c, 0), fire = load<true>(layer.fire + c, 0);
            const Floats keep = load<true>(layer.keep + c, 0), factor = load<true>(layer.factor + c, 0);
            Floats u = load<true>(potential + k, 0);
            for (int64_t t = 0; t < steps; ++t) {
                float* const current = currents + t * task.block + k;
                const Floats m = charge<float>(u, load<true>(current, 0), keep, factor);
                u = after_reset<float>(m, spike<float>(m, fire), v, RESET);
                fired[t] |= uint64_t(lane_bits(Words(m >= fire))) << k;
                if (layer.emit == EMIT_POTENTIAL) store<true>(m, current, 0);
            }
            nan |= Words(u != u);  // no reset removes a NaN
            store<true>(u, potential + k, 0);
        }
        count.nan = count.nan || lane_bits(nan);
        if (layer.emit != EMIT_SPIKES) return;
        for (int64_t t = 0; t < steps; ++t) {
            count.spikes += __builtin_popcountll(fired[t]);
            layer.bits[image_pixel(at, t0 + t) * words + b] = fired[t];
        }
    }

    void finish(float* currents, float* potential, Place at, int64_t t0, int64_t steps, LayerCount& count) const {
        for (int64_t t = 0; t < steps; ++t) complete(currents + t * task.block, at, t0 + t);
        if (layer.emit != EMIT_CURRENT) {
            if (t0 == 0)
                std::memcpy(potential, layer.start + (layer.start_pixels > 1 ? at.pixel : 0) * 64 * words + channel,
                            size_t(task.block) * sizeof(float));
            if (layer.reset == SOFT) scan<SOFT>(currents, potential, at, t0, steps, count);
            if (layer.reset == HARD) scan<HARD>(currents, potential, at, t0, steps, count);
            if (layer.reset == NONE) scan<NONE>(currents, potential, at, t0, steps, count);
        }
        if (layer.emit != EMIT_SPIKES)
            for (int64_t t = 0; t < steps; ++t)
                std::memcpy(layer.out + image_pixel(at, t0 + t) * layer.channels + channel, currents + t * task.block,
                            size_t(channels) * sizeof(float));
    }
};

// Unit: a part of the pixels, and one of `splits` shares of the blocks of channels.
LayerCount layer_unit(const LayerTask& task, int64_t unit) {
    const SpikeLayer& layer = task.layer;
    const ConvPlan& plan = task.plan;
    ConvShape pixels{};
    pixels.images = layer.samples;
    const ConvPart part(plan, pixels, layer.height, unit / plan.splits);
    const int64_t samples = part.image1 - part.image0, per_sample = (part.row1 - part.row0) * layer.width;
    const int64_t total = samples * per_sample;
    const int64_t first_block = task.blocks * (unit % plan.splits) / plan.splits;
    const int64_t last_block = task.blocks * (unit % plan.splits + 1) / plan.splits;
    const bool once = layer.steps <= STEPS_TOGETHER;  // potentials need not be stored between groups of steps
    Room<float> potentials((once ? CURRENTS_TOGETHER : (last_block - first_block) * total) * task.block);
    Room<float> currents((CURRENTS_TOGETHER + STEPS_TOGETHER) * task.block);
    LayerCount count;
    for (int64_t t0 = 0; t0 < layer.steps; t0 += STEPS_TOGETHER) {
        const int64_t steps = layer.steps - t0 < STEPS_TOGETHER ? layer.steps - t0 : STEPS_TOGETHER;
        // a sample's steps are adjacent images
        const ForwardArea area{part.image0 * layer.steps + t0, samples * steps, 1, 0, part.row0, part.row1};
        std::vector<std::unique_ptr<Convolved>> convolved;
        for (int64_t i = 0; i < layer.sources; ++i)
            if (layer.source[i].kind == CONV_OF_SPIKES)
                convolved.emplace_back(new Convolved(layer.source[i], task.by_row[i] != 0, area, steps));
        const int64_t together = CURRENTS_TOGETHER / steps;
        for (int64_t b = first_block; b < last_block; ++b) {
            const LayerBlock block(task, b);
            float* const kept = potentials.get() + (once ? 0 : (b - first_block) * total * task.block);
            for (int64_t p = 0; p < total; p += together) {
                const int64_t n = total - p < together ? total - p : together;
                if (convolved.empty()) std::memset(currents.get(), 0, size_t(n * steps * task.block) * sizeof(float));
                const float* before = nullptr;
                for (const auto& source : convolved) {
                    source->sums.compute(b, p * steps, {before, currents.get(), n * steps, task.block, task.block, false, 1, nullptr});
                    before = currents.get();
                }
                for (int64_t q = 0; q < n; ++q) {
                    const Place at{part.image0 + (p + q) / per_sample, part.row0 * layer.width + (p + q) % per_sample};
                    block.finish(currents.get() + q * steps * task.block, kept + (once ? q : p + q) * task.block, at, t0, steps, count);
                }
            }
        }
    }
    return count;
}

}  // namespace
