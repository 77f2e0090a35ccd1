/* The nearest integer, the even one of two; cut at 2^30, so that no input can overflow. */
static INLINE int32_t to_integer(double value)
{
    double below;
    int32_t whole;
    if (!(value > -1073741824.0)) return -1073741824;
    if (value > 1073741824.0) return 1073741824;
    whole = (int32_t)value;
    if ((double)whole > value) --whole;
    below = value - (double)whole;
    return below > 0.5 || (below == 0.5 && (whole & 1)) ? whole + 1 : whole;
}
