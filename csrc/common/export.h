// Marks the functions that Python calls; everything else in the library is hidden.
#pragma once
#include <cstdint>

#if defined(_WIN32)
#define STEADYSPIKE_EXPORT __declspec(dllexport)
#else
#define STEADYSPIKE_EXPORT __attribute__((visibility("default")))
#endif
