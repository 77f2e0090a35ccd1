/* Adds the listed rows of weights to 1 or 3 blocks of sums; their own sum stays in registers meanwhile. */
static INLINE void add_block_@N(@0 *RESTRICT sum, const @1 *RESTRICT weights, const @2 *RESTRICT list, const @3 *RESTRICT times, const int count, const int first, const int outs, const int blocks, const int block)
{
    const int all = blocks * block, wide = block < BLOCK / (int)sizeof(@1) ? block : BLOCK / (int)sizeof(@1);
    @0 total[3 * BLOCK];
    int r = 0, i, j;
    UNROLL for (i = 0; i < all; i += wide) ROLLED for (j = i; j < i + wide; ++j) total[j] = 0;
    do {
        const @1 *row = weights + (size_t)((int)list[r] - first) * (size_t)outs;
        const @0 n = times ? (@0)times[r] : 1;
        UNROLL for (i = 0; i < all; i += wide) ROLLED for (j = i; j < i + wide; ++j)
            total[j] = (@0)(total[j] + (times ? n * row[j] : row[j]));
    } while (++r < count);
    UNROLL for (i = 0; i < all; i += wide) ROLLED for (j = i; j < i + wide; ++j) sum[j] = (@0)(sum[j] + total[j]);
}

/* Adds the listed rows of weights of `outs` outputs to their sums, each `times` as often; null: once.
   first: what the list has for the first row of weights
   In groups a row has the outputs of its group; per_group: inputs of a group */
static INLINE void add_rows_@N(@0 *RESTRICT sum, const @1 *RESTRICT weights, const @2 *RESTRICT list, const @3 *RESTRICT times, const int count, const int first, const int outs, const int groups, const int per_group)
{
    int r, o = 0;
    if (count == 0) return;
    if (groups > 1) {
        for (r = 0; r < count; ++r) {
            const @1 *row = weights + (size_t)list[r] * (size_t)outs;
            @0 *target = sum + (int)list[r] / per_group % groups * outs;
            for (o = 0; o < outs; ++o) target[o] = (@0)(target[o] + (times ? (@0)times[r] * row[o] : row[o]));
        }
        return;
    }
#define ADD(blocks, n) \
    for (; o + blocks * (n) <= outs; o += blocks * (n)) add_block_@N(sum + o, weights + o, list, times, count, first, outs, blocks, n);
    ADD(3, BLOCK) ADD(3, BLOCK / 2) ADD(1, BLOCK) ADD(1, BLOCK / 2) ADD(1, BLOCK / 4) ADD(1, 8) ADD(1, 4) ADD(1, 1)
#undef ADD
}
