"""weights.safetensors: the weights of a run's result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from steadyspike.train.files.folder import RunError


def save_weights(path: Path, state: dict[str, Tensor], about: dict[str, Any]) -> None:
    """A model's state as safetensors, with ``about`` as JSON under the metadata key "steadyspike".

    One key only: the format does not fix the order of several, and equal weights are to be equal files. Tied parameters
    are stored once per name.
    """
    from safetensors.torch import save

    from steadyspike.train.files.atomic import write_atomically

    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    content = save(tensors, {"steadyspike": json.dumps(about, sort_keys=True)})
    write_atomically(path, lambda file: file.write(content))


def load_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Weights of `save_weights` into ``model``, where every name must match; what was saved about them."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            about = (file.metadata() or {}).get("steadyspike", "{}")
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise RunError(
            f"{path} is damaged ({error}); remove it and result.json, and --resume writes them again"
        ) from None
    model.load_state_dict(state)
    found: dict[str, Any] = json.loads(about)
    return found
