/* Adds the listed rows of a table of weights, several at a time, so that sums stay in registers longer. */
static INLINE void add_rows_@N(@0 *RESTRICT sum, const @1 *RESTRICT weights, const @2 *RESTRICT rows, int count, const int channels)
{
    int r = 0, o;
    for (; r + 4 <= count; r += 4) {
        const @1 *a = weights + (size_t)rows[r] * (size_t)channels;
        const @1 *b = weights + (size_t)rows[r + 1] * (size_t)channels;
        const @1 *c = weights + (size_t)rows[r + 2] * (size_t)channels;
        const @1 *d = weights + (size_t)rows[r + 3] * (size_t)channels;
        for (o = 0; o < channels; ++o) sum[o] = (@0)(sum[o] + a[o] + b[o] + c[o] + d[o]);
    }
    for (; r < count; ++r) {
        const @1 *a = weights + (size_t)rows[r] * (size_t)channels;
        for (o = 0; o < channels; ++o) sum[o] = (@0)(sum[o] + a[o]);
    }
}
