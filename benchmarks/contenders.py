"""The neuron layers that are compared: each takes a current [T, B, ...] and gives spikes, from rest at every call.

All have a soft reset that gradients flow through, V = 1 and tau = 2 at the start, and learn what their library can
learn; surrogates are each library's default. The other libraries are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import torch
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.core.reference_scan import reference_scan


class Compiled(ss.LIF):
    """Our layer with the plain PyTorch reference under ``torch.compile`` in place of the kernel."""

    compiled = staticmethod(torch.compile(reference_scan, dynamic=False))

    def run(self, x: Tensor, u0: Tensor, membrane: bool = False):  # type: ignore[no-untyped-def]
        return self.compiled(x, u0, self.threshold, self.leak, self.spec)


class SpikingJelly(nn.Module):
    """ParametricLIFNode (learns tau) or LIFNode (learns nothing) in multi-step mode, as users run it on a CPU."""

    def __init__(self, learn: bool = True) -> None:
        super().__init__()
        from spikingjelly.activation_based import neuron

        node = neuron.ParametricLIFNode if learn else neuron.LIFNode
        self.node = node(v_reset=None, step_mode="m")

    def forward(self, x: Tensor) -> Tensor:
        self.node.reset()
        return self.node(x)


class SnnTorch(nn.Module):
    """Leaky with learned beta and threshold, stepped through time as in its tutorials."""

    def __init__(self) -> None:
        super().__init__()
        import snntorch

        self.leaky = snntorch.Leaky(beta=0.5, learn_beta=True, learn_threshold=True)

    def forward(self, x: Tensor) -> Tensor:
        membrane, out = self.leaky.reset_mem(), []
        for x_t in x:
            spikes, membrane = self.leaky(x_t, membrane)
            out.append(spikes)
        return torch.stack(out)


class Norse(nn.Module):
    """LIFBox, its LIF without a synaptic filter, stepped through time; tau and V are given gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.tau_mem_inv, self.v_th = nn.Parameter(torch.tensor(500.0)), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        from norse.torch.functional.lif_box import LIFBoxFeedForwardState, LIFBoxParameters, lif_box_feed_forward_step

        p = LIFBoxParameters(tau_mem_inv=self.tau_mem_inv, v_th=self.v_th)
        state, out = LIFBoxFeedForwardState(v=torch.zeros_like(x[0])), []
        for x_t in x:
            spikes, state = lif_box_feed_forward_step(x_t, state, p)
            out.append(spikes)
        return torch.stack(out)


COPY = "copy"  # between tensors that exist
CLONE = "copy into a new tensor"
COPIES = (COPY, CLONE)
OURS = "SteadySpike"
LEAN = "SteadySpike, save_memory"
COMPILED = "torch.compile"
PLIF = "SpikingJelly PLIF"
SNNTORCH = "snnTorch"
RELU = "ReLU, T=1"

NEURONS: dict[str, Callable[[], nn.Module]] = {
    OURS: ss.LIF,
    "SteadySpike, sigmoid": lambda: ss.LIF(surrogate="sigmoid"),
    COMPILED: Compiled,
    PLIF: SpikingJelly,
    "SpikingJelly LIF": lambda: SpikingJelly(learn=False),
    SNNTORCH: SnnTorch,
    "Norse": Norse,
}
# In a network: the same one, trained with `save_memory`; compiling 17 layers is not what is compared here.
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    OURS: ss.LIF,
    LEAN: ss.LIF,
    **{name: NEURONS[name] for name in (PLIF, "SpikingJelly LIF", SNNTORCH, "Norse")},
    RELU: nn.ReLU,  # the same network without time
}


def versions() -> dict[str, str]:
    """Installed versions of everything that is compared."""
    return {name: version(name) for name in ("steadyspike", "torch", "spikingjelly", "snntorch", "norse")}
