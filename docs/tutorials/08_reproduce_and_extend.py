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
# # 8. Reproduce a table of the paper, and add a method of your own
#
# The paper's ablation (table 2) compares a network with neither, one or both of MP-Init and TrSG. We run a small form of it
# on the embedded digits, then add a neuron of our own as a fifth row. Small runs show a direction at most: the paper trains
# 200 epochs on CIFAR.

# %%
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

import steadyspike as ss

digits = ss.data.load("digits")
SEEDS, EPOCHS, T = (0, 1), 3, 4

# %% [markdown]
# ## From the command line
#
# Every table and figure of the paper is a command. It trains what is missing and keeps finished results. It prints each
# claim with a verdict: whether it held, and whether the difference could be chance.
#
# ```bash
# steadyspike reproduce --list
# steadyspike reproduce ablation                                # minutes, embedded digits
# steadyspike reproduce ablation --scale paper --data-dir DATA  # GPUs and days
# ```
#
# ## The same in Python
#
# A method is the name of a neuron with options. `at(site)` builds the neuron for each position in the network.

# %%
methods = {
    "neither": ss.nn.neuron_factory("lif", init="zero", gradient="as"),
    "MP-Init": ss.nn.neuron_factory("lif", init="mp", gradient="as"),
    "TrSG": ss.nn.neuron_factory("lif", init="zero", gradient="trsg"),
    "both": ss.nn.neuron_factory("lif", init="mp", gradient="trsg"),
}

# %% [markdown]
# ## A method of your own
#
# A neuron with LIF dynamics only has to define its threshold V and its leak a = 1/tau. Kernels, MP-Init, streaming and
# probes work with it. This one has a threshold that is tied to its leak: one parameter for both.


# %%
class SharedLIF(ss.nn.Neuron):
    """V = softplus(p), a = sigmoid(p)."""

    no_decay = ("p",)

    def __init__(self):
        super().__init__(ss.nn.ScanSpec("trsg"), init="mp")
        self.p = nn.Parameter(torch.full((1,), 0.54))  # V = 1.0, a = 0.63 at the start

    @property
    def threshold(self):
        return F.softplus(self.p)

    @property
    def leak(self):
        return self.p.sigmoid()


methods["shared"] = SharedLIF

# %% [markdown]
# ## Train all of them


# %%
def run(neuron, seed):
    torch.manual_seed(seed)
    shape = {"num_classes": 10, "in_channels": 1, "image_size": digits.shape}
    model = ss.models.create("cnn7_tiny", **shape, timesteps=T, neuron=neuron, dropout=0.0)
    optimizer = torch.optim.Adam(ss.parameter_groups(model, weight_decay=5e-4), lr=5e-3)
    loader = digits.train_loader(64, seed=seed)
    for _ in range(EPOCHS):
        for x, y in loader:
            loss = F.cross_entropy(model(x).mean(0), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = [(model(x).mean(0).argmax(-1) == y).float() for x, y in digits.eval_loader("test", 256)]
    return 100 * torch.cat(right).mean().item()


results = {name: [run(neuron, seed) for seed in SEEDS] for name, neuron in methods.items()}
for name, values in results.items():
    print(f"{name:8} {' '.join(f'{value:5.1f}' for value in values)}  mean {sum(values) / len(values):.1f} %")

# %% mystnb={"image": {"alt": "Test accuracy of the five methods, a dot for each seed"}}
plt.figure(figsize=(6, 3))
for position, values in enumerate(results.values()):
    plt.plot([position] * len(values), values, "o")
plt.xticks(range(len(results)), list(results))
_ = plt.ylabel("test accuracy (%)")

# %% [markdown]
# Two seeds and three epochs show little: run more of both before you compare. [Results](../results.md) has three seeds
# on real data.
#
# ## As a recipe
#
# `model.name = "my_net:Net"` in a recipe trains a network with your neuron from the command line, with checkpoints and a
# report. [Extending](../extending.md) shows neurons with other dynamics, surrogates, norms and losses;
# [the paper as commands](../reproduce.md) lists all tables.
