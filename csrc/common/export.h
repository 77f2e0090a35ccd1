// Marks the functions that Python calls; everything else in the library is hidden.
#pragma once
#include <cstdint>

#define STEADYSPIKE_EXPORT __attribute__((visibility("default")))
