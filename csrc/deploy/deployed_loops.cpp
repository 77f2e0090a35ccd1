// The loops of a deployed layer for one instruction set, named by STEADYSPIKE_LAYER. Everything except that has
// internal linkage, so no code for a newer CPU can be used by the common path.
#include "deployed_unit.h"

extern const LayerLoop STEADYSPIKE_LAYER;
const LayerLoop STEADYSPIKE_LAYER = layer_unit;
