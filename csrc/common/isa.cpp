// Which instruction sets can be used here; looked up once.
#include "isa.h"

#include <cstdlib>
#include <cstring>

namespace {

const char* const NAMES[] = {"base", "avx2", "avx512"};

// How many this CPU can run.
int64_t supported() {
#if defined(STEADYSPIKE_X86)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 ? 3 : 2;
#else
    return 1;
#endif
}

// How many may run: with STEADYSPIKE_CPU_CAPABILITY none behind the one it names.
int64_t count() {
    const int64_t most = supported();
    const char* const wanted = std::getenv("STEADYSPIKE_CPU_CAPABILITY");
    for (int64_t isa = 0; wanted && isa < most; ++isa)
        if (std::strcmp(wanted, NAMES[isa]) == 0) return isa + 1;
    return most;
}

}  // namespace

extern "C" {

int64_t steadyspike_isas() {
    static const int64_t found = count();
    return found;
}

const char* steadyspike_isa_name(int64_t isa) { return 0 <= isa && isa < steadyspike_isas() ? NAMES[isa] : ""; }
}
