/* Repeats recorded calls of the kernels' library on another processor:  replay LIBRARY < recording > results
 *
 * The memory of all calls is one block, at the address that it had when they were recorded, so that pointers inside of it
 * hold. A recording: address, size, count (int64), the block, then `count` calls: a name (64 bytes), 11 arguments (int64)
 * and a float, which all common calling conventions pass apart from integers. Writes the returned numbers (int64), and the
 * block as the calls left it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

typedef int64_t (*Function)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                            int64_t, float);

static int fail(const char* text) {
    fprintf(stderr, "replay: %s\n", text);
    return 1;
}

int main(int count, char** arguments) {
    int64_t head[3], given[11];
    char name[64];
    float number;
    void* library = count == 2 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    if (library == NULL) return fail(count == 2 ? dlerror() : "takes the path of a library");
    if (fread(head, sizeof(head), 1, stdin) != 1) return fail("no recording");
    char* block = mmap((void*)head[0], (size_t)head[1], PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (block != (char*)head[0]) return fail("the address is taken");
    if (fread(block, (size_t)head[1], 1, stdin) != 1) return fail("the recording ends early");
    for (int64_t call = 0; call < head[2]; ++call) {
        if (fread(name, sizeof(name), 1, stdin) != 1 || fread(given, sizeof(given), 1, stdin) != 1 ||
            fread(&number, sizeof(number), 1, stdin) != 1)
            return fail("the recording ends early");
        void* symbol = dlsym(library, name);
        Function function;
        if (symbol == NULL) return fail(dlerror());
        *(void**)&function = symbol;
        const int64_t status = function(given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7],
                                        given[8], given[9], given[10], number);
        fwrite(&status, sizeof(status), 1, stdout);
    }
    fwrite(block, (size_t)head[1], 1, stdout);
    return 0;
}
