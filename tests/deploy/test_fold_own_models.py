"""Models as users write them: odd names, modules used twice, in-place operations, keywords, their own neurons."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import steadyspike as ss
from steadyspike.deploy import CannotFold, FoldedNetwork, fold
from tests.deploy.trained import settle, trained

X = 3 * torch.rand(4, 3, 6, generator=torch.Generator().manual_seed(5))


class Own(nn.Module):
    """A model from a function; a: 6 -> 8, fire, b: 8 -> 8, o: 8 -> 3, and what is given."""

    def __init__(self, forward: Callable[[Own, Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.call = forward
        given = {"a": nn.Linear(6, 8), "fire": ss.LIF(0.5), "b": nn.Linear(8, 8), "o": nn.Linear(8, 3), **modules}
        for name, module in given.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def folded(forward: Callable[[Own, Tensor], Tensor], x: Tensor = X, **modules: nn.Module) -> FoldedNetwork:
    torch.manual_seed(0)
    model = Own(forward, **modules)
    settle(model, x)
    network = fold(model, x, batch_dim=1 if x.ndim == 3 else 0)
    exact = network.proofs[0]
    assert exact.worst == 0.0 and exact.output <= 1e-12 and not exact.silent
    assert torch.allclose(network(x), model(x), atol=1e-5) and network(x).shape == model(x).shape
    return network


def test_a_neuron_called_input_is_found_again():
    network = folded(lambda m, x: m.o(m.input(m.a(x))), input=ss.LIF(0.5))
    assert [node.name for node in network.graph.neurons()] == ["input"]


def test_a_neuron_that_the_output_does_not_need_is_left_out():
    def forward(m: Own, x: Tensor) -> Tensor:
        h = m.fire(m.a(x))
        m.aside(m.b(h))
        return m.o(h)

    assert [node.name for node in folded(forward, aside=ss.LIF()).graph.neurons()] == ["fire"]


def test_a_neuron_used_twice_of_which_the_first_is_not_needed():
    def forward(m: Own, x: Tensor) -> Tensor:
        m.fire(m.b(m.a(x)))
        return m.o(m.fire(m.a(x)))

    assert [node.name for node in folded(forward).graph.neurons()] == ["fire:2"]


def test_a_model_that_converts_to_float32_itself():
    folded(lambda m, x: m.o(m.fire(m.a(x.float()))))
    folded(lambda m, x: m.o(m.fire(m.a(x.to(dtype=torch.float32)))))


def test_arguments_by_keyword():
    folded(lambda m, x: m.o(m.fire(F.linear(input=x, weight=m.a.weight))).mean(axis=0))
    folded(lambda m, x: m.o(m.fire(torch.add(m.a(x), other=m.a(x)))))


def test_usual_ways_to_show_an_image_t_times():
    image = X[0]
    folded(lambda m, x: m.o(m.fire(m.a(x).unsqueeze(0).repeat(4, 1, 1))), image)
    folded(lambda m, x: m.o(m.fire(torch.stack([m.a(x)] * 4))), image)


def test_an_image_shown_once():
    """With T = 1 an image with a new first axis has its time axis."""
    image = X[0]
    folded(lambda m, x: m.o(m.fire(m.a(x)[None])), image)
    folded(lambda m, x: m.o(m.fire(m.a(x.unsqueeze(0).expand(1, *x.shape)))), image)
    folded(lambda m, x: m.o(m.fire(m.a(x[None].repeat(1, 1, 1)))), image)
    folded(lambda m, x: m.o(m.fire(m.a(x.unsqueeze(0)).flatten(0, 1).unflatten(0, (1, -1)))), image)
    norm = ss.nn.norm.TEBN(8, timesteps=1)
    folded(lambda m, x: m.o(m.fire(m.norm(m.a(x)[None]))), image, norm=norm)


def test_a_sum_in_place_behind_a_view():
    def forward(m: Own, x: Tensor) -> Tensor:
        h = m.a(x).flatten(0, 1).unflatten(0, x.shape[:2])
        h += m.a(x)
        return m.o(m.fire(F.relu_(h)))

    folded(forward)


def _writes_a_part(m: Own, x: Tensor) -> Tensor:
    h = m.a(x)
    h[..., 0] = 0.0  # of a neuron that never fires: no proof on this example could see it
    return m.o(m.fire(h))


def _changes_a_view(m: Own, x: Tensor) -> Tensor:
    h = m.a(x)
    h.flatten(0, 1).mul_(2.0)
    return m.o(m.fire(h))


@pytest.mark.parametrize(
    ("forward", "named"),
    [
        (lambda m, x: m.o(F.dropout(m.fire(m.a(x)), 0.5)), "dropout is active in evaluation"),
        (lambda m, x: m.o(m.fire(m.a(x.to(torch.int32).to(x.dtype)))), "int32"),
        (lambda m, x: m.o(m.fire(torch.div(m.a(x), 2, rounding_mode="floor"))), "'div' called with rounding_mode"),
        (lambda m, x: m.o(m.fire(torch.add(m.a(x), m.a(x), out=torch.empty(4, 2, 8)))), "'add' called with out"),
        (lambda m, x: m.o(m.fire(m.a(x)).flatten(0, 1)), r"must return \[T, B, ...\] or \[B, ...\]"),
        (lambda m, x: m.o(m.fire(m.a(x) if torch.equal(x, x) else x)), "reads values"),
        (_writes_a_part, "assignment to a part"),
        (_changes_a_view, "mul_ changed a tensor in place"),
    ],
)
def test_what_a_trace_cannot_hold_is_refused_by_name(forward, named):
    with pytest.raises(CannotFold, match=named):
        fold(Own(forward).eval(), X, check=False, batch_dim=1)


def test_dynamics_replaced_on_the_instance_are_refused():
    model = Own(lambda m, x: m.o(m.fire(m.a(x)))).eval()
    run = model.fire.run
    model.fire.run = lambda x, u0, membrane=False: run(2 * x, u0, membrane)
    with pytest.raises(CannotFold, match="fire: LIF has other dynamics than a plain LIF layer"):
        fold(model, X, check=False)


def test_a_wrong_fold_of_small_outputs_is_seen():
    class Random(nn.Module):
        """Something that the trace cannot see: a constant that is another one at each call."""

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand(8, dtype=x.dtype)

    model = Own(lambda m, x: 1e-5 * m.o(m.random(m.fire(m.a(x)))), random=Random())
    settle(model, X)
    with pytest.raises(CannotFold, match="differs from the model"):
        fold(model, X)


def test_a_threshold_of_ones_own():
    class Half(ss.LIF):
        @property
        def threshold(self) -> Tensor:
            return 0.5 * super().threshold

    folded(lambda m, x: m.o(m.fire(m.a(x))), fire=Half())


def test_a_writer_that_is_broadcast_cannot_be_split():
    def forward(m: Own, x: Tensor) -> Tensor:
        return m.o(m.late(m.b(m.fire(m.a(x)) + m.gate(m.a(x)).mean(-1, keepdim=True))))

    model = Own(forward, gate=ss.LIF(0.3), late=ss.LIF(0.1))
    settle(model, X)
    with pytest.raises(CannotFold, match=r"b reads fire .*gate"):
        fold(model, X, mode="split")
    assert fold(model, X, mode="graded").proofs[0].worst == 0.0


def test_a_bfloat16_model_with_a_norm_per_step():
    model, x = trained("resnet19_tiny", norm="tebn")
    network = fold(model.bfloat16(), x.bfloat16())
    assert network(x.bfloat16()).dtype == torch.bfloat16 and network.proofs[0].worst == 0.0
