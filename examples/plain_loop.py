"""The recipe `demo` as a plain PyTorch loop: what `steadyspike train demo` does, without Lightning, bit for bit."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import steadyspike as ss
from steadyspike.data import load
from steadyspike.models import create


def train(network: str = "cnn7", width: float = 0.25, steps: int = 4, epochs: int = 12) -> torch.nn.Module:
    data = load("digits")
    loader = data.train_loader(64, seed=0)
    torch.manual_seed(0)
    shape = {"num_classes": 10, "in_channels": 1, "image_size": data.shape}
    model = create(network, **shape, timesteps=steps, neuron=ss.LIF, norm="tdbn", width=width, dropout=0.0)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(ss.parameter_groups(model, weight_decay=5e-4), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: 0.5 * (1 + math.cos(math.pi * (e / epochs))))
    for epoch in range(epochs):
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x).mean(0), y)  # the model gives [T, B, classes]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        print(f"epoch {epoch + 1}: accuracy {accuracy(model, data):.2f} %", flush=True)
    return model


@torch.inference_mode()
def accuracy(model: torch.nn.Module, data: ss.data.DataBundle, part: str = "validation") -> float:
    model.eval()
    right = [(model(x).mean(0).argmax(-1) == y).sum() for x, y in data.eval_loader(part, 256)]
    return 100 * float(torch.stack(right).sum()) / len(data.indices(part))


if __name__ == "__main__":
    train()
