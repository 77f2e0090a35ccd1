// For tensors larger than the cache: stores that bypass it (no line is read before it is written) and early loads.
#pragma once
#include <cstdint>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

// Copies `bytes` from scratch to `to` (aligned to the element size, at least 2).
inline void stream_bytes(void* to, const void* from, int64_t bytes) {
    char* target = static_cast<char*>(to);
    const char* source = static_cast<const char*>(from);
#if defined(__SSE2__)
    const int64_t to_line = int64_t(-reinterpret_cast<uintptr_t>(target) & 63u);
    const int64_t head = to_line < bytes ? to_line : bytes;
    __builtin_memcpy(target, source, size_t(head));
    int64_t i = head;
    for (; i + 64 <= bytes; i += 64) {
#if defined(__AVX512F__)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(target + i), _mm512_loadu_si512(source + i));
#else
        for (int64_t j = i; j < i + 64; j += 16)
            _mm_stream_si128(reinterpret_cast<__m128i*>(target + j),
                             _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + j)));
#endif
    }
    __builtin_memcpy(target + i, source + i, size_t(bytes - i));
#else
    __builtin_memcpy(target, source, size_t(bytes));
#endif
}

// Starts loading a row that is needed soon.
template <class IO>
inline void prefetch_row(int64_t n, const IO* row) {
    const char* bytes = reinterpret_cast<const char*>(row);
    for (int64_t i = 0; i < n * int64_t(sizeof(IO)); i += 64) __builtin_prefetch(bytes + i);
}

// Streaming stores become visible to other threads in order after this.
inline void stream_end() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

}  // namespace
