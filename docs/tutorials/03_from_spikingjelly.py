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
    difference = (converted.eval()(x) - original.eval()(x)).abs().max()
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
# ## Fold to binary spikes
#
# The fold takes models made of plain torch layers and this library's neurons. SpikingJelly's layers are torch layers
# with a different `forward`. We therefore copy the weights into a network written with this library's parts.

# %%
from steadyspike.nn import Folded


class Plain(nn.Module):
    """The same architecture with `Folded` instead of SpikingJelly's layers."""

    def __init__(self):
        super().__init__()
        sizes = [(1, 16), (16, 32), (32, 32)]
        self.convs = nn.ModuleList(Folded(nn.Conv2d(i, o, 3, padding=1, bias=False)) for i, o in sizes)
        self.norms = nn.ModuleList(Folded(nn.BatchNorm2d(o)) for _, o in sizes)
        self.fires = nn.ModuleList(ss.LIF(surrogate="arctan", reset=ss.Reset("soft", detach=True)) for _ in sizes)
        self.pool, self.head = Folded(nn.MaxPool2d(2)), nn.Linear(32 * 4, 10)

    def forward(self, x):
        for conv, norm, fire in zip(self.convs, self.norms, self.fires):
            x = self.pool(fire(norm(conv(x))))
        return self.head(x.flatten(2))


plain = Plain().eval()
with torch.no_grad():
    for number in range(3):
        conv, norm, fire = stable[4 * number], stable[4 * number + 1], stable[4 * number + 2]
        plain.convs[number].layer.load_state_dict(conv.state_dict())
        plain.norms[number].layer.load_state_dict(norm.state_dict())
        plain.fires[number].k.copy_(fire.k)
        plain.fires[number].w.copy_(fire.w)
        plain.fires[number].init.running_mean.copy_(fire.init.running_mean)
    plain.head.load_state_dict(stable[-1].state_dict())
    print(f"largest difference of the outputs: {(plain(x) - stable(x)).abs().max():.1e}")

network = ss.deploy.fold(plain, x)
for proof in network.proofs:
    print(proof)

# %% [markdown]
# Every neuron of `network` emits 0 or 1; thresholds and norms are in the weights. [Deploy](07_deploy.py)
# continues here. [From SpikingJelly](../from-spikingjelly.md) lists what is converted, and the same settings with this
# library's layers.
