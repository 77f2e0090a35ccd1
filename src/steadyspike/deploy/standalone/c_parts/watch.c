/* A program may define this to see the spikes of every layer of neurons: words of bits, channel 0 is the lowest bit. */
#ifndef @NAME@_WATCH
#define @NAME@_WATCH(layer, words, bytes) ((void)0)
#endif
