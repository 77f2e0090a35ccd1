// The forward of the common case, see fast.h.
#pragma once
#include "fast.h"

namespace {

// IO: float, with the tile's own rows; or Bf16, directly from and to the tensors. MAPPED: `in` is x, to which the map
// is applied. WORDS: what is written as bits: 0 nothing, 1 the spikes, 2 the spikes and where the backward needs the
// gradient. With one channel, the last tile writes U of the neurons that fired to kept and adds their number to count;
// fired is then not written.
template <int CASE, class IO, bool MAPPED, int WORDS>
bool fast_forward(const ForwardTile<float>& tile, Steps<const IO> in, const MapRows<float>& map, Steps<IO> out, int64_t n,
                  bool past_cache, BitRows bits, BitRows needed, float* kept, int64_t& count) {
    constexpr int64_t W = WIDTH<float>;
    constexpr bool ONE = CASE >= ONE_CHANNEL, PLAIN = CASE >= PLAIN_CACHED;
    constexpr bool HALVES = !std::is_same<IO, float>::value, SPLIT = HALVES && ONE, LEVEL_IS_V = PLAIN && !HALVES;
    const ConstantRows<float>& c = tile.constants;
    const Held<ONE> keep(c.keep), gain(c.gain), fire(c.fire), v(c.v);
    const Row<ONE> level{c.level}, low{c.low}, high{c.high};
    const FullHalves half_level = FullHalves{} + uint16_t(narrow_words(level.at(0), Bf16{})[0]);
    const Floats one = all<float>(1);
    // Copies, because the targets of pointers would be read again after every store.
    const int64_t steps = tile.steps, out_stride = out.stride;
    const Steps<const IO> x_rows = in;
    const MapRows<float> map_rows = map;
    const BitMasks<TOGETHER> bit_masks;
    IO* const out_first = out.first;
    const float* const start = tile.start;
    float *const u_row = PLAIN ? nullptr : tile.u, *const fired_row = tile.fired;
    const bool first = PLAIN || tile.first, sums = ONE && (PLAIN || tile.last), same_start = PLAIN || tile.same_start;
    const bool stream = PLAIN ? CASE == PLAIN_PAST_CACHE : past_cache;
    NanSeen nan;
    MaskCount active;
    for (int64_t i = 0; i < n; i += GROUP<float>) {
        Current<MAPPED, IO> input(x_rows, map_rows, i);
        IO* to = out_first + i;
        char *bits_to = bits.at(i), *needed_to = needed.at(i);
        Floats u[TOGETHER];
        Mask any[TOGETHER];
        EACH_PAIR(k, TOGETHER) {
            const Pair before = load_pair<SPLIT>(same_start ? start : start + i + k * W, same_start);
            u[k] = before.first, u[k + 1] = before.second;
            any[k] = any[k + 1] = nowhere();
            if (!first) {
                const Pair fired = load_pair<SPLIT>(fired_row + i + k * W, false);
                any[k] = at_least(fired.first, one), any[k + 1] = at_least(fired.second, one);
            }
        }
        for (int64_t t = 0; t < steps; ++t, input.next(), to += out_stride) {
            uint64_t spike_bits = 0, inside_bits = 0;
            if (stream) input.template early<TOGETHER>();
            EACH_PAIR(k, TOGETHER) {
                Pair x;
                Mask s[2], inside[2];
                if constexpr (HALVES) x = load_pair<SPLIT>(input.x + k * W);
                BOTH(j) {
                    const int64_t at = i + (k + j) * W;
                    const Floats current = HALVES ? j ? x.second : x.first : input.at(bit_masks, k + j);
                    const Floats m = charge<float>(u[k + j], current, keep.at(at), gain.at(at));
                    s[j] = at_least(m, fire.at(at));
                    const Floats spike = where(s[j], level.at(at));
                    u[k + j] = LEVEL_IS_V ? m - spike : minus_where(m, s[j], v.at(at));
                    any[k + j] = either(any[k + j], s[j]);
                    if constexpr (WORDS == 2) inside[j] = either(s[j], between(m, low.at(at), high.at(at)));
                    if constexpr (!HALVES) write_register(spike, to + (k + j) * W, stream);
                    if constexpr (!SPLIT && WORDS >= 1) spike_bits |= uint64_t(mask_bits(s[j])) << ((k + j) * W);
                    if constexpr (!SPLIT && WORDS == 2) inside_bits |= uint64_t(mask_bits(inside[j])) << ((k + j) * W);
                }
                if constexpr (SPLIT) {
                    const FullHalves spikes = halves_where(s[0], s[1]);
                    write_register(FullHalves(spikes & half_level), to + k * W, stream);
                    if constexpr (WORDS >= 1) spike_bits |= uint64_t(half_bits(spikes)) << (k * W);
                    if constexpr (WORDS == 2) inside_bits |= uint64_t(half_bits(halves_where(inside[0], inside[1]))) << (k * W);
                } else if constexpr (HALVES) {
                    const Floats first_level = level.at(i + k * W), second_level = level.at(i + (k + 1) * W);
                    write_register(narrow_two(where(s[0], first_level), where(s[1], second_level), IO{}), to + k * W, stream);
                }
            }
            if constexpr (WORDS >= 1) put_bits(spike_bits, bits_to), bits_to += 8 * bits.stride;
            if constexpr (WORDS == 2) put_bits(inside_bits, needed_to), needed_to += 8 * needed.stride;
        }
        EACH_PAIR(k, TOGETHER) {
            nan.look(u[k], u[k + 1]);
            if (u_row) store_pair<SPLIT>({u[k], u[k + 1]}, u_row + i + k * W);
            if (sums) {
                active.add(any[k]), active.add(any[k + 1]);
                store_pair<SPLIT>({where(any[k], u[k]), where(any[k + 1], u[k + 1])}, kept + i + k * W);
            } else {
                store_pair<SPLIT>({where(any[k], one), where(any[k + 1], one)}, fired_row + i + k * W);
            }
        }
    }
    if (sums) count += active.total();
    return !nan.any();
}

}  // namespace
