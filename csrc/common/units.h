// Work that is cut into units: which code runs it, and how threads share it. Results do not depend on the number of
// threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <new>

#include "isa.h"
#include "threads.h"

namespace {

enum class Done { all, not_finite, out_of_memory };

inline int64_t ceil(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// The entry of a table in the order of isa.h; isa is -1 for the best one of this CPU.
template <class T>
const T& for_isa(const T* const* table, int64_t isa) {
    return *table[isa < 0 ? steadyspike_isas() - 1 : isa];
}

// Runs work(unit) for unit = 0 .. units - 1, each on any thread. work(unit) is false if a value is not finite.
template <class Work>
Done run_units(int64_t threads, int64_t units, Work work) {
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false}, infinite{false};
    const auto loop = [&] {
        try {
            for (int64_t unit = next++; unit < units; unit = next++)
                if (!work(unit)) infinite = true;
        } catch (const std::bad_alloc&) {
            failed = true;
        }
    };
    on_threads(units <= 1 ? 1 : threads, loop);
    return failed ? Done::out_of_memory : infinite ? Done::not_finite : Done::all;
}

}  // namespace
