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
# # 6. Reading the diagnostics
#
# A spiking network can fail without an error: a layer stays silent, a membrane drifts, a number becomes infinite. This
# tutorial breaks a network on purpose and reads what each tool reports.
#
# | tool | question |
# |---|---|
# | `ss.check_model` | Is the network put together correctly? Before training |
# | `ss.health` | Which layer is the first with NaN or infinity? |
# | `ss.probe`, `ss.plot` | What do spikes and membranes look like? |
# | `ss.analyse` | Do the layers drift over the time steps? After training |
# | `steadyspike report` | How did a run go? |

# %%
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

import steadyspike as ss
from steadyspike.nn import Folded

torch.manual_seed(0)
digits = ss.data.load("digits")
images, labels = next(iter(digits.eval_loader("test", 128)))


def make(init="mp", timesteps=4):
    neuron = ss.nn.neuron_factory("lif", init=init)
    shape = {"num_classes": 10, "in_channels": 1, "image_size": digits.shape}
    return ss.models.create("cnn7_tiny", **shape, timesteps=timesteps, neuron=neuron, dropout=0.0)


# %% [markdown]
# ## check_model: is it put together correctly?
#
# A network that works:

# %%
print(ss.check_model(make(), images[:8], batch_dim=0))

# %% [markdown]
# The same with one neuron that gets `[T*B, ...]` and so scans the batch as if it were time. It trains, but a sample's
# result depends on the other samples. This happened in a published model.


# %%
class Flattened(nn.Module):
    """Folds time into the batch before the neuron: the mistake."""

    def __init__(self):
        super().__init__()
        self.fire = ss.LIF()

    def forward(self, x):
        return self.fire(x.flatten(0, 1)).view_as(x)


wrong = nn.Sequential(
    Folded(nn.Conv2d(1, 8, 3, padding=1)), ss.nn.TDBN(8), Flattened(), nn.Flatten(2), nn.Linear(2048, 10)
)
report = ss.check_model(wrong, ss.nn.repeat_in_time(images[:8], 4))
for failure in report.failures:
    print(failure.name, "|", failure.message)

# %% [markdown]
# ## health: which layer was the first?
#
# NaN spreads through a network within one forward. `ss.health` raises an error at the first layer that has it.

# %%
broken = make()
with torch.no_grad():
    next(module for module in broken.modules() if isinstance(module, nn.Conv2d) and module.in_channels > 1).weight[
        0, 0
    ] = float("nan")
try:
    with ss.health(broken):
        broken(images)
except ss.HealthError as error:
    print(error)

# %% [markdown]
# ## Train two networks: with and without MP-Init


# %%
def train(model, epochs=5):
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(ss.parameter_groups(model, weight_decay=5e-4), lr=5e-3)
    loader = digits.train_loader(64, seed=0)
    for _ in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x).mean(0), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


networks = {"U[0] = 0": train(make("zero")), "MP-Init": train(make("mp"))}

# %% [markdown]
# ## analyse: do the layers drift?
#
# For every layer: the distance of the membrane's distribution at the first steps from that at the last step (total
# variation distance, 0 to 1). The distance that chance alone would give is subtracted. A network is called steady if
# the mean over its layers is below 0.1.

# %%
for name, model in networks.items():
    print(name)
    print(ss.analyse(model, images), end="\n\n")

# %% mystnb={"image": {"alt": "Firing rates of both networks by layer and step"}}
figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
records = {}
for axis, (name, model) in zip(axes, networks.items()):
    with torch.no_grad(), ss.probe(model) as seen:
        model(images)
    records[name] = seen
    ss.plot.rates(seen, ax=axis).set_title(name)

# %% [markdown]
# ## Raster and traces
#
# The raster shows at a glance which layers are silent, saturated or busy. The traces show single membranes with their
# threshold.

# %% mystnb={"image": {"alt": "Spike raster of all layers of the network with MP-Init"}}
_ = ss.plot.raster(records["MP-Init"], sample=0)

# %% mystnb={"image": {"alt": "Membranes of three neurons of the first layer"}}
first = next(iter(records["MP-Init"]))
_ = ss.plot.traces(records["MP-Init"][first], sample=0)

# %% [markdown]
# ## Reports of runs
#
# Runs of `steadyspike train` watch all of this while they train: silent layers, exploding gradients, collapsing thresholds
# ([health](../training.md#health)). `steadyspike show RUN` prints a run, `steadyspike report RUN` writes one HTML file with
# curves, layers over the epochs, the confusion matrix and membranes ([the report](../report.md)).
