// On ELF systems (Linux) the threads are torch's. Its wheels load GNU OpenMP's functions into the process, and the
// loader finds them by name, so torch's operators and these share one pool. On other systems every call starts its own
// threads.
#include "threads.h"

#include <system_error>
#include <thread>
#include <vector>

#if defined(__ELF__)
// The function behind `#pragma omp parallel num_threads(n)` in GCC. Weak: null in a process without OpenMP.
extern "C" __attribute__((weak)) void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned flags);
#endif

extern "C" void steadyspike_on_threads(int64_t threads, void (*work)(void*), void* data) {
#if defined(__ELF__)
    if (GOMP_parallel) return GOMP_parallel(work, data, unsigned(threads), 0);
#endif
    std::vector<std::thread> others;
    try {
        for (int64_t i = 1; i < threads; ++i) others.emplace_back(work, data);
    } catch (const std::system_error&) {  // if the system gives no more threads, the running ones share the work
    }
    work(data);
    for (std::thread& other : others) other.join();
}
