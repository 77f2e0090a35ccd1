// How the drivers of the spike convolution and of a deployed layer cut their work.
#pragma once
#include "conv_abi.h"
#include "units.h"

namespace {

// Parts of about `pixels` pixels each, for images of height x width.
inline ConvPlan cut(int64_t images, int64_t height, int64_t width, int64_t pixels) {
    ConvPlan plan{};
    plan.images = smaller(images, larger(1, pixels / (height * width)));
    const int64_t rows = smaller(height, larger(1, pixels / width));
    plan.row_parts = ceil(height, rows);
    plan.rows = ceil(height, plan.row_parts);
    plan.row_parts = ceil(height, plan.rows);
    plan.parts = ceil(images, plan.images) * plan.row_parts;
    plan.splits = 1;
    return plan;
}

template <class Work>
int64_t run(int64_t threads, int64_t units, Work work) {
    switch (run_units(threads, units, work)) {
        case Done::out_of_memory: return CONV_OUT_OF_MEMORY;
        case Done::not_finite: return CONV_NOT_FINITE;
        default: return CONV_OK;
    }
}

}  // namespace
