// The surrogate's derivative at all potentials of a group of neurons.
#pragma once
#include <array>
#include <utility>

#include "rows.h"

namespace {

template <class R, int COUNT, int SURROGATE>
void slopes_of(GroupStep<R, COUNT>* group, int64_t steps, bool absolute, const ConstantRows<R>& constants, int64_t i,
               const Shape<R>& shape) {
    for (int k = 0; k < COUNT; ++k) {
        const int64_t at = constants.place(i + k * WIDTH<R>);
        const Vec<R> v = load<true>(constants.v + at, 0), inverse = load<true>(constants.inverse + at, 0);
        const Vec<R> low = load<true>(constants.low + at, 0), high = load<true>(constants.high + at, 0);
        for (int64_t t = 0; t < steps; ++t) {
            const Vec<R> potential = group[t].m[k];
            const Vec<R> z = absolute ? potential - v : relative<R, SURROGATE>(potential, v, inverse);
            group[t].f[k] = slope<R, SURROGATE>(z, potential, low, high, shape);
        }
    }
}

// slopes_of for every surrogate, by its code.
template <class Function, class R, int COUNT, int... CODES>
constexpr std::array<Function, sizeof...(CODES)> table_of(std::integer_sequence<int, CODES...>) {
    return {slopes_of<R, COUNT, CODES>...};
}

// group: [steps]; it starts at element i of the block.
template <class R, int COUNT>
void slopes(GroupStep<R, COUNT>* group, int64_t steps, const BackwardTask& task, const ConstantRows<R>& constants, int64_t i) {
    const bool absolute = task.scan.family == AS;
    const Shape<R> shape{R(task.shape.width), R(task.shape.height), R(task.shape.steep)};
    using Function = void (*)(GroupStep<R, COUNT>*, int64_t, bool, const ConstantRows<R>&, int64_t, const Shape<R>&);
    constexpr auto table = table_of<Function, R, COUNT>(std::make_integer_sequence<int, SURROGATE_COUNT>());
    table[size_t(task.scan.surrogate)](group, steps, absolute, constants, i, shape);
}

}  // namespace
