
/* A program for tests: reads samples of float32 from its input until it ends.
   @name@ STEPS: writes, for every sample and step, the spikes of all layers and the scores.
   @name@ STEPS CONFIDENCE: writes, for every sample, @name@_result.
   @name@ time STEPS ROUNDS: prints the mean time of a sample in microseconds. */
#include <time.h>

static @name@_net net;
static float input[@main_inputs@];

static int read_sample(int steps)
{
    size_t size = (size_t)@NAME@_INPUTS * (size_t)(@main_frames@);
    (void)steps;
    return size <= sizeof input / sizeof input[0] && fread(input, sizeof(float), size, stdin) == size;
}

#ifndef __wasi__ /* it has no processor time */
static int time_it(int steps, int rounds)
{
    @name@_result result = {0, 0, {0}};
    int i, samples = 0;
    double seconds = 0;
    while (read_sample(steps)) {
        const clock_t start = clock();
        for (i = 0; i < rounds; ++i) {
            if (@name@_run(&net, input, steps, 0, &result) != @NAME@_OK) return 2;
        }
        seconds += (double)(clock() - start) / CLOCKS_PER_SEC;
        ++samples;
    }
    printf("%.3f\n", samples > 0 && rounds > 0 ? 1e6 * seconds / samples / rounds : 0.0);
    return 0;
}
#endif

int main(int count, char **words)
{
    int t, steps;
    float scores[@NAME@_CLASSES];
#ifndef __wasi__
    if (count == 4) return time_it(atoi(words[2]), atoi(words[3]));
#endif
    if (count < 2 || (steps = atoi(words[1])) < 1) return 1;
    watching = count == 2;
    while (read_sample(steps)) {
        if (count == 3) {
            @name@_result result = {0, 0, {0}};
            if (@name@_run(&net, input, steps, (float)atof(words[2]), &result) != @NAME@_OK) return 2;
            if (fwrite(&result, sizeof result, 1, stdout) != 1) return 3;
            continue;
        }
        if (@name@_init(&net) != @NAME@_OK) return 2;
        for (t = 0; t < steps; ++t) {
            if (@name@_step(&net, @main_frame@, scores) != @NAME@_OK) return 2;
            if (fwrite(scores, sizeof(float), @NAME@_CLASSES, stdout) != @NAME@_CLASSES) return 3;
        }
    }
    return 0;
}
