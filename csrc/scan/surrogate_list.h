// The surrogates by their code, and the values that the driver computes from each one's constants. A new surrogate
// needs a name and its rows here, and a formula in surrogate.h; the code is its position in SURROGATES of
// core/surrogate.py.
#pragma once
#include <cmath>
#include <cstdint>

enum SurrogateCode : int64_t { RECT, TRIANGLE, ARCTAN, SIGMOID, DSPIKE, SURROGATE_COUNT };

// A surrogate's constants, derived from width, scale and temperature; see slope() in surrogate.h.
struct SurrogateShape {
    double width, height, steep;
};

inline SurrogateShape surrogate_shape(int64_t surrogate, double width, double scale, double temperature) {
    const double w = width, b = temperature, half_pi = 1.57079632679489661923;
    switch (surrogate) {
        case RECT: return {w, scale / w, 0};
        case TRIANGLE: return {w, scale / (w * w), 0};
        case ARCTAN: return {w, scale * w / 2, half_pi * w};
        case SIGMOID: return {w, scale / w, 1 / w};
        default: return {w, 4 * (scale * b / (2 * std::tanh(b / 2)) / w), 2 * b / w};  // DSPIKE
    }
}

// True if the derivative ends at a window's edge, which must be decided exactly as in the reference.
inline bool has_exact_window(int64_t surrogate) { return surrogate == RECT || surrogate == DSPIKE; }

// True if the edge itself belongs to the window.
inline bool window_is_closed(int64_t surrogate) { return surrogate == DSPIKE; }

// True if the derivative is 0 beyond some distance, without an exact edge.
inline bool fades_out(int64_t surrogate) { return surrogate == TRIANGLE; }
