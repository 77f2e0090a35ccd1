"""`Objective`: runs a model and computes its task loss and loss terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadyspike.nn.loss.guidance import Guidance
from steadyspike.nn.loss.loss_term import Pass, Term, check_batch
from steadyspike.nn.loss.rmp import RMP
from steadyspike.nn.loss.sparsity import Sparsity
from steadyspike.nn.loss.task import LTS, TET, SmoothTET, TaskLoss, TimeMeanCE
from steadyspike.nn.loss.twin import Twin
from steadyspike.nn.probe import Recording, probe

LOSSES: dict[str, type[TaskLoss]] = {
    "ce": TimeMeanCE,
    "tet": TET,
    "tet-smooth": SmoothTET,
    "lts": LTS,
    "twin": Twin,
}
TERMS: dict[str, type[Term]] = {"rmp": RMP, "sparsity": Sparsity, "guidance": Guidance}


@contextmanager
def collected_outputs(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Collects the outputs of the named modules, with their graph, while the block runs; then removes its hooks."""
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise ValueError(f"the model has no module {name!r}; model.named_modules() lists the names")
    outputs: dict[str, Tensor] = {}
    # name=name, because otherwise all hooks would use the last name of the loop.
    handles = [
        modules[name].register_forward_hook(lambda m, i, out, name=name: outputs.__setitem__(name, out))
        for name in names
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


class Outcome(NamedTuple):
    """The result of an `Objective`.

    loss: the scalar to minimise
    logits: [T, B, K], those of the first copy if the batch was fed twice
    parts: the task loss and every term by name, detached
    """

    loss: Tensor
    logits: Tensor
    parts: dict[str, Tensor]


class Objective(nn.Module):
    """Runs the model and computes the loss: ``objective(model, x, target) -> Outcome``.

    x: [T, B, ...], or [B, ...] for a model that makes time steps from a static batch itself (``batch_dim=0``)


    The terms' own parameters (EAGD's mappings) are parameters of this module.
    """

    def __init__(self, task: TaskLoss, terms: Mapping[str, Term] | None = None, batch_dim: int = 1) -> None:
        super().__init__()
        if batch_dim not in (0, 1):
            raise ValueError(
                f"batch_dim is the batch axis of x and must be 1 for [T, B, ...] or 0 for [B, ...]; got {batch_dim!r}"
            )
        if "task" in (terms or {}):
            raise ValueError("a term cannot be called 'task', the name of the task loss in Outcome.parts; rename it")
        self.task = task
        self.terms = nn.ModuleDict(terms or {})
        self.batch_dim = batch_dim

    def set_epoch(self, epoch: int) -> None:
        """Passes the current epoch to the terms, for weights that depend on it."""
        for term in self.terms.values():
            assert isinstance(term, Term)
            term.epoch = epoch

    def predict(self, logits: Tensor) -> Tensor:
        """Returns the prediction that the task loss trains: [T, B, K] -> [B, K]."""
        return self.task.predict(logits)

    def forward(self, model: nn.Module, x: Tensor, target: Tensor) -> Outcome:
        terms = {name: term for name, term in self.terms.items() if isinstance(term, Term)}
        record = sorted({what for term in terms.values() for what in term.records})
        names = sorted({name for term in terms.values() for name in term.features})
        # Twin compares two noisy passes of one batch. Without dropout, in evaluation, both would be the same.
        copies = self.task.copies if model.training else 1
        if copies > 1:
            check_batch(x, self.batch_dim, target.shape[0])
            x = torch.cat([x] * copies, self.batch_dim)
        # Probes and hooks keep M and features in memory, so they are only set if a term reads them.
        with ExitStack() as stack:
            records = stack.enter_context(probe(model, record=record, graph=True)) if record else Recording()
            features = stack.enter_context(collected_outputs(model, names)) if names else {}
            logits = model(x)
        parts = {"task": self.task(logits, target)}
        seen = Pass(x, logits, target, records, features, self.batch_dim)
        for name, term in terms.items():
            parts[name] = term(seen)
        loss = torch.stack(list(parts.values())).sum()
        first = logits[:, : target.shape[0]]
        return Outcome(loss, first, {name: part.detach() for name, part in parts.items()})


def make_objective(
    loss: str | TaskLoss = "ce",
    terms: Mapping[str, Mapping[str, Any] | Term] | None = None,
    *,
    batch_dim: int = 1,
    **options: Any,
) -> Objective:
    """Builds an `Objective` from names: ``make_objective("tet", {"sparsity": {"weight": 0.1}}, lamb=0.05)``.

    loss: a name of `LOSSES`, whose options are the keyword arguments, or a `TaskLoss`
    terms: names of `TERMS` with their options, or any name with a `Term` (EAGD needs a teacher, so it must be given as
        a `Term`)
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise ValueError(f"unknown loss {loss!r}; known: {', '.join(LOSSES)}")
        loss = LOSSES[loss](**options)
    elif options:
        raise TypeError(f"options {', '.join(options)} need a loss by name; give them to the TaskLoss itself instead")
    built: dict[str, Term] = {}
    for name, given in (terms or {}).items():
        if isinstance(given, Term):
            built[name] = given
        elif name in TERMS:
            built[name] = TERMS[name](**given)
        else:
            raise ValueError(f"unknown loss term {name!r}; known: {', '.join(TERMS)}")
    return Objective(loss, built, batch_dim)
