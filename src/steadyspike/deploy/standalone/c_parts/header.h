/* @about@ Written by SteadySpike @version@; do not edit. */
#ifndef @NAME@_H
#define @NAME@_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define @NAME@_INPUTS @inputs@ /* values of a frame, @shape@ */
#define @NAME@_CLASSES @classes@
#define @NAME@_TIMESTEPS @timesteps@ /* time steps that the network was trained with */
#define @NAME@_INPUT_LIMIT @limit@f /* larger inputs are refused */
#define @NAME@_RAM @ram@ /* bytes of @name@_net, without what a compiler adds to align it */
#define @NAME@_FLASH @flash@ /* bytes of constant tables */

/* What the functions return. */
enum @name@_status {
    @NAME@_OK = 0,
    @NAME@_BAD_ARGUMENT = -1, /* a null pointer, or a number of steps below 1 */
    @NAME@_BAD_INPUT = -2, /* a value that is not finite, or larger than @NAME@_INPUT_LIMIT */
    @NAME@_TOO_MANY_STEPS = -3 /* @steps_text@ */
};

@first@/* All memory of one network; several may run side by side. */
typedef struct @name@_net {
    uint32_t step; /* time steps since @name@_init */
    uint32_t has_image;
    double total[@NAME@_CLASSES]; /* scores, summed over time */
@members@} @name@_net;

/* What the network decided. */
typedef struct @name@_result {
    int winner; /* the class with the highest mean score */
    int steps; /* time steps until the decision */
    float scores[@NAME@_CLASSES]; /* means over these steps */
} @name@_result;

extern const char *const @name@_classes[@NAME@_CLASSES];

/* Starts a sequence: neurons take their initial potentials. */
int @name@_init(@name@_net *net);

/* One time step. frame: @frame_text@ scores: those of this step, may be null. */
int @name@_step(@name@_net *net, const float *frame, float *scores);

/* A whole sequence from its start. input: @run_text@
   Stops as soon as softmax(mean scores) gives one class at least this confidence; 0: runs all steps. */
int @name@_run(@name@_net *net, const float *input, int steps, float confidence, @name@_result *result);

#ifdef __cplusplus
}
#endif

#endif
