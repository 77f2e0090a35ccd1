#include <stdio.h>
#include <stdlib.h>

static int watching = 0; /* the test program writes the spikes of every layer */
static void @name@_watched(const void *words, size_t bytes)
{
    if (watching && fwrite(words, 1, bytes, stdout) != bytes) exit(3);
}
#define @NAME@_WATCH(layer, words, bytes) @name@_watched(words, bytes)
