// For tensors larger than the cache: stores that bypass it (no line is read before it is written), and early loads.
#pragma once
#include "lanes.h"

namespace {

// Stores one register to an address that is a multiple of its size.
template <class V>
inline void stream_register(void* to, V value) {
    static_assert(sizeof(V) == STEADYSPIKE_REGISTER, "whole registers only");
#if defined(__AVX512F__)
    _mm512_stream_si512(static_cast<__m512i*>(to), __m512i(value));
#elif defined(__AVX__)
    _mm256_stream_si256(static_cast<__m256i*>(to), __m256i(value));
#elif defined(__SSE2__)
    _mm_stream_si128(static_cast<__m128i*>(to), __m128i(value));
#else
    __builtin_memcpy(to, &value, sizeof(value));
#endif
}

// Copies `bytes` from scratch to `to` (aligned to the element size, at least 2).
inline void stream_bytes(void* to, const void* from, int64_t bytes) {
    char* target = static_cast<char*>(to);
    const char* source = static_cast<const char*>(from);
    const int64_t to_line = int64_t(-reinterpret_cast<uintptr_t>(target) & 63u);
    const int64_t head = to_line < bytes ? to_line : bytes;
    __builtin_memcpy(target, source, size_t(head));
    int64_t i = head;
    for (; i + 64 <= bytes; i += 64)
        for (int64_t j = i; j < i + 64; j += STEADYSPIKE_REGISTER) {
            Words raw;
            __builtin_memcpy(&raw, source + j, sizeof(raw));
            stream_register(target + j, raw);
        }
    __builtin_memcpy(target + i, source + i, size_t(bytes - i));
}

// After this, streaming stores become visible to other threads in order.
inline void stream_end() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

}  // namespace
