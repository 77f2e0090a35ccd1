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
# # 7. Deploy: binary spikes, integers, ONNX, energy
#
# A trained network becomes a network of plain LIF neurons that emit 0 or 1. That network is proved equal to the model,
# then saved, quantised and exported, and its operations are counted.

# %%
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

import steadyspike as ss

torch.manual_seed(0)
digits = ss.data.load("digits")
shape = {"num_classes": 10, "in_channels": 1, "image_size": digits.shape}
model = ss.models.create("cnn7_tiny", **shape, timesteps=4, dropout=0.0)
optimizer = torch.optim.Adam(ss.parameter_groups(model, weight_decay=5e-4), lr=5e-3)
loader = digits.train_loader(64, seed=0)
for _ in range(8):
    for x, y in loader:
        loss = F.cross_entropy(model(x).mean(0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
model.eval()
images, labels = next(iter(digits.eval_loader("test", 359)))


@torch.no_grad()
def accuracy(network):
    return 100 * (network(images).mean(0).argmax(-1) == labels).float().mean().item()


print(f"test accuracy of the model: {accuracy(model):.1f} %")

# %% [markdown]
# ## Fold
#
# V and the norms move into the weights. The fold runs your example through both networks and compares every spike.

# %%
network = ss.deploy.fold(model, images[:64])
for proof in network.proofs:
    print(proof)
print(f"test accuracy of the folded network: {accuracy(network):.1f} %")

# %% [markdown]
# ## Save
#
# One safetensors file with the constants, the graph and a checksum. No code is loaded with it.

# %%
ss.deploy.save(network, "digits.safetensors", extra={"classes": list("0123456789")})
again = ss.deploy.load("digits.safetensors")
print(torch.equal(again(images), network(images)), ss.deploy.load_extra("digits.safetensors")["classes"])

# %% [markdown]
# ## Stop early
#
# A sample is finished as soon as the network is confident.

# %% mystnb={"image": {"alt": "Histogram of the step at which samples were decided"}}
decision = ss.stream(network, exit_when=ss.deploy.Confidence(0.8)).run(images, timesteps=4)
right = (decision.logits.argmax(-1) == labels).float().mean().item()
print(f"accuracy {100 * right:.1f} %, {decision.steps.float().mean():.2f} steps on average")
plt.figure(figsize=(4, 2.5))
plt.hist(decision.steps.numpy(), bins=[0.5, 1.5, 2.5, 3.5, 4.5], rwidth=0.8)
plt.xlabel("decided at step")
_ = plt.ylabel("samples")

# %% [markdown]
# ## Integers
#
# Weights with 8 bits, potentials and thresholds as integers in the scale of their layer; all sums are exact integers.

# %%
integers = ss.deploy.IntegerNetwork(network)
print(f"test accuracy with int8 weights: {accuracy(integers.run):.1f} %")

# %% [markdown]
# ## Operations and energy
#
# A spike costs one accumulate for every output that it reaches; the first layer multiplies. The estimate uses 4.6 pJ
# per multiply-accumulate and 0.9 pJ per accumulate (45 nm), as most papers do; memory is not included.

# %%
print(ss.deploy.count_operations(network, [images]))

# %% [markdown]
# ## ONNX
#
# All steps as one graph with a free batch size, run by onnxruntime:

# %%
import onnxruntime

ss.deploy.export_onnx(network, "digits.onnx")
session = onnxruntime.InferenceSession("digits.onnx", providers=["CPUExecutionProvider"])
(logits,) = session.run(None, {session.get_inputs()[0].name: images[:32].numpy()})
print("largest difference of the logits:", f"{abs(torch.from_numpy(logits) - network(images[:32])).max():.1e}")

# %% [markdown]
# ## From the command line
#
# ```bash
# steadyspike fold runs/demo/001
# steadyspike energy runs/demo/001
# steadyspike export runs/demo/001 --to onnx
# steadyspike predict runs/demo/001 image.png
# ```
#
# [Deploy](../deploy.md) has the rules of the fold, NIR for neuromorphic tools, the CPU runtime, and which networks
# fit which chip.
