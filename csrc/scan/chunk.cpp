// Forward and backward for every dtype, family and surrogate. Compiled once per instruction set, as STEADYSPIKE_CHUNKS names
// it; everything but that one table has internal linkage, so no code for a newer CPU can leak into the common path.
#include "backward.h"
#include "forward.h"

#define FORWARD(R, IO) {forward_chunk<R, IO, false>, forward_chunk<R, IO, true>}
#define SURROGATES(R, IO, FAMILY)                                                                                   \
    {backward_chunk<R, IO, FAMILY, RECT>, backward_chunk<R, IO, FAMILY, TRIANGLE>, backward_chunk<R, IO, FAMILY, ARCTAN>, \
     backward_chunk<R, IO, FAMILY, SIGMOID>, backward_chunk<R, IO, FAMILY, DSPIKE>}
#define BACKWARD(R, IO) {SURROGATES(R, IO, AS), SURROGATES(R, IO, RS), SURROGATES(R, IO, TRSG)}

extern const ChunkFunctions STEADYSPIKE_CHUNKS;
const ChunkFunctions STEADYSPIKE_CHUNKS = {
    {FORWARD(double, double), FORWARD(float, float), FORWARD(float, Bf16), FORWARD(float, Fp16)},
    {BACKWARD(double, double), BACKWARD(float, float), BACKWARD(float, Bf16), BACKWARD(float, Fp16)}};
