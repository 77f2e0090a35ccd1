// The input gradient of a 3x3 convolution of stride 1 at all elements, in channels_last, with 16 multiplications for
// 2x2 elements instead of 36: Winograd's F(2x2, 3x3). A tile has 2x2 elements of the input and the 4x4 elements of the
// output's gradient that they need. Both the gradient of a tile and the weight are transformed to 16 numbers, for each
// of these the tiles are multiplied with the weights as matrices, and the products are transformed back. The transforms
// only add and halve, so the rounding error is about that of a direct sum (tests/kernels/test_spike_conv.py).
#pragma once
#include <type_traits>

#include "conv_lists.h"
#include "units.h"

namespace {

constexpr int64_t DEPTH = 128;                 // output channels between two passes over the weights
constexpr int REGISTERS = STEADYSPIKE_REGISTER == 64 ? 4 : 2, SUMS_AT_ONCE = STEADYSPIKE_REGISTER == 64 ? 24 : 12;

// Adds the products of N tiles with R registers of channels, which begin `from` here (null: at 0).
template <int R, int N>
void multiply_tiles(const float* tiles, const float* weights, int64_t stride, int64_t depth, int64_t block, bool more, float* products) {
    Floats s[N][R];
#pragma GCC unroll 24
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) s[n][r] = more ? load<true>(products + n * block + r * LANES, 0) : Floats{};
    for (int64_t k = 0; k < depth; ++k, weights += block) {
        Floats w[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) w[r] = load<true>(weights + r * LANES, 0);
#pragma GCC unroll 24
        for (int n = 0; n < N; ++n) {
            const Floats value = all(tiles[n * stride + k]);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) s[n][r] = multiply_add(value, w[r], s[n][r]);
        }
    }
#pragma GCC unroll 24
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) store<true>(s[n][r], products + n * block + r * LANES, 0);
}

// All tiles of a unit, N at a time.
template <int R>
void multiply_all(const float* tiles, const float* weights, int64_t count, int64_t stride, int64_t depth, int64_t block, bool more,
                  float* products) {
    constexpr int N = SUMS_AT_ONCE / R;
    int64_t t = 0;
    for (; t + N <= count; t += N) multiply_tiles<R, N>(tiles + t * stride, weights, stride, depth, block, more, products + t * block);
    for (; t < count; ++t) multiply_tiles<R, 1>(tiles + t * stride, weights, stride, depth, block, more, products + t * block);
}

// From one of the 16 numbers of all tiles, or of a weight, to the next: more than a multiple of 4096 bytes, because
// such addresses share a few sets of the first-level cache.
inline int64_t apart(int64_t floats) { return floats + 16; }

struct TileGrid {
    int64_t rows, columns, total;
    explicit TileGrid(const ConvTask& task)
        : rows((task.conv.height + 1) / 2), columns((task.conv.width + 1) / 2), total(task.shape.images * rows * columns) {}
};

// [16][tile][output channel]: the transformed gradients of tiles [first, first + count).
inline void transform_tiles(const ConvTask& task, const TileGrid& grid, int64_t first, int64_t count, const float* zeros, float* to) {
    const SpikeConv& conv = task.conv;
    const ConvShape& shape = task.shape;
    const int64_t depth = conv.out_channels, step = apart(count * depth);
    const int64_t end = shape.images * shape.out_height * shape.out_width * depth;
    for (int64_t t = 0; t < count; ++t, to += depth) {
        const int64_t tile = first + t, n = tile / (grid.rows * grid.columns);
        const int64_t top = tile / grid.columns % grid.rows * 2 + conv.padding[0] - 2, left = tile % grid.columns * 2 + conv.padding[1] - 2;
        const float* from[16];
        for (int64_t i = 0; i < 4; ++i)
            for (int64_t j = 0; j < 4; ++j) {
                const int64_t y = top + i, x = left + j;
                const bool inside = y >= 0 && y < shape.out_height && x >= 0 && x < shape.out_width;
                from[4 * i + j] = inside ? task.g + ((n * shape.out_height + y) * shape.out_width + x) * depth : zeros;
            }
        // The tile below will read these. The processor does not foresee it, and memory takes longer than the arithmetic.
        const int64_t ahead = ((n * shape.out_height + top + 4) * shape.out_width + left + 2) * depth, row = shape.out_width * depth;
        if (ahead >= 0 && ahead + row + 2 * depth <= end)
            for (int64_t k = 0; k < 2 * depth; k += 16) {
                __builtin_prefetch(task.g + ahead + k);
                __builtin_prefetch(task.g + ahead + row + k);
            }
        const auto transform = [&](auto full, int64_t k) {
            constexpr bool FULL = decltype(full)::value;
            const int64_t rest = depth - k;
            Floats d[16];
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                const auto at = [&](int j) { return load<FULL>(from[4 * i + j] + k, rest); };
                const Floats a = at(0), b = at(1), c = at(2), e = at(3);
                d[4 * i] = a - c, d[4 * i + 1] = b + c, d[4 * i + 2] = c - b, d[4 * i + 3] = b - e;
            }
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                const auto put_at = [&](int i, Floats value) { store<FULL>(value, to + (4 * i + j) * step + k, rest); };
                put_at(0, d[j] - d[8 + j]), put_at(1, d[4 + j] + d[8 + j]), put_at(2, d[8 + j] - d[4 + j]), put_at(3, d[4 + j] - d[12 + j]);
            }
        };
        int64_t k = 0;
        for (; k + LANES <= depth; k += LANES) transform(std::true_type{}, k);
        if (k < depth) transform(std::false_type{}, k);
    }
}

// Writes a block of input channels of the tiles from their products [16][tile][block]. False: a value is not finite.
inline bool write_tiles(const ConvTask& task, const TileGrid& grid, int64_t first, int64_t count, int64_t channel, int64_t block,
                        const float* products) {
    const SpikeConv& conv = task.conv;
    const int64_t channels = smaller(block, conv.in_channels - channel), step = apart(count * block);
    Words infinite{};
    for (int64_t t = 0; t < count; ++t, products += block) {
        const int64_t tile = first + t, n = tile / (grid.rows * grid.columns);
        const int64_t top = tile / grid.columns % grid.rows * 2, left = tile % grid.columns * 2;
        const bool right = left + 1 < conv.width, below = top + 1 < conv.height;
        const int64_t row = conv.width * conv.in_channels;
        float* const to = task.out + (n * conv.height + top) * row + left * conv.in_channels + channel;
        const auto transform = [&](auto full, int64_t k) {
            constexpr bool FULL = decltype(full)::value;
            const int64_t rest = channels - k;
            Floats y[8];
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                const auto at = [&](int i) { return load<true>(products + (4 * i + j) * step + k, 0); };
                const Floats a = at(0), b = at(1), c = at(2), e = at(3);
                y[j] = a + b + c, y[4 + j] = b - c - e;
            }
            const auto write = [&](Floats value, int64_t at) {
                infinite |= Words((Words(value) & 0x7f800000u) == 0x7f800000u);
                store<FULL>(value, to + at + k, rest);
            };
            write(y[0] + y[1] + y[2], 0);
            if (right) write(y[1] - y[2] - y[3], conv.in_channels);
            if (below) write(y[4] + y[5] + y[6], row);
            if (right && below) write(y[5] - y[6] - y[7], row + conv.in_channels);
        };
        int64_t k = 0;
        for (; k + LANES <= channels; k += LANES) transform(std::true_type{}, k);
        if (k < channels) transform(std::false_type{}, k);
    }
    return lane_bits(infinite) == 0;
}

// Unit: plan.images tiles.
bool winograd_unit(const ConvTask& task, int64_t unit) {
    const int64_t depth = task.conv.out_channels, block = block_of(task.conv.in_channels);
    const TileGrid grid(task);
    const int64_t first = unit * task.plan.images, count = smaller(task.plan.images, grid.total - first);
    Room<float> tiles(16 * apart(count * depth)), products(16 * apart(count * block)), zeros(depth + LANES);
    std::memset(zeros.get(), 0, size_t(depth) * sizeof(float));
    transform_tiles(task, grid, first, count, zeros.get(), tiles.get());
    const int64_t registers = smaller(block / LANES, REGISTERS);
    const auto multiply = registers == 4 ? multiply_all<REGISTERS> : registers == 2 ? multiply_all<2> : multiply_all<1>;
    const float* weights = task.packed;
    bool finite = true;
    for (int64_t channel = 0; channel < task.conv.in_channels; channel += block) {
        for (int64_t i = 0; i < 16; ++i, weights += apart(depth * block))
            for (int64_t k = 0; k < depth; k += DEPTH)
                for (int64_t r = 0; r < block; r += registers * LANES)
                    multiply(tiles.get() + i * apart(count * depth) + k, weights + k * block + r, count, depth, smaller(DEPTH, depth - k), block,
                             k > 0, products.get() + i * apart(count * block) + r);
        finite = write_tiles(task, grid, first, count, channel, block, products.get()) && finite;
    }
    return finite;
}

// Block `unit` of input channels of the weight as [16][output channel][block].
void pack_winograd_unit(const SpikeConv& conv, const ConvWeight& weight, int64_t unit, float* packed) {
    const int64_t block = block_of(conv.in_channels), first = unit * block, channels = smaller(block, conv.in_channels - first);
    const int64_t step = apart(conv.out_channels * block);
    float* to = packed + unit * 16 * step;
    if (channels < block) std::memset(to, 0, size_t(16 * step) * sizeof(float));
    for (int64_t k = 0; k < conv.out_channels; ++k, to += block) {
        const float* const from = weight.data + k * weight.stride[0] + first * weight.stride[1];
        const auto pack = [&](int64_t to_next) {
            for (int64_t c = 0; c < channels; ++c) {
                float rows[4][3];
                for (int64_t b = 0; b < 3; ++b) {
                    // The gradient meets the weight upside down.
                    const auto at = [&](int64_t a) { return from[c * to_next + (2 - a) * weight.stride[2] + (2 - b) * weight.stride[3]]; };
                    const float x = at(0), y = at(1), z = at(2), outer = x + z;
                    rows[0][b] = x, rows[1][b] = 0.5f * (outer + y), rows[2][b] = 0.5f * (outer - y), rows[3][b] = z;
                }
                for (int64_t i = 0; i < 4; ++i) {
                    const float x = rows[i][0], y = rows[i][1], z = rows[i][2], outer = x + z;
                    float* const line = to + 4 * i * step + c;
                    line[0] = x, line[step] = 0.5f * (outer + y), line[2 * step] = 0.5f * (outer - y), line[3 * step] = z;
                }
            }
        };
        weight.stride[1] == 1 ? pack(1) : pack(weight.stride[1]);
    }
}

}  // namespace
