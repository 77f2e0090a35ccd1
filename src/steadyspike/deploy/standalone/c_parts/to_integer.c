#if defined(__FAST_MATH__) || (defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ == 2)
#error "needs the rounding of IEEE 754: compile without -ffast-math; for 32-bit x86 with -msse2 -mfpmath=sse"
#endif
/* The nearest integer, the even one of two; cut at 2^30, so that no input can overflow. The sum with 1.5 * 2^52 has no
   bits below 1, so the addition rounds; there are no branches, so that compilers can use vectors. */
static INLINE int32_t to_integer(double value)
{
    const int32_t low = !(value > -1073741824.0), high = value > 1073741824.0;
    const double near = ((low | high ? 0.0 : value) + 6755399441055744.0) - 6755399441055744.0;
    return (int32_t)near + (high - low) * 1073741824;
}
