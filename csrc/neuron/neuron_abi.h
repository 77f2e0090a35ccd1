// The C ABI of a neuron layer's own numbers around its scan (kernels/scan/cpu/abi.py mirrors these structs).
#pragma once
#include "../scan/abi.h"

extern "C" {

enum LinkCode : int64_t { FIXED_CONSTANT = 0, BY_SOFTPLUS = 1, BY_SIGMOID = 2 };  // Link.code of nn/parametrization.py
constexpr int64_t NEURON_VERSION = 5;  // of the meaning of the fields below, of Affine and Forward in csrc/scan/abi.h, and of csrc/norm
// Added to the codes of the scan. MOVED: done, and the running mean has changed. OUTSIDE: nothing was done, because a
// parameter is not in its range.
enum NeuronStatus : int64_t { MOVED = 3, OUTSIDE = 4 };

// How V and a are computed from parameters: the range of each, and the smallest slope that a gradient uses
// (nn/parametrization.py).
struct Links {
    int64_t v_link, a_link;
    double v_low, v_high, a_low, a_high, least_slope;
};

// A scan that starts at MP-Init's running mean and updates it afterwards. scan.u0, scan.v, scan.a and io.active are as
// in the scan; mean, u0, k, w are in its compute type.
struct NeuronForward {
    Links links;
    Scan scan;
    Forward io;
    const void *k, *w;     // parameters of v and a, with the same shapes, whose range is checked; null: not checked
    // u0: memory of scan.u0, filled with mean, or with start if mean is null; null: scan.u0 is given
    void *u0, *mean;
    double start, momentum;  // momentum: 0 does not change mean
};

// The scan's backward, in which dv and da are the gradients of k and w.
struct NeuronBackward {
    Links links;
    Scan scan;
    Backward io;
    const void *k, *w;     // as above; null if v or a is fixed
};

STEADYSPIKE_EXPORT int64_t steadyspike_neuron_forward(const NeuronForward*);
STEADYSPIKE_EXPORT int64_t steadyspike_neuron_backward(const NeuronBackward*);
STEADYSPIKE_EXPORT int64_t steadyspike_neuron_abi();  // changes with the structs above and NEURON_VERSION
}
