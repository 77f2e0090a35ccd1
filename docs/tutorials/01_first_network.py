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
# # 1. Your first network, and what MP-Init and TrSG do to it
#
# We train the same small network twice on handwritten digits: once with the settings that most of the literature uses,
# once with MP-Init and TrSG. Then we look at its spikes. Everything runs on a CPU in less than a minute.

# %%
from itertools import pairwise

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

import steadyspike as ss
from steadyspike.nn import Folded, repeat_in_time

digits = ss.data.load("digits")  # 1,797 digits that come with the package, on a 16 x 16 canvas
print(digits)

# %% [markdown]
# ## The network
#
# Seven spiking layers. `neuron` makes one neuron layer; it is the only thing that we will change.
#
# * Tensors have time first: `[T, B, ...]`.
# * An image is the same at every step, so the stem runs once and its output is repeated.
# * `Folded` runs an ordinary layer on all steps at once; `TDBN` is a batch norm over time and batch.


# %%
class Net(nn.Module):
    def __init__(self, neuron, timesteps=4):
        super().__init__()
        self.timesteps = timesteps
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.fire = neuron()
        channels = [8, 16, 16, 32, 32, 32, 32]
        self.body = nn.Sequential()
        for inputs, outputs in pairwise(channels):
            stride = 2 if outputs > inputs else 1
            conv = Folded(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False))
            self.body.extend([conv, ss.nn.TDBN(outputs), neuron()])
        self.head = nn.Linear(32, 10)

    def forward(self, x):  # [B, 1, H, W] -> logits [T, B, 10]
        x = self.fire(repeat_in_time(self.stem(x), self.timesteps))
        return self.head(self.body(x).mean((-1, -2)))


def usual():
    """A LIF neuron as in most papers: U[0] = 0, a gradient in M - V."""
    return ss.LIF(init="zero", gradient="as")


def steady():
    """The default of this library: MP-Init and TrSG."""
    return ss.LIF(init="mp", gradient="trsg")


# %% [markdown]
# ## Training is an ordinary PyTorch loop
#
# There is no state to reset between batches. `ss.parameter_groups` keeps weight decay off thresholds and time constants.


# %%
def train(neuron, epochs=6):
    torch.manual_seed(0)
    model = Net(neuron)
    loader = digits.train_loader(64, seed=0)
    optimizer = torch.optim.Adam(ss.parameter_groups(model, weight_decay=5e-4), lr=5e-3)
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images).mean(0), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model.eval(), losses


@torch.no_grad()
def accuracy_by_steps(model):
    """Test accuracy in % if only the first 1, 2, ... steps have run."""
    right, count = 0, 0
    for images, labels in digits.eval_loader("test", 256):
        logits = model(images)
        means = logits.cumsum(0) / torch.arange(1, len(logits) + 1).view(-1, 1, 1)
        right = right + (means.argmax(-1) == labels).sum(1)
        count += len(labels)
    return 100 * right / count


models, curves = {}, {}
for name, neuron in {"usual": usual, "MP-Init + TrSG": steady}.items():
    models[name], curves[name] = train(neuron)
    accuracies = " ".join(f"{value:.1f}" for value in accuracy_by_steps(models[name]))
    print(f"{name:15} accuracy in % after 1, 2, 3, 4 steps: {accuracies}")

# %% [markdown]
# One seed of a small network is an illustration, not a result. The loss of both:

# %% mystnb={"image": {"alt": "Training loss of both networks"}}
for name, losses in curves.items():
    plt.plot(losses, label=name)
plt.xlabel("step")
plt.ylabel("training loss")
_ = plt.legend()

# %% [markdown]
# ## Why the first step differs
#
# With U[0] = 0 the membrane needs some steps to reach its usual level, so deep layers fire little at first. MP-Init
# starts the membrane at a running mean of its potential at the end of earlier windows. `ss.probe` records the values
# inside a network, and `ss.plot` draws them.

# %% mystnb={"image": {"alt": "Firing rate of every layer at every step, for both networks"}}
images, labels = next(iter(digits.eval_loader("test", 64)))
figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
for axis, (name, model) in zip(axes, models.items()):
    with torch.no_grad(), ss.probe(model) as seen:
        model(images)
    ss.plot.rates(seen, ax=axis)
    axis.set_title(name)

# %% [markdown]
# The learned means of MP-Init, and the learned thresholds and time constants:

# %%
for name, layer in models["MP-Init + TrSG"].named_modules():
    if isinstance(layer, ss.LIF):
        mean = layer.init.running_mean.item()
        print(f"{name}: U[0] = {mean:.3f}, V = {layer.threshold.item():.3f}, tau = {layer.tau.item():.3f}")

# %% [markdown]
# ## Spikes and membranes of one image

# %% mystnb={"image": {"alt": "Spike raster of all layers for one image"}}
_ = ss.plot.raster(seen, sample=0)

# %% mystnb={"image": {"alt": "Membrane of the three neurons that spike most in the second layer"}}
_ = ss.plot.traces(seen["body.2"], sample=0)

# %% [markdown]
# ## Next
#
# * [Your own network and data](02_own_network_and_data.py)
# * [The method](../method.md) has the equations.
# * [Results](../results.md) shows what was measured on real data, with three seeds.
