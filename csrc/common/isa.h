// The instruction sets that this build has code for and this CPU can run: base, avx2, avx512. Every operator has a
// table of functions per instruction set, in this order.
#pragma once
#include "export.h"

extern "C" {
STEADYSPIKE_EXPORT int64_t steadyspike_isas();  // their number; the best is the last
STEADYSPIKE_EXPORT const char* steadyspike_isa_name(int64_t isa);
}
