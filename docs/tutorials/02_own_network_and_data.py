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
# # 2. Your own network and your own data
#
# You have images and a network. This tutorial makes a data set of your own, checks a network for silent mistakes, trains it,
# and shows the same thing as one command.

# %%
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

import steadyspike as ss
from steadyspike.nn import Folded, repeat_in_time

torch.manual_seed(0)

# %% [markdown]
# ## Data
#
# Anything with `__len__` and `__getitem__ -> (image, class)` works: torchvision's data sets, or your own class. Here
# they are horizontal and vertical bars, in noise.


# %%
class Bars:
    def __init__(self, count, seed):
        random = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(2, (count,), generator=random)
        self.images = 0.6 * torch.rand(count, 1, 12, 12, generator=random)
        for image, label, position in zip(self.images, self.labels, torch.randint(12, (count,), generator=random)):
            row_or_column = image[0, :, position] if label else image[0, position, :]
            row_or_column += 0.5

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], int(self.labels[index])


data = ss.data.from_dataset(Bars(600, seed=0), Bars(200, seed=1))
print(data)

# %% [markdown]
# A part of the training data is held out for choosing settings. No sample is in two parts. A fingerprint in the split
# lets you detect later if the parts have changed:

# %%
print({part: len(data.indices(part)) for part in ("train", "validation", "test")})
print(list(data.split.record()))

# %% mystnb={"image": {"alt": "Six images of bars in noise"}}
figure, axes = plt.subplots(1, 6, figsize=(8, 1.8))
for axis, index in zip(axes, range(6)):
    image, label = Bars(600, seed=0)[index]
    axis.imshow(image[0], cmap="gray")
    axis.set_title("stands" if label else "lies")
    axis.axis("off")

# %% [markdown]
# ## A network with a mistake
#
# `nn.Linear` gives small currents. A neuron with V = 1 behind it may never fire. Then nothing behind it learns, and
# there is no error message. `ss.check_model` detects this.


# %%
class Silent(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fire1 = nn.Linear(144, 64), ss.LIF()
        self.fc2, self.fire2 = nn.Linear(64, 64), ss.LIF()
        self.head = nn.Linear(64, 2)

    def forward(self, x):
        x = repeat_in_time(x.flatten(1), 4)
        return self.head(self.fire2(self.fc2(self.fire1(self.fc1(x)))))


images, labels = next(iter(data.train_loader(64, seed=0)))
print(ss.check_model(Silent(), images, batch_dim=0))

# %% [markdown]
# ## The same with a norm before each neuron
#
# A norm brings the currents to the scale of V. `TDBN` normalises over time and batch together.


# %%
class Net(nn.Module):
    def __init__(self, hidden=16, timesteps=4):
        super().__init__()
        self.timesteps = timesteps
        self.stem = nn.Sequential(nn.Conv2d(1, hidden, 3, padding=1, bias=False), nn.BatchNorm2d(hidden))
        self.fire1 = ss.LIF()
        self.conv = Folded(nn.Conv2d(hidden, hidden, 3, 2, 1, bias=False))
        self.norm, self.fire2 = ss.nn.TDBN(hidden), ss.LIF()
        self.head = nn.Linear(hidden, 2)

    def forward(self, x):
        x = self.fire1(repeat_in_time(self.stem(x), self.timesteps))
        return self.head(self.fire2(self.norm(self.conv(x))).mean((-1, -2)))


model = Net()
report = ss.check_model(model, images, batch_dim=0)
print(report)

# %% [markdown]
# How much memory would a step take? The estimate needs no training:

# %%
print(ss.memory_estimate(model, images))

# %% [markdown]
# ## Train and choose on the validation part

# %%
optimizer = torch.optim.Adam(ss.parameter_groups(model, weight_decay=1e-3), lr=5e-3)


@torch.no_grad()
def accuracy(part):
    model.eval()
    right = [(model(x).mean(0).argmax(-1) == y).float() for x, y in data.eval_loader(part, 128)]
    model.train()
    return 100 * torch.cat(right).mean().item()


loader = data.train_loader(50, seed=0)
for epoch in range(6):
    for images, labels in loader:
        loss = F.cross_entropy(model(images).mean(0), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: validation accuracy {accuracy('validation'):.1f} %")
print(f"test accuracy {accuracy('test'):.1f} %")

# %% [markdown]
# ## The same from the command line
#
# The trainer takes your class and your function by name, and adds checkpoints, exact resume, health checks and a report.
# `examples/own/` in the repository is a complete example:
#
# ```toml
# [model]
# name = "my_net:Net"                 # a class in my_net.py
# options = { hidden = 24 }
#
# [data]
# name = "my_data:make_data"          # a function in my_data.py
# timesteps = 3
# ```
#
# ```bash
# cd examples/own && steadyspike train my_run.toml
# ```
#
# [Training](../training.md#your-own-network-and-data) has the details. [Extending](../extending.md) shows how to
# write your own neurons, norms and losses.
