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
# # 3. From SpikingJelly to a stabilised, folded network
#
# You have a SpikingJelly 2.0 model and a training loop. One call gives it MP-Init and TrSG; your loop stays. After
# training the network is folded to binary spikes.

# %%
import copy

import torch
import torch.nn.functional as F
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import nn

import steadyspike as ss

torch.manual_seed(0)
digits = ss.data.load("digits")
T = 4


def block(inputs, outputs):
    return [
        layer.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        layer.BatchNorm2d(outputs),
        neuron.LIFNode(v_threshold=1.0, v_reset=None, detach_reset=True, surrogate_function=surrogate.ATan()),
        layer.MaxPool2d(2),
    ]


original = nn.Sequential(*block(1, 16), *block(16, 32), *block(32, 32), layer.Flatten(), layer.Linear(32 * 4, 10))
functional.set_step_mode(original, "m")  # multi-step: [T, B, ...]

# %% [markdown]
# ## Convert: the same numbers on this library's kernels
#
# `ss.convert` changes only how the neurons are computed. Outputs agree to rounding.

# %%
images, labels = next(iter(digits.train_loader(64, seed=0)))
x = images.repeat(T, 1, 1, 1, 1)
converted = ss.convert(copy.deepcopy(original), report=None)
with torch.no_grad():
    difference = (converted(x) - original(x)).abs().max()
    functional.reset_net(original)
print(f"largest difference of the outputs: {difference:.1e}")

# %% [markdown]
# ## Stabilize: TrSG, learned V and tau, MP-Init
#
# It prints what it did with each neuron. Give it an example, and it also checks the model.

# %%
stable = ss.stabilize(copy.deepcopy(original), x)

# %% [markdown]
# ## Your loop stays
#
# We train the original and the stabilised network with the same code. Only the original needs `reset_net`.


# %%
def train(model, epochs=4):
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(ss.parameter_groups(model, weight_decay=5e-4), lr=2e-3)
    loader = digits.train_loader(64, seed=0)
    model.train()
    for _ in range(epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images.repeat(T, 1, 1, 1, 1)).mean(0), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            functional.reset_net(model)
    return model.eval()


@torch.no_grad()
def accuracy_by_steps(model):
    right, count = 0, 0
    for images, labels in digits.eval_loader("test", 256):
        logits = model(images.repeat(T, 1, 1, 1, 1))
        functional.reset_net(model)
        means = logits.cumsum(0) / torch.arange(1, T + 1).view(-1, 1, 1)
        right = right + (means.argmax(-1) == labels).sum(1)
        count += len(labels)
    return [round(value, 1) for value in (100 * right / count).tolist()]


print("SpikingJelly, accuracy in % after 1, 2, 3, 4 steps:", accuracy_by_steps(train(original)))
print("stabilised,   accuracy in % after 1, 2, 3, 4 steps:", accuracy_by_steps(train(stable)))

# %% [markdown]
# This is one seed of a tiny network: see [results](../results.md#ssstabilize-on-a-spikingjelly-network) for three seeds on
# CIFAR-10.
#
# ## Look at its spikes
#
# `ss.probe` and `ss.plot` work with the stabilised model: its neurons are this library's now, under their old names.

# %% mystnb={"image": {"alt": "Spike raster of the three layers of the stabilised network for one image"}}
with torch.no_grad(), ss.probe(stable) as seen:
    stable(x)
_ = ss.plot.raster(seen, sample=0)

# %% [markdown]
# ## Fold to binary spikes
#
# `ss.deploy.fold` takes the trained model as it is. It moves V and the norms into the weights, and runs `x` through both
# networks to compare every spike. The result needs SpikingJelly no longer.

# %%
network = ss.deploy.fold(stable, x)
for proof in network.proofs:
    print(proof)
with torch.no_grad():
    print("same decisions:", torch.equal(network(x).mean(0).argmax(-1), stable(x).mean(0).argmax(-1)))

# %% [markdown]
# To go on training with this library's layers instead, `ss.to_native` returns an equal network of `ss.LIF` layers.

# %%
native = ss.to_native(stable)
print(native[2])

# %% [markdown]
# Every neuron of `network` emits 0 or 1; thresholds and norms are in the weights. [Deploy](07_deploy.py)
# continues here. [From SpikingJelly](../from-spikingjelly.md) lists what is converted, and the same settings with this
# library's layers.
