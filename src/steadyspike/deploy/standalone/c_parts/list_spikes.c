/* Appends the spikes of a pixel to a list: the row of weights of channel k is first + k. */
static INLINE int list_spikes_@N(@1 *RESTRICT list, int count, const @0 *RESTRICT words, const int channels, const int first)
{
    const int bits = 8 * (int)sizeof(@0);
    int i, b;
    for (i = 0; i < (channels + bits - 1) / bits; ++i) {
        uint32_t left = words[i];
#if BLOCK > 16 /* a vector per byte, without branches, which would be hard to predict */
        for (b = 0; b < bits; b += 8) {
            const uint16_t *set = set_bits[left >> b & 255u];
            int j;
            for (j = 0; j < 8; ++j) list[count + j] = (@1)(first + i * bits + b + set[j]);
            count += number_of_bits[left >> b & 255u];
        }
#else
        for (b = first + i * bits; left != 0; left &= left - 1) list[count++] = (@1)(b + lowest_bit(left));
#endif
    }
    return count;
}
