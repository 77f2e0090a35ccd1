// The C ABI of the CPU kernel: what Python passes through ctypes (kernels/scan/cpu/abi.py mirrors these structs). All
// tensors of one call describe the same n elements per time step, in the same memory order; strides are in elements.
#pragma once
#include "../conv/conv_abi.h"
#include "export.h"
#include "surrogate_list.h"

extern "C" {

enum DType : int64_t { F64 = 0, F32 = 1, BF16 = 2, F16 = 3 };                  // of x, out, g_out, dx
enum Kind : int64_t { SCALAR = 0, CHANNEL = 1, ELEMENT = 2 };                  // shape of u0, v, a
enum Status : int64_t { OK = 0, BAD_ARGUMENT = 1, OUT_OF_MEMORY = 2 };

// ScanSpec.codes of core/spec.py.
enum FamilyCode : int64_t { AS = 0, RS = 1, TRSG = 2 };
enum ResetCode : int64_t { SOFT = 0, HARD = 1, NONE = 2 };
enum DetachCode : int64_t { KEEP = 0, DETACH_SPIKE = 1, DETACH_PRODUCT = 2 };

// The input is scale x + shift, or with `extra` scale x + shift + extra_scale extra: a batch norm and a residual sum
// that are never written to memory. Constants are [channels] in the compute type; a null extra_scale is 1. extra is in
// dtype, like x. With extra_bits instead, it is spikes: extra_scale if a bit is set, 0 otherwise (bits as in Forward,
// whole words per step). scale and shift of step t begin at t step_stride, which is 0, or `channels` if every time step
// has its own.
struct Affine {
    int64_t channels, inner;                  // channel of element i: (i / inner) % channels
    const void *scale, *shift, *extra, *extra_scale;
    int64_t extra_stride, step_stride;        // of extra: in elements; of extra_bits: in words
    const uint64_t* extra_bits;
};

struct Scan {
    int64_t dtype, steps, n;                  // n: elements per time step
    int64_t channels, inner;                  // channel of element i: (i / inner) % channels
    int64_t family, surrogate, reset, detach, strict, decay_input;  // ScanSpec.codes
    double width, scale, temperature;         // ScanSpec.constants
    int64_t u0_kind, v_kind, a_kind;          // v, a: not ELEMENT
    const void *x, *u0, *v, *a;               // x in dtype; u0, v, a in the compute type: double for F64, else float
    int64_t x_stride;                         // from one time step to the next; 0 repeats one frame
    const Affine* affine;                     // null: the input is x
    // null: x is in memory. Otherwise x is the output of this convolution, [steps][image][row][column][channel], which is
    // computed part by part in the cache; only in F32, for the forward, and if rows are whole words of bits
    const ConvInput* conv;
    // isa: -1 for the best one of this CPU, otherwise an index below steadyspike_isas()
    int64_t threads, isa;
};

// Spikes as bits, for steps of whole words: element i of a step is bit i % 64 of word i / 64. Only the common case of
// fast.h writes them. counts shows if a block was computed in another way, which a NaN causes too.
struct Forward {
    void *out, *u, *m;                        // out in dtype, [steps, n]; u [n], m [steps, n] or null: compute type
    double* active;                           // [2, channels if channelwise else 1]
    int64_t channelwise;
    uint64_t* bits;                           // [steps, n / 64] or null: set if out is not 0
    uint64_t* needed;                         // the same shape or null: set if the backward may use g_out (see below)
    int64_t* counts;                          // [steps + 1] with bits: spikes per step; then 1 if not all bits are valid
};
// needed: a spike, or a potential for which the surrogate's derivative may differ from 0. For all other elements the
// backward multiplies g_out by 0. With a surrogate without a window, all elements are needed.

struct Backward {
    const void *g_out, *g_u, *g_m;            // null: zero. g_out in dtype; g_u [n], g_m in the compute type
    int64_t g_out_stride, g_m_stride;         // from one time step to the next
    // dx in dtype, [steps, n], of the input; the others are like u0, v, a or null
    void *dx, *du0, *dv, *da;
    // factors of dv and da, with the same shapes, or null: 1; they may be dv and da themselves
    const void *v_slope, *a_slope;
    const void* center;                       // with affine: [affine.channels] in the compute type, or null
    double* norm_sums;                        // with center: [2, affine.channels], sums of dx and of dx (x - center)
};

// Called by csrc/neuron, which Python calls.
int64_t steadyspike_lif_forward(const Scan*, const Forward*);
int64_t steadyspike_lif_backward(const Scan*, const Backward*);
}
