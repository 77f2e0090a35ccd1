// The instruction sets that can be used here; looked up once.
#include "isa.h"

#include <cstdlib>
#include <cstring>
#if defined(STEADYSPIKE_X86)
#include <cpuid.h>
#endif

namespace {

// A library without the last two does not contain their names, for which tools/build_wheels.py searches.
const char* const NAMES[] = {
    "base",
#if defined(STEADYSPIKE_X86)
    "avx2", "avx512",
#endif
};

#if defined(STEADYSPIKE_X86)
constexpr bool has_all(uint64_t bits, uint64_t mask) { return (bits & mask) == mask; }

// The registers that the operating system saves (XCR0); the CPU must support xgetbv.
uint64_t saved_registers() {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
}
#endif

// The number of instruction sets that this CPU can run.
int64_t supported() {
#if defined(STEADYSPIKE_X86)
    // By cpuid itself, because __builtin_cpu_supports needs a variable of the compiler's runtime, which zig does not
    // link.
    constexpr uint64_t FMA = 1 << 12, XGETBV = 1 << 27, AVX2 = 1 << 5;
    constexpr uint64_t AVX512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
    constexpr uint64_t YMM = 0x6, ZMM = 0xe6;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_all(c, FMA | XGETBV)) return 1;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has_all(b, AVX2)) return 1;
    const uint64_t saved = saved_registers();
    if (!has_all(saved, YMM)) return 1;
    return has_all(b, AVX512) && has_all(saved, ZMM) ? 3 : 2;
#else
    return 1;
#endif
}

// The number that may run: with STEADYSPIKE_CPU_CAPABILITY, those up to the one it names.
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
