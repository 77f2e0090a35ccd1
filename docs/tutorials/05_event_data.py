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
# # 5. Event camera data
#
# An event camera reports changes of brightness: a list of (x, y, time, polarity). In this tutorial such recordings
# become frames, a network is trained on them, and your own recordings are loaded. The data are digits in front of a
# simulated camera; they come with the package.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F

import steadyspike as ss

torch.manual_seed(0)
data = ss.data.load("digits-events", timesteps=6)
print(data)

# %% [markdown]
# ## From events to frames
#
# The events of a recording are counted per pixel and polarity in T slices. `by="number"` puts the same number of events
# into each slice, `by="time"` cuts slices of equal duration. A batch is `[T, B, 2, H, W]`.

# %% mystnb={"image": {"alt": "The six frames of one recording"}}
clips, labels = next(iter(data.train_loader(32, seed=0)))
print(tuple(clips.shape))
figure, axes = plt.subplots(1, 6, figsize=(9, 1.8))
for step, axis in enumerate(axes):
    on, off = clips[step, 0, 1], clips[step, 0, 0]
    axis.imshow(on - off, cmap="RdBu_r", vmin=-3, vmax=3)
    axis.set_title(f"step {step + 1}")
    axis.axis("off")
_ = figure.suptitle(f"digit {labels[0]}: red is brighter, blue is darker")

# %% [markdown]
# ## A network for clips
#
# The networks of the library take frames `[T, B, C, H, W]` as well as still images. This one is a small member of the
# paper's 7-layer CNN.

# %%
model = ss.models.create("cnn7_tiny", num_classes=10, in_channels=2, image_size=data.shape, timesteps=6, dropout=0.0)
print(ss.check_model(model, clips))

# %%
optimizer = torch.optim.Adam(ss.parameter_groups(model, weight_decay=5e-4), lr=5e-3)
loader = data.train_loader(64, seed=0)
for epoch in range(6):
    for clips, labels in loader:
        loss = F.cross_entropy(model(clips).mean(0), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.2f}")

# %% [markdown]
# How accurate is it after the first 1, 2, ... frames?


# %% mystnb={"image": {"alt": "Test accuracy by the number of frames"}}
@torch.no_grad()
def accuracy_by_frames():
    model.eval()
    right, count = 0, 0
    for clips, labels in data.eval_loader("test", 128):
        logits = model(clips)
        means = logits.cumsum(0) / torch.arange(1, len(logits) + 1).view(-1, 1, 1)
        right = right + (means.argmax(-1) == labels).sum(1)
        count += len(labels)
    return 100 * right / count


accuracy = accuracy_by_frames()
print([round(value, 1) for value in accuracy.tolist()])
plt.figure(figsize=(5, 3))
plt.plot(range(1, 7), accuracy, marker="o")
plt.xlabel("frames")
_ = plt.ylabel("test accuracy (%)")

# %% [markdown]
# ## One frame at a time
#
# A camera delivers frames one by one. `ss.stream` keeps the state of the network between them and can stop as soon as it is
# confident. Its logits are those of the whole clip.

# %%
clips, labels = next(iter(data.eval_loader("test", 8)))
one = ss.stream(model)
steps = torch.stack([one(frame) for frame in clips])
with torch.no_grad():
    print("same logits:", torch.allclose(steps, model(clips), atol=1e-5))
decision = ss.stream(model, exit_when=ss.deploy.Confidence(0.6)).run(clips)
print("decided at step", decision.steps.tolist())

# %% [markdown]
# ## Your own recordings
#
# Arrays with the fields x, y, t (microseconds) and p can be used directly. The data sets of tonic can, too.

# %%
random = np.random.default_rng(0)
kind = [("x", "i2"), ("y", "i2"), ("t", "i8"), ("p", "i1")]


def recording(label):
    """300 events of a dot that moves to the right (class 0) or down (class 1)."""
    events = np.zeros(300, kind)
    events["t"] = np.sort(random.integers(0, 100_000, 300))
    along, across = events["t"] * 15 // 100_000, 6 + random.integers(0, 4, 300)
    events["x"], events["y"] = (along, across) if label == 0 else (across, along)
    events["p"] = random.integers(0, 2, 300)
    return events


own = ss.data.from_recordings([(recording(n % 2), n % 2) for n in range(60)], sensor=(16, 16), timesteps=4)
print(own)

# %% [markdown]
# Files in class folders (`.aedat4`, `.aedat`, `.bin`) are the data set `event-folder`. [Data](../data.md) has all formats,
# N-MNIST, DVS-CIFAR10 and DVS128-Gesture, and what happens with damaged files.
