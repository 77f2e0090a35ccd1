"""`compose`: combines norm, neuron, gradient, initial potential and loss, and checks that they can work together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import nn

from steadyspike.nn.factory import NeuronLike, Site, neuron_for
from steadyspike.nn.initial_potential import ConstantInit
from steadyspike.nn.lif import LIF
from steadyspike.nn.loss.loss_term import Term
from steadyspike.nn.loss.objective import Objective, make_objective
from steadyspike.nn.loss.task import TaskLoss
from steadyspike.nn.neuron import Neuron
from steadyspike.nn.neurons.ltmd import LTMD
from steadyspike.nn.neurons.mpbn import MPBN, FoldedMPBN
from steadyspike.nn.neurons.mps import MPS
from steadyspike.nn.neurons.neuron_catalogue import NeuronSpec, as_neuron
from steadyspike.nn.neurons.rate import RateLIF
from steadyspike.nn.neurons.readout import Readout
from steadyspike.nn.neurons.relu import ReLU
from steadyspike.nn.norm.make import NORMS, NormLike, check_norm
from steadyspike.nn.whole import whole_number


class Choice(NamedTuple):
    """The parts of a combination. ``layer`` is one built neuron, from which rules read type and settings."""

    norm: NormLike
    layer: nn.Module
    objective: Objective
    timesteps: int | None


class Rule(NamedTuple):
    """A kind of combination that cannot work, and the reason."""

    applies: Callable[[Choice], bool]
    reason: str


def _per_step(choice: Choice) -> bool:
    return isinstance(choice.norm, str) and choice.norm in NORMS and NORMS[choice.norm].per_step


def _rate(choice: Choice) -> bool:
    return isinstance(choice.layer, RateLIF)


def _term_needs(choice: Choice, record: str) -> bool:
    return any(isinstance(t, Term) and record in t.records for t in choice.objective.terms.values())


def _least_steps(choice: Choice) -> int:
    # ModuleDict is typed as holding any Module; the isinstance only narrows the type.
    return max([t.least_steps for t in choice.objective.terms.values() if isinstance(t, Term)], default=1)


def _reads_layers(choice: Choice) -> bool:
    return any(isinstance(term, Term) and term.records for term in choice.objective.terms.values())


def _idle_leak(layer: nn.Module) -> bool:
    """True if a learned leak has no effect in the first step: it scales neither the input nor a nonzero U[0]."""
    if not isinstance(layer, Neuron) or layer.spec.decay_input or not layer.leak.requires_grad:
        return False
    return isinstance(layer.init, ConstantInit) and layer.init.value == 0


# Most of these would train without an error and give a useless result, so they raise an error in advance.
RULES: tuple[Rule, ...] = (
    Rule(
        lambda c: isinstance(c.layer, Readout),
        "a readout does not spike: use it as a network's output, not as its hidden neuron",
    ),
    Rule(
        lambda c: isinstance(c.layer, ReLU) and _reads_layers(c),
        "a ReLU has neither spikes nor a potential, so a loss term on them (sparsity, rmp) has nothing to read",
    ),
    Rule(
        lambda c: _rate(c) and _per_step(c),
        "rate-based backpropagation uses only time means, so a norm with parameters per time step (bntt, tebn, tab) "
        "would get gradients that do not belong to its steps; use tdbn or bn",
    ),
    Rule(
        lambda c: _rate(c) and not c.objective.task.time_mean_only,
        "rate-based backpropagation uses only time means, so a loss on single time steps (tet, tet-smooth, lts) has no "
        "meaning for it; use ce or twin",
    ),
    Rule(
        lambda c: _rate(c) and _least_steps(c) > 1,
        "rate-based backpropagation uses only time means, so guidance between time steps has no meaning for it",
    ),
    Rule(
        lambda c: _rate(c) and _term_needs(c, "m"),
        "rate-based backpropagation keeps no graph of the membrane, so RMP-Loss on M would train nothing",
    ),
    Rule(
        lambda c: isinstance(c.layer, (MPBN, FoldedMPBN)) and _term_needs(c, "m"),
        "RMP-Loss pulls M/V towards the spike values, but MPBN compares its normalised potential with V, not M",
    ),
    Rule(
        lambda c: isinstance(c.layer, LTMD) and _term_needs(c, "m"),
        "RMP-Loss divides M by V, and LTMD's V = tanh(w) may cross 0",
    ),
    Rule(
        lambda c: c.timesteps is not None and c.timesteps < _least_steps(c),
        "guidance between neighbouring time steps needs at least 2 time steps",
    ),
    Rule(
        lambda c: c.timesteps == 1 and isinstance(c.layer, MPS),
        "MPS smooths over time steps; with timesteps=1 its coefficient has no effect and never trains",
    ),
    Rule(
        lambda c: c.timesteps == 1 and _idle_leak(c.layer),
        "with timesteps=1, U[0] = 0 and an unscaled input the leak has no effect and never trains; use init='mp', "
        "decay_input=True or a neuron whose leak is fixed",
    ),
    Rule(
        lambda c: c.timesteps is None and _per_step(c),
        "this norm has parameters per time step: give timesteps",
    ),
)


def refusals(norm: NormLike, neuron: NeuronLike, objective: Objective, timesteps: int | None = None) -> list[str]:
    """Returns the reasons why this combination cannot work; an empty list if it is allowed."""
    # The rules read only a layer's type and settings, so the smallest site is enough.
    layer = neuron_for(neuron, Site(channels=2, size=(2, 2), timesteps=timesteps))
    choice = Choice(norm, layer, objective, timesteps)
    return [rule.reason for rule in RULES if rule.applies(choice)]


@dataclass(frozen=True)
class Method:
    """An allowed combination; use it as ``models.create(..., norm=method.norm, neuron=method.neuron)``."""

    norm: NormLike
    neuron: NeuronLike
    objective: Objective


def compose(
    norm: NormLike = "tdbn",
    neuron: str | NeuronLike = "lif",
    loss: str | TaskLoss | Objective = "ce",
    *,
    timesteps: int | None = None,
    terms: Mapping[str, Mapping[str, Any] | Term] | None = None,
    loss_options: Mapping[str, Any] | None = None,
    batch_dim: int | None = None,
    **neuron_options: Any,
) -> Method:
    """Builds the parts of a training method from their names; raises ValueError if they do not fit together.

    compose("tebn", "plif", "tet", timesteps=4, gradient="trsg", init="mp", terms={"sparsity": {"weight": 0.1}})

    norm: a name of `NORMS`; ``"mpbn"`` puts a batch norm on the membrane of a LIF, and tdbn before the LIF
    loss, terms, loss_options, batch_dim: the arguments of `make_objective` (batch_dim=0 for static images [B, ...]);
        or ``loss`` is an `Objective`, which already contains the others
    neuron_options: options of the named neuron, such as gradient, surrogate, reset, init, channelwise
    """
    norm, neuron = _membrane_norm(norm, neuron)
    check_norm(norm)
    if timesteps is not None:
        timesteps = whole_number(timesteps, "timesteps")
    neuron = as_neuron(neuron, **neuron_options)
    objective = _objective(loss, terms, loss_options, batch_dim)
    reasons = refusals(norm, neuron, objective, timesteps)
    if reasons:
        raise ValueError("this combination cannot work: " + "; ".join(reasons))
    return Method(norm, neuron, objective)


def _membrane_norm(norm: NormLike, neuron: str | NeuronLike) -> tuple[NormLike, str | NeuronLike]:
    """Translates ``norm="mpbn"`` into norm "tdbn" and neuron "mpbn"."""
    if norm != "mpbn":
        return norm, neuron
    name = "lif" if neuron is LIF else neuron.name if isinstance(neuron, NeuronSpec) else neuron
    if name not in ("lif", "mpbn"):
        raise ValueError(
            f"norm 'mpbn' is a batch norm on the membrane of a LIF neuron and has no form for {name!r}; "
            "use neuron='lif' with it, or another norm"
        )
    return "tdbn", replace(neuron, name="mpbn") if isinstance(neuron, NeuronSpec) else "mpbn"


def _objective(
    loss: str | TaskLoss | Objective,
    terms: Mapping[str, Mapping[str, Any] | Term] | None,
    loss_options: Mapping[str, Any] | None,
    batch_dim: int | None,
) -> Objective:
    if not isinstance(loss, Objective):
        axis = {} if batch_dim is None else {"batch_dim": batch_dim}
        return make_objective(loss, terms, **axis, **(loss_options or {}))
    # An Objective is complete, so arguments that it would ignore raise an error.
    given = {"terms": terms, "loss_options": loss_options, "batch_dim": batch_dim}
    idle = [name for name, value in given.items() if value is not None]
    if idle:
        raise TypeError(f"an Objective has its own {', '.join(idle)}: give these to make_objective, not to compose")
    return loss
