// STEADYSPIKE_CLONES: one copy of a function per instruction set, chosen when the library is loaded. It is for simple
// loops that the compiler vectorises itself. GCC only: clang's choice needs a variable of its runtime, which zig does
// not link.
#pragma once
#include <cstdint>

#if defined(STEADYSPIKE_X86) && defined(__GLIBC__) && !defined(__clang__)
#define STEADYSPIKE_CLONES __attribute__((target_clones("default", "avx2", "arch=skylake-avx512")))
#else
#define STEADYSPIKE_CLONES
#endif
