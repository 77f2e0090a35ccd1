// What the driver (lif.cpp) passes to the code that is compiled once per instruction set (chunk.cpp).
#pragma once
#include "abi.h"

// How one call is divided. Nothing here depends on the number of threads, so no result does.
struct Plan {
    int64_t chunk;      // elements per chunk, the unit of parallel work with its own partial sums
    int64_t chunks;
    int64_t block;      // elements that go through all time steps together, BLOCK or LARGE_BLOCK
    int64_t tiles;      // of TILE time steps, the last one shorter
    int64_t stream;     // 1: stores to the written tensor of size T bypass the cache
    int64_t fast;       // 1: the common case, see fast.h
    int64_t scratch;    // bytes per thread
};

// Parameters per channel, in the compute type: threshold V, the value from which on S is 1, 1 - a, factor of the input,
// 1 / V, the smallest and the largest potential in the surrogate's window (window.h), a spike's output, and the initial
// potential (unless it is per element).
struct ChannelParams {
    const void *v, *fire, *keep, *gain, *inverse, *low, *high, *level, *u0;
};

// The convolution that computes x: its chunks are the parts of `task.plan`, each at all time steps.
struct ForwardConv {
    ConvTask task;                            // task.shape.images: those of one time step
    decltype(ConvLoops::forward) run;
    int64_t x_at;                             // bytes from the scratch's beginning to a chunk's x
};

struct ForwardTask {
    Scan scan;
    Forward io;
    Plan plan;
    ChannelParams params;
    const ForwardConv* conv;                  // null: x is in memory
};

struct BackwardTask {
    Scan scan;
    Backward io;
    Plan plan;
    ChannelParams params;
    SurrogateShape shape;
    bool usual;         // TrSG with a rectangle of height 1, all windows above 0
    int64_t sums;       // the number of partial sums of a chunk, see below
};

// sums: this chunk's partial sums in double, zeroed by the caller. Forward [2][channels]: sum of U[T] over active
// neurons, their number; then, with bits, [steps] spikes and the number of blocks without bits. Backward [3][channels]:
// dv, da, du0; then, with norm_sums, [2][affine.channels].
using ForwardChunk = void (*)(const ForwardTask&, int64_t chunk, void* scratch, double* sums);
using BackwardChunk = void (*)(const BackwardTask&, int64_t chunk, void* scratch, double* sums);

struct ChunkFunctions {
    ForwardChunk forward[2];    // computing in double, in float
    BackwardChunk backward[2];
};

// the converted or mapped values of this many elements fit in scratch in the first-level cache
constexpr int64_t BLOCK = 512;
constexpr int64_t LARGE_BLOCK = 4096;  // for a scan that reads and writes in place, because the cost per block is lower
constexpr int64_t TILE = 16;    // time steps that are processed at once; sums over them are in the compute type
constexpr int64_t PAD = 64;     // rows in scratch are padded to a multiple of this
constexpr int64_t ROW_GAP = 80;  // elements between rows in scratch
// Rows of Plan::block elements (of the compute type) in a thread's scratch; the driver decides its size, forward.h and
// backward.h divide it.
constexpr int64_t FORWARD_ROWS = 16 + 6 * TILE;
constexpr int64_t BACKWARD_ROWS = 24 + 8 * TILE;
