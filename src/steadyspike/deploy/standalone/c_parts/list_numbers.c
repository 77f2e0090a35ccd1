/* The same for inputs other than bits: lists those that are not zero, and their values in `times`. */
static INLINE int list_numbers_@N(@0 *RESTRICT list, @1 *RESTRICT times, int count, const @1 *RESTRICT values, const int channels, const int stride, const int first)
{
    int k;
    for (k = 0; k < channels; ++k) {
        list[count] = (@0)(first + k);
        times[count] = values[k * stride];
        count += times[count] != 0;
    }
    return count;
}
