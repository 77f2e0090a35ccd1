// How the spike convolution and a deployed layer cut their work.
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

// The images and rows of a part.
struct ConvPart {
    int64_t image0, image1, row0, row1;

    ConvPart(const ConvPlan& plan, const ConvShape& shape, int64_t height, int64_t part) {
        image0 = part / plan.row_parts * plan.images;
        image1 = image0 + plan.images < shape.images ? image0 + plan.images : shape.images;
        row0 = part % plan.row_parts * plan.rows;
        row1 = row0 + plan.rows < height ? row0 + plan.rows : height;
    }
};

constexpr int64_t FORWARD_PIXELS = 1024;  // output pixels of a unit: enough to use each loaded weight several times

// Parts of the forward's output in which every pixel is computed at `steps` steps. Every thread gets work, ideally several
// pieces of it.
inline ConvPlan cut_forward(int64_t images, const ConvShape& shape, int64_t steps, int64_t threads) {
    int64_t pixels = FORWARD_PIXELS / steps;
    const int64_t total = images * shape.out_height * shape.out_width;
    while (pixels * steps > 64 && total / pixels < 4 * threads) pixels /= 2;
    return cut(images, shape.out_height, shape.out_width, larger(pixels, 1));
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
