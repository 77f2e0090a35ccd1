"""Each private piece of torch that the package uses does what its name here says; and nothing else is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from steadyspike.core import torch_private as private

PACKAGE = Path(private.__file__).parent.parent
PRIVATE = re.compile(
    r"torch\._|torch\.utils\._|\b_C\.|\._cdata\b|\._version\b|\._saved_|forward_ad\._|\._forward_(pre_)?hooks|_dynamo"
)


def test_modes_are_counted() -> None:
    class Mode(private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    assert private.dispatch_modes() == 0 and private.function_modes() == 0
    with Mode() as mode:
        assert private.dispatch_modes() == 1 and private.active_dispatch_modes() == [mode]
    with torch.device("cpu"):
        assert private.function_modes() == 1


def test_transforms_are_seen() -> None:
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.append(private.in_function_transform())
        return x.sum()

    torch.func.grad(look)(torch.ones(2))
    assert seen == [True] and not private.in_function_transform()
    with forward_ad.dual_level():
        assert private.in_forward_mode()
    assert not private.in_forward_mode()


def test_changes_by_others_are_counted() -> None:
    x, w = torch.ones(2), torch.ones(2, requires_grad=True)
    out, before = (x * w).sum(), private.version(x)
    private.count_change(x)
    assert private.version(x) == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_functions_are_applied_without_questions() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    x = torch.ones(2, requires_grad=True)
    out = private.apply_directly(Double)(x)
    assert out.grad_fn is not None and torch.autograd.grad(out.sum(), x)[0].tolist() == [2, 2]
    escaped: list[Tensor] = []
    torch.func.grad(lambda t: (escaped.append(t), t.sum())[1])(torch.ones(2))
    assert private.unwrapped(escaped[0]).data_ptr() and private.unwrapped(x) is x


def test_a_trace_is_seen() -> None:
    seen = []
    torch.jit.trace(lambda x: (seen.append(private.is_tracing()), x + 1)[1], torch.ones(2), check_trace=False)
    assert seen == [True] and not private.is_tracing()


def test_a_backward_and_its_batched_gradients_are_seen() -> None:
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            seen.append((private.backward_task() >= 0, private.is_batched_gradient(g)))
            return g

    x = torch.ones(3, requires_grad=True)
    y = Look.apply(x)
    torch.autograd.grad(y, x, torch.ones(3), retain_graph=True)
    torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)
    assert seen == [(True, False), (True, True)] and private.backward_task() == -1


def test_saved_tensor_hooks_are_seen() -> None:
    assert private.saved_tensor_hooks() is None and private.may_hook_saved_tensors()

    def pack(t: Tensor) -> Tensor:
        return t

    with saved_tensors_hooks(pack, pack):
        hooks = private.saved_tensor_hooks()
        assert hooks is not None and hooks[0] is pack
    with torch.autograd.graph.disable_saved_tensors_hooks("not now"):
        assert not private.may_hook_saved_tensors()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_is_the_same_object_in_both_runs(use_reentrant: bool) -> None:
    seen = []

    def run(x: Tensor) -> Tensor:
        hooks = private.saved_tensor_hooks()
        seen.append((private.checkpoint_frames(), private.running_functions()))
        assert private.saved_tensor_hooks() == hooks  # looking at all of them changes nothing
        return x.exp()

    checkpoint(run, torch.ones(2, requires_grad=True), use_reentrant=use_reentrant).sum().backward()
    (first, again), other = ([run[use_reentrant] for run in seen], [run[not use_reentrant] for run in seen])
    assert other == [[], []] and len(first) == len(again) == 1 and first[0][0] is again[0][0]
    assert (first[0][1], again[0][1]) == (False, True)


def test_versions_and_storages() -> None:
    x = torch.zeros(4)
    before = private.version(x)
    x.add_(1)
    assert private.version(x) == before + 1
    assert private.storage_key(x) == private.storage_key(x[1:]) != private.storage_key(x.clone())


def test_a_constant_while_compiling() -> None:
    calls = []

    @private.constant_while_compiling
    def choose(name: str) -> int:
        calls.append(name)
        return len(name)

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + choose("four"), fullgraph=True, backend="eager")
    assert torch.equal(compiled(torch.zeros(1)), torch.full((1,), 4.0)) and calls
    count = len(calls)
    compiled(torch.ones(1))
    assert len(calls) == count, "decided when the graph was made"


def test_hooks_are_removed_by_a_condition() -> None:
    layer, seen = nn.Linear(1, 1), []

    def mine(*args: object) -> None:
        seen.append("mine")

    def theirs(*args: object) -> None:
        seen.append("theirs")

    layer.register_forward_pre_hook(mine)
    layer.register_forward_hook(mine, always_call=True)
    layer.register_forward_hook(theirs)
    private.remove_forward_hooks(layer, lambda hook: hook is mine)
    layer(torch.ones(1))
    assert seen == ["theirs"]


def test_fake_tensors_and_trees() -> None:
    with private.FakeTensorMode():
        assert isinstance(torch.empty(2), private.FakeTensor)
    assert private.tree_leaves({"a": [1, 2], "b": (3,)}) == [1, 2, 3]
    assert issubclass(private.DataDependentOutputException, Exception)
    assert issubclass(private.DynamicOutputShapeException, Exception)


@pytest.mark.parametrize("part", ["core", "kernels", "nn", "train"])
def test_nothing_private_is_used_elsewhere(part: str) -> None:
    for path in sorted((PACKAGE / part).rglob("*.py")):
        if path.name == "torch_private.py":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not PRIVATE.search(line.split("#")[0]), f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"


def test_norms_and_moves_of_many_tensors() -> None:
    tensors = [torch.tensor([3.0, 4.0]), torch.tensor(2.0)]
    assert [float(norm) for norm in private.tensor_norms(tensors)] == [5.0, 2.0] and private.tensor_norms([]) == []
    private.move_towards(tensors, [torch.zeros(2), torch.tensor(4.0)], 0.25)
    assert tensors[0].tolist() == [2.25, 3.0] and float(tensors[1]) == 2.5
    private.move_towards([], [], 0.5)


def test_hooks_of_a_module_and_of_all_modules_are_seen() -> None:
    layer = torch.nn.Linear(1, 1)
    assert private.forward_hooks(layer) == [] and not private.has_other_hooks(layer)
    mine = lambda module, args, out: None  # noqa: E731
    layer.register_forward_hook(mine)
    assert private.forward_hooks(layer) == [mine] and not private.has_other_hooks(layer)
    handles = [
        lambda: layer.register_forward_pre_hook(lambda module, args: None),
        lambda: layer.register_full_backward_hook(mine),
        lambda: torch.nn.modules.module.register_module_forward_hook(mine),
    ]
    for register in handles:
        handle = register()
        assert private.has_other_hooks(layer)
        handle.remove()
        assert not private.has_other_hooks(layer)


def test_torch_functions_can_be_hidden_from_modes() -> None:
    class Counts(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    with Counts() as counts:
        x = torch.ones(1)
        seen = counts.calls
        with private.without_torch_function():
            x + x
        assert counts.calls == seen > 0
        x + x
        assert counts.calls > seen


def test_the_base_of_a_view() -> None:
    x = torch.ones(2, 3, requires_grad=True) * 1
    assert private.base_of(x) is x and private.base_of(x.flatten()) is x and private.base_of(x.flatten()[2:]) is x


def test_hooks_on_gradients_are_listed_and_run() -> None:
    x = torch.ones(2, 3, requires_grad=True) * 1
    hooks, seen = private.gradient_hooks(x), []
    assert not hooks and private.gradient_hooks(x) is hooks
    x.register_hook(seen.append)
    assert len(hooks) == 1
    (x * 3).sum().backward()
    assert torch.equal(seen[0], torch.full((2, 3), 3.0))
    y = torch.ones(2, requires_grad=True) * 1
    handle = y.register_hook(seen.append)
    assert len(private.gradient_hooks(y)) == 1
    handle.remove()
    assert not private.gradient_hooks(y)


def test_a_backward_of_chosen_tensors_is_told() -> None:
    answers = []

    class Ask(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            return x * w

        @staticmethod
        def backward(ctx, g):
            answers.append(private.runs_to_the_leaves(ctx.next_functions[1][0]))
            return g, g

    x, w = torch.ones(2, requires_grad=True) * 1, torch.ones(2, requires_grad=True)
    out = Ask.apply(x, w.view(2, 1).flatten()).sum()
    out.backward(retain_graph=True)
    torch.autograd.grad(out, x, retain_graph=True)
    torch.autograd.grad(out, [x, w], retain_graph=True)
    out.backward(inputs=[w], retain_graph=True)
    assert answers == [True, False, False, True]
    Ask.apply(x, w.detach()).sum().backward()
    assert answers[-1] is False


def test_a_compiled_module_is_told() -> None:
    layer = torch.nn.Linear(1, 1)
    assert not private.is_compiled(layer)
    layer.compile(backend="eager")
    assert private.is_compiled(layer)


POSTPONED = """
import sys, torch
from steadyspike.core.torch_private import postpone_compiler

def trained(kind, options):
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2)
    optimizer, calls = kind(layer.parameters(), lr=0.1, **options), []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert len(calls) == 3 and layer.weight.is_leaf and layer.weight.requires_grad
    return layer.weight.detach().clone()

kinds = {torch.optim.SGD: {"momentum": 0.9}, torch.optim.Adam: {}, torch.optim.AdamW: {}}
postpone_compiler()
postponed = [trained(*one) for one in kinds.items()]
assert "torch._dynamo" not in sys.modules
import torch._dynamo
assert all(trained(*one).equal(before) for one, before in zip(kinds.items(), postponed))
excluded = vars(torch.optim.Optimizer.zero_grad.__wrapped__)["__dynamo_disable"]
assert "steadyspike" not in excluded.__module__
print("equal")
"""


def test_an_optimizer_works_without_the_compiler_and_equally_with_it() -> None:
    done = subprocess.run([sys.executable, "-c", POSTPONED], capture_output=True, text=True)
    assert done.stdout == "equal\n", done.stderr
