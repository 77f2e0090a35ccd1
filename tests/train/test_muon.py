"""Muon by its definition, which weights it orthogonalises, and a recipe that trains with it."""

from __future__ import annotations

import torch

import steadyspike as ss
from steadyspike.train.build.optimizer import Muon, build_optimizer, orthogonalised
from steadyspike.train.recipe.schema import Optimizer


def test_singular_values_become_about_one():
    for shape in ((8, 40), (40, 8), (16, 16)):
        matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3e-4
        values = torch.linalg.svdvals(orthogonalised(matrix))
        assert float(values.min()) > 0.6 and float(values.max()) < 1.3
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        assert (
            float(torch.nn.functional.cosine_similarity(orthogonalised(matrix).flatten(), (u @ v).flatten(), 0)) > 0.97
        )


def test_two_steps_by_hand():
    w, b = (torch.nn.Parameter(torch.randn(6, 2, 1, 1)), torch.nn.Parameter(torch.ones(3)))
    start = w.detach().clone()
    groups = [{"params": [w], "orthogonal": True, "weight_decay": 0.5}, {"params": [b], "weight_decay": 0.5}]
    optimizer = Muon(groups, lr=0.1, momentum=0.9)
    gradients = [torch.randn(6, 2, 1, 1) for _ in range(2)]
    mean, expected, free, free_mean = torch.zeros(6, 2), start.view(6, 2), torch.ones(3), torch.zeros(3)
    for gradient in gradients:
        w.grad, b.grad = gradient.clone(), torch.full((3,), 2.0)
        optimizer.step()
        mean = 0.9 * mean + gradient.view(6, 2)
        update = orthogonalised(gradient.view(6, 2) + 0.9 * mean) * 3**0.5
        expected = (1 - 0.1 * 0.5) * expected - 0.1 * update
        decayed = 2.0 + 0.5 * free
        free_mean = 0.9 * free_mean + decayed
        free = free - 0.1 * (decayed + 0.9 * free_mean)
    torch.testing.assert_close(w.detach().view(6, 2), expected)
    torch.testing.assert_close(b.detach(), free)


def test_the_other_groups_are_those_of_sgd():
    first, second = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    optimizers = (
        Muon([first], lr=0.1, momentum=0.8, weight_decay=0.01),
        torch.optim.SGD([second], lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.01),
    )
    for step in range(4):
        for p, optimizer in zip((first, second), optimizers):
            p.grad = torch.arange(5.0) + step
            optimizer.step()
    torch.testing.assert_close(first, second)


def test_all_weights_but_the_output_layer_are_orthogonalised():
    model = ss.models.create("resnet19_tiny")
    optimizer = build_optimizer(Optimizer(name="muon", lr=0.05, weight_decay=5e-4), model)
    names = {p: name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            assert group["orthogonal"] == (p.ndim == 4), names[p]
    counted = sum(len(group["params"]) for group in optimizer.param_groups)
    assert counted == len(list(model.parameters()))
    decays = {names[p]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays["stem.lif.k"] == 0.0 and decays["head.fc.weight"] == 5e-4
    kinds = build_optimizer(Optimizer(name="muon", groups="kinds"), model)
    assert {group["kind"] for group in kinds.param_groups} == {"weights", "norms", "biases", "neurons"}


def test_muon_learns():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    x, y = torch.randn(64, 8), torch.randint(0, 4, (64,))
    optimizer = build_optimizer(Optimizer(name="muon", lr=0.02), layers)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(layers(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
