/* exp(x) for x <= 0, without a mathematics library: exp(x / 1024) by its series, squared ten times. */
static double exponential(double x)
{
    double term = 1.0, total = 1.0, small = x / 1024.0;
    int i;
    if (x < -700.0) return 0.0;
    for (i = 1; i < 10; ++i) {
        term *= small / i;
        total += term;
    }
    for (i = 0; i < 10; ++i) total *= total;
    return total;
}
