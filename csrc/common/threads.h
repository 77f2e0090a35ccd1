// The threads of a call. Results do not depend on their number.
#pragma once
#include <atomic>
#include <cstdint>

// Runs work(data) on `threads` threads at once, including this one.
extern "C" void steadyspike_on_threads(int64_t threads, void (*work)(void*), void* data);

namespace {

template <class Work>
void on_threads(int64_t threads, const Work& work) {
    if (threads <= 1) return work();
    steadyspike_on_threads(
        threads, [](void* data) { (*static_cast<const Work*>(data))(); }, const_cast<Work*>(&work));
}

// Runs work(first, last) for `threads` ranges of nearly equal length that cover 0 .. n.
template <class Work>
void on_ranges(int64_t threads, int64_t n, const Work& work) {
    if (threads <= 1) return work(int64_t(0), n);
    std::atomic<int64_t> next{0};
    on_threads(threads, [&] {
        for (int64_t i = next++; i < threads; i = next++) work(n * i / threads, n * (i + 1) / threads);
    });
}

}  // namespace
