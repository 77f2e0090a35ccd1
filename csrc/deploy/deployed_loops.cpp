// The loops of a deployed layer for one instruction set, as STEADYSPIKE_LAYER names them; everything but that has internal
// linkage, so no code for a newer CPU can leak into the common path.
#include "deployed_unit.h"

extern const LayerLoop STEADYSPIKE_LAYER;
const LayerLoop STEADYSPIKE_LAYER = layer_unit;
