# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 4. From snnTorch
#
# You have an snnTorch 1.0 model with `snn.Leaky` and a loop over time. `ss.stabilize` gives it MP-Init and TrSG and
# does not change the loop. Afterwards we write the same network with `ss.LIF`, which takes the whole sequence at once.

# %%
import copy
import time

import snntorch as snn
import torch
import torch.nn.functional as F
from snntorch import surrogate
from torch import nn

import steadyspike as ss

torch.manual_seed(0)
digits = ss.data.load("digits")
T = 8


class Net(nn.Module):
    """The network of snnTorch's first tutorials: two fully connected layers, a loop over time."""

    def __init__(self):
        super().__init__()
        spike_grad = surrogate.fast_sigmoid(slope=25)
        self.fc1, self.lif1 = nn.Linear(256, 128), snn.Leaky(beta=0.9, spike_grad=spike_grad)
        self.fc2, self.lif2 = nn.Linear(128, 10), snn.Leaky(beta=0.9, spike_grad=spike_grad)

    def forward(self, x):
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        potentials = []
        for _ in range(T):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            _, mem2 = self.lif2(self.fc2(spk1), mem2)
            potentials.append(mem2)
        return torch.stack(potentials)


# %% [markdown]
# ## One call
#
# The network makes its own time steps, so the example is a static batch: `batch_dim=0`. The second layer is the output.
# The loss reads its membrane, so we do not change that neuron.

# %%
original = Net()
images, labels = next(iter(digits.train_loader(64, seed=0)))
stable = ss.stabilize(copy.deepcopy(original), images.flatten(1), batch_dim=0, skip=["lif2"])

# %% [markdown]
# ## The loop stays


# %%
def train(model, epochs=12):
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)  # after stabilize: V and tau are new parameters
    loader = digits.train_loader(64, seed=0)
    for _ in range(epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images.flatten(1)).mean(0), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracy(model):
    right = [(model(x.flatten(1)).mean(0).argmax(-1) == y).float() for x, y in digits.eval_loader("test", 256)]
    return 100 * torch.cat(right).mean().item()


for name, model in {"snnTorch": original, "stabilised": stable}.items():
    print(f"{name}: test accuracy {accuracy(train(model)):.1f} %")
print(f"MP-Init's mean {stable.lif1.running_mean.item():.3f}, V {stable.lif1.threshold.item():.3f}")

# %% [markdown]
# `ss.undo(stable)` restores the snnTorch neurons, with the trained weights.
#
# ## Look at its spikes
#
# The loop calls `lif1` once per step, so there is a record of each call. `joined` puts them together along time.

# %% mystnb={"image": {"alt": "Spike raster of the first layer of the stabilised network for one image"}}
with torch.no_grad(), ss.probe(stable) as seen:
    stable(images.flatten(1))
_ = ss.plot.raster(seen.joined(), sample=0)

# %% [markdown]
# ## The same network with this library's layers
#
# A converted model still calls its neurons once per step, so it is not faster. Written with `ss.LIF` a layer gets the whole
# sequence `[T, B, ...]` and runs as one operator. `decay_input=False` charges the membrane with the input I itself, as snnTorch
# does; the default of this library is I / tau, as in the paper. At tau = 10 the default would make currents and logits ten
# times smaller, and the network would learn slowly. The reset by subtraction differs a little
# ([what differs](../from-snntorch.md#what-differs-and-why)).


# %%
class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fire = nn.Linear(256, 128), ss.LIF(tau=10.0, decay_input=False)  # beta = 1 - 1/tau = 0.9
        self.fc2, self.readout = nn.Linear(128, 10), ss.Readout(tau=10.0, decay_input=False)

    def forward(self, x):
        x = ss.nn.repeat_in_time(self.fc1(x), T)  # the first layer runs once: its input is the same at every step
        return self.readout(self.fc2(self.fire(x)))


model = Sequence()
print(ss.check_model(model, images.flatten(1), batch_dim=0).ok)
print(f"ss.LIF: test accuracy {accuracy(train(model)):.1f} %")

# %% [markdown]
# All three numbers are of one seed.
#
# Time of a training step on this machine, shortest of ten (your numbers will differ):


# %%
def shortest(model, rounds=10):
    model.train()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        model(images.flatten(1)).sum().backward()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


print(f"snnTorch {shortest(original):.1f} ms, ss.LIF {shortest(model):.1f} ms")

# %% [markdown]
# [From snnTorch](../from-snntorch.md) has the table of settings, notes about checkpoints, and what differs.
