/* Adds the listed rows of a table of weights, each as often as its input counts. */
static INLINE void add_counted_rows_@N(@0 *RESTRICT sum, const @1 *RESTRICT weights, const @2 *RESTRICT rows, const @3 *RESTRICT times, int count, const int channels)
{
    int r = 0, o;
    for (; r + 2 <= count; r += 2) {
        const @1 *a = weights + (size_t)rows[r] * (size_t)channels;
        const @1 *b = weights + (size_t)rows[r + 1] * (size_t)channels;
        const @0 ta = (@0)times[r], tb = (@0)times[r + 1];
        for (o = 0; o < channels; ++o) sum[o] = (@0)(sum[o] + ta * a[o] + tb * b[o]);
    }
    for (; r < count; ++r) {
        const @1 *a = weights + (size_t)rows[r] * (size_t)channels;
        const @0 ta = (@0)times[r];
        for (o = 0; o < channels; ++o) sum[o] = (@0)(sum[o] + ta * a[o]);
    }
}
