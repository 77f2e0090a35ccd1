/* The number of the lowest bit that is set. */
static INLINE int lowest_bit(uint32_t word)
{
#if defined(__GNUC__) || defined(__clang__)
    return __builtin_ctz(word);
#else
    int place = 0;
    while ((word & 1u) == 0) {
        word >>= 1;
        ++place;
    }
    return place;
#endif
}
