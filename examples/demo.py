"""Two small spiking networks on scikit-learn's digits, with and without MP-Init + TrSG, and both curves."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.nn.time import Folded, repeat_in_time

STEPS, EPOCHS, BATCH = 4, 12, 64


def network(neuron: type[nn.Module] | object) -> nn.Module:
    def conv(i: int, o: int, stride: int) -> nn.Module:
        return Folded(nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)))

    head = Folded(nn.Sequential(nn.Flatten(), nn.Linear(64 * 4, 10)))
    return nn.Sequential(conv(1, 32, 1), neuron(), conv(32, 64, 2), neuron(), conv(64, 64, 2), neuron(), head)


def run(name: str, neuron: object, images: Tensor, labels: Tensor) -> None:
    torch.manual_seed(0)
    model = network(neuron)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    optimizer = torch.optim.SGD(ss.parameter_groups(model, 5e-4), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    print(f"\n{name}\nepoch  loss   accuracy after 1..{STEPS} time steps")
    for epoch in range(EPOCHS):
        model.train()
        total = 0.0
        for batch in train[torch.randperm(len(train))].split(BATCH):
            loss = nn.functional.cross_entropy(model(repeat_in_time(images[batch], STEPS)).mean(0), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch) / len(train)
        schedule.step()
        model.eval()
        with torch.inference_mode():
            logits = model(repeat_in_time(images[test], STEPS)).cumsum(0)
        accuracy = (logits.argmax(-1) == labels[test]).float().mean(1)
        print(f"{epoch + 1:5d}  {total:.3f}  " + "  ".join(f"{100 * a:5.1f}" for a in accuracy), flush=True)


if __name__ == "__main__":
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    fixed = lambda: ss.LIF(gradient="as", init="zero", learn=())  # noqa: E731
    run("baseline: fixed threshold and tau, absolute-scale gradient, membrane starts at 0", fixed, images, labels)
    run("MP-Init + TrSG: learnable threshold and tau", ss.LIF, images, labels)
