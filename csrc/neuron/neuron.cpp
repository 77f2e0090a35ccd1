// What a neuron layer computes around its scan: its start, the update of MP-Init's running mean, the slopes of V and
// 1/tau. These are only a few numbers. As operators of torch they would take several times as long as a small layer's
// scan.
#include <cmath>

#include "neuron_abi.h"

namespace {

int64_t count(int64_t kind, const Scan& scan) { return kind == CHANNEL ? scan.channels : 1; }

template <class R>
bool inside(const void* raw, int64_t n, double low, double high) {
    const R* values = static_cast<const R*>(raw);
    for (int64_t i = 0; values && i < n; ++i)
        if (!(low <= double(values[i]) && double(values[i]) <= high)) return false;  // nor is NaN
    return true;
}

// Updates the running mean with the mean of the neurons that fired, as MPInit.update does. True if the running mean may
// have changed.
template <class R>
bool move(R* mean, const double* active, int64_t n, double momentum) {
    bool moved = false;
    for (int64_t i = 0; i < n; ++i) {
        const double total = active[i], number = active[n + i], old = double(mean[i]);
        const double batch = total / (number > 1.0 ? number : 1.0);
        if (!(number > 0) || !std::isfinite(batch)) continue;
        const double step = momentum * (batch - old);
        if (n > 1 && !std::isfinite(step)) continue;
        mean[i] = R(old + step);
        moved = true;
    }
    return moved;
}

template <class R>
int64_t forward(const NeuronForward& call) {
    const Scan& scan = call.scan;
    const Links& links = call.links;
    if (!inside<R>(call.k, count(scan.v_kind, scan), links.v_low, links.v_high) ||
        !inside<R>(call.w, count(scan.a_kind, scan), links.a_low, links.a_high))
        return OUTSIDE;
    R *u0 = static_cast<R*>(call.u0), *mean = static_cast<R*>(call.mean);
    const int64_t n = count(scan.u0_kind, scan);
    for (int64_t i = 0; u0 && i < n; ++i) u0[i] = mean ? mean[i] : R(call.start);
    const int64_t status = steadyspike_lif_forward(&scan, &call.io);
    if (status != OK || !mean || call.momentum == 0) return status;
    return move(mean, call.io.active, n, call.momentum) ? int64_t(MOVED) : int64_t(OK);
}

// The operations of torch's sigmoid, in their order.
template <class R>
R sigmoid(R x) {
    return R(1) / (R(1) + std::exp(-x));
}

// Slopes of the constants as functions of their parameters, in the memory of the gradients; see Link.slope_now.
template <class R>
void slopes(int64_t link, const void* raw, const void* constant, void* to, int64_t n, double low, double high, double least) {
    const R *parameter = static_cast<const R*>(raw), *value = static_cast<const R*>(constant);
    R* out = static_cast<R*>(to);
    for (int64_t i = 0; i < n; ++i) {
        const R x = parameter[i] < R(low) ? R(low) : parameter[i] > R(high) ? R(high) : parameter[i];  // NaN stays NaN
        const R slope = link == BY_SOFTPLUS ? sigmoid(x) : sigmoid(-x) * value[i];
        out[i] = slope < R(least) ? R(least) : slope;
    }
}

template <class R>
int64_t backward(const NeuronBackward& call) {
    const Scan& scan = call.scan;
    const Links& links = call.links;
    Backward io = call.io;
    if (call.k && io.dv) {
        slopes<R>(links.v_link, call.k, scan.v, io.dv, count(scan.v_kind, scan), links.v_low, links.v_high, links.least_slope);
        io.v_slope = io.dv;
    }
    if (call.w && io.da) {
        slopes<R>(links.a_link, call.w, scan.a, io.da, count(scan.a_kind, scan), links.a_low, links.a_high, links.least_slope);
        io.a_slope = io.da;
    }
    return steadyspike_lif_backward(&scan, &io);
}

bool known(int64_t link, const void* raw) { return !raw || link == BY_SOFTPLUS || link == BY_SIGMOID; }

}  // namespace

extern "C" {

int64_t steadyspike_neuron_forward(const NeuronForward* call) {
    const Scan& scan = call->scan;
    if (call->u0 ? call->u0 != scan.u0 || scan.u0_kind == ELEMENT : call->mean != nullptr) return BAD_ARGUMENT;
    // The statistics have the same size as the mean.
    const int64_t statistics = call->io.channelwise ? scan.channels : 1;
    if (call->mean && count(scan.u0_kind, scan) != statistics) return BAD_ARGUMENT;
    return call->scan.dtype == F64 ? forward<double>(*call) : forward<float>(*call);
}

int64_t steadyspike_neuron_backward(const NeuronBackward* call) {
    if (!known(call->links.v_link, call->k) || !known(call->links.a_link, call->w)) return BAD_ARGUMENT;
    return call->scan.dtype == F64 ? backward<double>(*call) : backward<float>(*call);
}

int64_t steadyspike_neuron_abi() { return int64_t(sizeof(NeuronForward) * 10000 + sizeof(NeuronBackward)) + 100000000 * NEURON_VERSION; }
}
