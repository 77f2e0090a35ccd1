// Forward and backward in double and in float. Compiled once per instruction set, named by STEADYSPIKE_CHUNKS.
// Everything except that table has internal linkage, so no code for a newer CPU can be used by the common path.
#include "backward.h"
#include "forward.h"

extern const ChunkFunctions STEADYSPIKE_CHUNKS;
const ChunkFunctions STEADYSPIKE_CHUNKS = {{forward_chunk<double>, forward_chunk<float>},
                                           {backward_chunk<double>, backward_chunk<float>}};
