"""One layer of a deployed network in one C++ call: currents from spikes, the LIF scan over all steps, bits out."""
