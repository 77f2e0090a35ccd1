/* @about@ Written by SteadySpike @version@; do not edit.
   Needs no library and no operating system. Compile with -std=c99 -O2. A compiler must not merge a product and a sum
   into one rounding: -std=c99 forbids it to GCC, -ffp-contract=off to others. */
#include "@name@.h"

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif
/* Layers stay functions, so that the stack holds the arrays of one layer at a time. "noipa" also keeps GCC 12 from
   dropping calls whose stores it takes for dead although the next layer reads them; the other attribute keeps GCC at -O3
   from rearranging the loops over rows of weights, which would take twice as long. */
#if defined(__clang__)
#define INLINE inline __attribute__((always_inline))
#define LAYER static __attribute__((noinline)) void
#elif defined(__GNUC__)
#define INLINE inline __attribute__((always_inline))
#define LAYER static __attribute__((noipa, optimize("no-loop-unroll-and-jam"))) void
#else
#define INLINE inline
#define LAYER static void
#endif
#define RESTRICT restrict
/* Loops over the vectors of a block of sums, and over the elements of a vector: GCC keeps the sums in registers only if
   it unrolls the first and turns the second into a vector. */
#if defined(__GNUC__) && !defined(__clang__)
#define UNROLL _Pragma("GCC unroll 16")
#define ROLLED _Pragma("GCC unroll 1")
#else
#define UNROLL
#define ROLLED
#endif
/* Sums that are added up together: 16, 32 or 64, more for larger vector registers. */
#if defined(@NAME@_BLOCK)
#define BLOCK @NAME@_BLOCK
#elif defined(__AVX512BW__)
#define BLOCK 64
#elif defined(__SSE2__) || defined(__ARM_NEON) || defined(__wasm_simd128__)
#define BLOCK 32
#else
#define BLOCK 16
#endif

@first_type@@watch@
/* Sizes that the code relies on: an array of a negative size stops the compiler. */
typedef char @name@_check_int[sizeof(int) >= 4 ? 1 : -1];
typedef char @name@_check_net[sizeof(@name@_net) <= @NAME@_RAM + 256 ? 1 : -1];

const char *const @name@_classes[@NAME@_CLASSES] = {
@class_names@
};

/* ---- constants ---- */

@tables@
/* ---- helpers ---- */

@helpers@
/* ---- layers ---- */

@layers@
/* ---- the network ---- */

int @name@_init(@name@_net *net)
{
    int i;
    if (net == NULL) return @NAME@_BAD_ARGUMENT;
    net->step = 0;
    net->has_image = 0;
    for (i = 0; i < @NAME@_CLASSES; ++i) net->total[i] = 0;
@starts@    return @NAME@_OK;
}

static int usable(const float *frame)
{
    int i;
    for (i = 0; i < @NAME@_INPUTS; ++i) {
        if (!(frame[i] >= -@NAME@_INPUT_LIMIT && frame[i] <= @NAME@_INPUT_LIMIT)) return 0;
    }
    return 1;
}

int @name@_step(@name@_net *net, const float *frame, float *scores)
{
    const @output_type@ *out;
    int i;
    if (net == NULL) return @NAME@_BAD_ARGUMENT;
@step_check@    if (frame != NULL && !usable(frame)) return @NAME@_BAD_INPUT;
@still@@each_step@    out = @output@;
    for (i = 0; i < @NAME@_CLASSES; ++i) {
        const double score = (double)out[i] * @output_scale@;
        net->total[i] += score;
        if (scores != NULL) scores[i] = (float)score;
    }
    if (net->step < UINT32_MAX) ++net->step;
    return @NAME@_OK;
}

/* True if softmax(total / steps) gives its largest class at least this confidence. */
static int confident(const @name@_net *net, int winner, double confidence)
{
    double others = 0;
    int i;
    for (i = 0; i < @NAME@_CLASSES; ++i) others += exponential((net->total[i] - net->total[winner]) / (double)net->step);
    return others * confidence <= 1.0;
}

int @name@_run(@name@_net *net, const float *input, int steps, float confidence, @name@_result *result)
{
    int t, i, status;
    if (net == NULL || input == NULL || result == NULL || steps < 1) return @NAME@_BAD_ARGUMENT;
    if (!(confidence >= 0 && confidence <= 1)) return @NAME@_BAD_ARGUMENT;
    status = @name@_init(net);
    for (t = 0; t < steps && status == @NAME@_OK; ++t) {
        status = @name@_step(net, @run_frame@, NULL);
        if (status != @NAME@_OK) break;
        result->winner = 0;
        for (i = 1; i < @NAME@_CLASSES; ++i) {
            if (net->total[i] > net->total[result->winner]) result->winner = i;
        }
        result->steps = t + 1;
        if (confidence > 0 && confident(net, result->winner, (double)confidence)) break;
    }
    if (status != @NAME@_OK) return status;
    for (i = 0; i < @NAME@_CLASSES; ++i) result->scores[i] = (float)(net->total[i] / (double)net->step);
    return @NAME@_OK;
}
@main@
