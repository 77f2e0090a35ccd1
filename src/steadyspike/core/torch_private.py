"""All private parts of torch that this package uses, each under a descriptive name.

A new version of torch may change any of them. tests/core/test_torch_private.py has a test for each name and shows which
one broke; repair it in this file. core/, kernels/, nn/ and train/ use private parts of torch only through it.
"""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import wraps
from types import FrameType
from typing import Any, TypeVar

import torch
import torch._compile
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "tree_leaves",
]

Function = TypeVar("Function", bound=Callable[..., Any])
_C: Any = torch._C

# () -> int: the number of active dispatch modes, and of active function modes.
dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack
function_modes: Callable[[], int] = _C._len_torch_function_stack
# () -> list: the active dispatch modes themselves.
active_dispatch_modes: Callable[[], list[Any]] = _get_current_dispatch_mode_stack
# (tensor) -> bool: is it a batch of gradients, as torch.autograd.grad(is_grads_batched=True) passes them?
is_batched_gradient: Callable[[Tensor], bool] = _C._functorch.is_legacy_batchedtensor


# () -> bool: inside of torch.func's transforms (grad, vmap, jvp, ...)?
in_function_transform: Callable[[], bool] = _C._are_functorch_transforms_active
# (tensor) -> tensor: the value inside a tensor of a transform that has ended; any other tensor itself.
unwrapped: Callable[[Tensor], Tensor] = _C._functorch.unwrap_if_dead
# () -> bool: is torch.jit.trace recording? The public function first checks for a script.
is_tracing: Callable[[], bool] = _C._is_tracing


def in_forward_mode() -> bool:
    """Returns True inside ``forward_ad.dual_level()``."""
    return forward_ad._current_level >= 0


def backward_task() -> int:
    """Returns a number for the backward pass that autograd runs in this thread; -1 outside of a backward."""
    return _C._current_graph_task_id()


def saved_tensor_hooks() -> tuple[Any, Any] | None:
    """Returns the innermost active (pack, unpack) hooks; None if there are none."""
    return _C._autograd._top_saved_tensors_default_hooks(True)


def _all_saved_tensor_hooks() -> list[tuple[Any, Any]]:
    """Returns all active (pack, unpack) hooks, the innermost first."""
    hooks = []
    while (innermost := saved_tensor_hooks()) is not None:
        hooks.append(innermost)
        _C._autograd._pop_saved_tensors_default_hooks()
    for pack, unpack in reversed(hooks):
        _C._autograd._push_saved_tensors_default_hooks(pack, unpack)
    return hooks


def checkpoint_frames() -> list[tuple[Any, bool]]:
    """Returns the non-reentrant torch.utils.checkpoint around this call, the innermost first: (object, recomputed).

    The object is the same in the first run and when it is recomputed.
    """
    frames = []
    for pack, _ in _all_saved_tensor_hooks() if may_hook_saved_tensors() else []:
        hook = inspect.unwrap(pack)
        if hook.__module__ == torch.utils.checkpoint.__name__:
            inside = inspect.getclosurevars(hook).nonlocals
            recomputed = "target_frame_ref" in inside
            frames.append((inside["target_frame_ref"]() if recomputed else inside["frame"], recomputed))
    return frames


def running_functions() -> list[tuple[Any, bool]]:
    """Returns the Python functions of autograd whose methods are running, the innermost first: (ctx, is it backward).

    The reentrant torch.utils.checkpoint is such a function; ctx is the same in its forward and its backward.
    """
    functions = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name in ("forward", "backward") and code.co_argcount:
            ctx = frame.f_locals.get(code.co_varnames[0])
            if isinstance(ctx, torch.autograd.function.BackwardCFunction):
                functions.append((ctx, code.co_name == "backward"))
        frame = frame.f_back
    return functions


def may_hook_saved_tensors() -> bool:
    """Returns False if torch forbids saved-tensor hooks (inside torch.func)."""
    return _C._autograd._saved_tensors_hooks_is_enabled()


def apply_directly(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Calls ``function.apply`` without its first checks, for `unwrapped` tensors outside of torch.func."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def version(tensor: Tensor) -> int:
    """Returns autograd's count of how many times the tensor was changed in place."""
    return tensor._version


def count_change(tensor: Tensor) -> None:
    """Registers with autograd that code outside of torch has changed the tensor's values."""
    _C._increment_version([tensor])


def storage_key(tensor: Tensor) -> int:
    """Returns a number that identifies the tensor's storage.

    It is the same for all views, for as long as the storage exists.
    """
    return tensor.untyped_storage()._cdata


def base_of(tensor: Tensor) -> Tensor:
    """Returns the tensor of which ``tensor`` is a view for autograd; the tensor itself if it is not a view."""
    return tensor if tensor._base is None else tensor._base


def gradient_hooks(tensor: Tensor) -> dict[int, Any]:
    """Returns the hooks on the gradient of a tensor that has a node: a dict to which torch adds later hooks."""
    if tensor._backward_hooks is None:
        tensor._backward_hooks = OrderedDict()
        tensor.grad_fn._register_hook_dict(tensor)  # type: ignore[union-attr]
    return tensor._backward_hooks


def runs_to_the_leaves(node: Any) -> bool:
    """True if the running backward is for all parameters; False if ``torch.autograd.grad`` was called for some."""
    for _ in range(8):
        if isinstance(node, _C._functions.AccumulateGrad):
            try:
                return bool(_C._will_engine_execute_node(node))
            except RuntimeError:  # this leaf is one of the requested ones
                return False
        if node is None or not node.next_functions:
            return False
        node = node.next_functions[0][0]
    return False


def constant_while_compiling(function: Function) -> Function:
    """Does the same as torch.compiler.assume_constant_result, without importing the whole compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def postpone_compiler() -> None:
    """Lets optimizers of this process work without importing the compiler, which takes as long as the rest of torch.

    Torch imports it to exclude some methods from compiling, and in `step` to break a compiled graph. Without the
    compiler neither has an effect; after other code has imported it, torch's own methods run.
    """
    for method in vars(torch.optim.Optimizer).values():
        function = getattr(method, "__wrapped__", None)
        is_excluded = getattr(getattr(method, "__code__", None), "co_filename", None) == torch._compile.__file__
        if function is not None and is_excluded and not hasattr(function, "__dynamo_disable"):
            vars(function)["__dynamo_disable"] = _excluded_later(function)
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        if "step" in vars(kind) and not hasattr(kind.step, "hooked"):  # torch adds hooks to the step of a used class
            kind.step = _step_without_compiler(kind.step)  # type: ignore[method-assign]


def _excluded_later(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        excluded = vars(function)["__dynamo_disable"] = torch._dynamo.disable(function, wrapping=False)
        return excluded(*args, **kwargs)

    return call


def _step_without_compiler(step: Callable[..., Any]) -> Callable[..., Any]:
    plain = inspect.unwrap(step)

    @wraps(step)
    def call(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" in sys.modules:
            return step(optimizer, *args, **kwargs)
        with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
            return plain(optimizer, *args, **kwargs)

    return call


def remove_forward_hooks(module: nn.Module, condition: Callable[[Any], bool]) -> None:
    """Removes the forward and forward-pre hooks of ``module`` for which ``condition(hook)`` is true."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, hook in hooks.items() if condition(hook)]:
            del hooks[key]
            module._forward_hooks_always_called.pop(key, None)


def forward_hooks(module: nn.Module) -> list[Any]:
    """Returns the forward hooks of ``module``."""
    return list(module._forward_hooks.values())


def has_other_hooks(module: nn.Module) -> bool:
    """Returns True if ``module`` has forward-pre or backward hooks, or torch has hooks for every module."""
    own = (module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    everywhere = (
        torch_module._global_forward_hooks,
        torch_module._global_forward_pre_hooks,
        torch_module._global_backward_hooks,
        torch_module._global_backward_pre_hooks,
    )
    return any(own) or any(everywhere)


def is_compiled(module: nn.Module) -> bool:
    """Returns True if ``module.compile()`` was called: a call of the module then runs its compiled form."""
    return module._compiled_call_impl is not None


def without_torch_function() -> Any:
    """A context in which torch functions do not call ``__torch_function__`` modes."""
    return _C.DisableTorchFunction()


def tensor_norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns the norm of each tensor, by one call for all of them."""
    return list(torch._foreach_norm(list(tensors))) if tensors else []


def move_towards(tensors: Sequence[Tensor], targets: Sequence[Tensor], weight: float) -> None:
    """Computes ``tensor += weight * (target - tensor)`` in place, by one call for all of them."""
    if tensors:
        torch._foreach_lerp_(list(tensors), list(targets), weight)
