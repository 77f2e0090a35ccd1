// What the driver (lif.cpp) hands to the code compiled once per instruction set (chunk.cpp).
#pragma once
#include "abi.h"

// How one call is cut up. Nothing here depends on the number of threads, so neither does any result.
struct Plan {
    int64_t chunk;      // elements per chunk, the unit of parallel work with its own partial sums
    int64_t chunks;
    int64_t block;      // elements that go through all time steps together, in cache
    int64_t window;     // time steps that the backward recomputes and keeps at once
    int64_t windows;
    int64_t vector;     // 1: a block spans channels, parameters are expanded per element; 0: one channel per block
    int64_t stream;     // 1: the written T-sized tensor bypasses the cache
    int64_t scratch;    // bytes per thread
};

// Parameters per channel, in the compute type: threshold V, the value from which on S is 1, 1 - a, factor of the input,
// 1 / V, and the initial potential (unless it is per element).
struct ChannelParams {
    const void *v, *fire, *keep, *gain, *inverse, *u0;
};

// A surrogate's constants, derived from width, scale and temperature; see slope() in surrogate.h.
struct SurrogateShape {
    double width, half, height, steep;
};

struct ForwardTask {
    Scan scan;
    Forward io;
    Plan plan;
    ChannelParams params;
};

struct BackwardTask {
    Scan scan;
    Backward io;
    Plan plan;
    ChannelParams params;
    SurrogateShape shape;
};

// sums: this chunk's partial sums in double, zeroed by the caller. Forward [2][channels]: sum of U[T] over active
// neurons, their number. Backward [3][channels]: dv, da, du0.
using ForwardChunk = void (*)(const ForwardTask&, int64_t chunk, void* scratch, double* sums);
using BackwardChunk = void (*)(const BackwardTask&, int64_t chunk, void* scratch, double* sums);

struct ChunkFunctions {
    ForwardChunk forward[4];    // by DType
    BackwardChunk backward[4];
};

// Rows of `block` elements in a thread's scratch, in this order; the driver sizes it, chunk.cpp cuts it.
constexpr int64_t FORWARD_ROWS = 9;
constexpr int64_t AFFINE_ROWS = 4;  // more, if the input is an affine map of x
constexpr int64_t BACKWARD_ROWS = 15;  // plus 2 * window of recomputed potentials and `windows` checkpoints
