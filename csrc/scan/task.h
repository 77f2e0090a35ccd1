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
    int64_t stream;     // 1: the written T-sized tensor bypasses the cache
    int64_t scratch;    // bytes per thread
};

// Parameters per channel, in the compute type: threshold V, the value from which on S is 1, 1 - a, factor of the input,
// 1 / V, the least and the greatest potential in the surrogate's window (window.h; backward only), and the initial
// potential (unless it is per element).
struct ChannelParams {
    const void *v, *fire, *keep, *gain, *inverse, *low, *high, *u0;
};

// A surrogate's constants, derived from width, scale and temperature; see slope() in surrogate.h.
struct SurrogateShape {
    double width, height, steep;
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
    ForwardChunk forward[4][2];       // by DType, and whether the output is V S
    BackwardChunk backward[4][3][5];  // by DType, family, surrogate
};

// Rows of `block` elements (of the compute type) in a thread's scratch; the driver sizes it, chunk.cpp cuts it.
constexpr int64_t FORWARD_ROWS = 10;
constexpr int64_t BACKWARD_ROWS = 15;
constexpr int64_t AFFINE_ROWS = 3;       // more, if the input is an affine map of x
constexpr int64_t COLLECTED_STEPS = 32;  // results of so many steps at most are collected before they are streamed
constexpr int64_t STATE_BYTES = 4 * 64;  // a state of the registers a backward takes together; one per window, three per step
