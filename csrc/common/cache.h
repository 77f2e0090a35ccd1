// The size of the last-level cache that one core can use; looked up once.
#pragma once
#include <cstdint>
#include <cstdio>

namespace {

// In bytes; 0 if it cannot be read. Read from Linux itself: on AMD the value of the C library's sysconf is not the
// cache that one core can use.
inline int64_t last_cache_bytes() {
    static const int64_t found = [] {
        long kilobytes = 0;
        if (std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r")) {
            if (std::fscanf(file, "%ldK", &kilobytes) != 1) kilobytes = 0;
            std::fclose(file);
        }
        return int64_t(kilobytes) << 10;
    }();
    return found;
}

}  // namespace
