"""The registry of models: ``create("resnet19", num_classes=100)`` builds one by name.

An entry has a function that builds the model, the defaults of its task, and options for that function. A variant (a
tiny model for tests, another depth) is an entry with other options, not another class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Shape, Task, image_sides
from steadyspike.nn.event_layers import use_events
from steadyspike.nn.factory import NeuronLike
from steadyspike.nn.lif import LIF
from steadyspike.nn.neurons import NeuronSpec, as_neuron
from steadyspike.nn.norm import NormLike
from steadyspike.nn.whole import whole_number

Builder = Callable[..., SpikingNet]

_PARTS_OPTIONS = ("conv_bias", "norm_threshold", "residual_alpha")


@dataclass(frozen=True)
class Entry:
    """One registered model: ``build(task, parts, **options)``; task is "classification" or "detection" (boxes)."""

    build: Builder
    family: str
    num_classes: int
    in_channels: int
    image_size: tuple[int, int]
    width: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)
    task: str = "classification"

    def option_names(self) -> list[str]:
        """Returns the names of the options that ``create`` accepts and passes to the builder or to `Parts`."""
        kinds = inspect.signature(self.build).parameters.values()
        return [p.name for p in kinds if p.kind is p.KEYWORD_ONLY] + list(_PARTS_OPTIONS)


_ENTRIES: dict[str, Entry] = {}
# Packages that add networks and build on this one. They are imported when a name is first looked up.
ROOMS = ("steadyspike.detection.networks",)


def register(name: str, entry: Entry) -> None:
    """Adds a model; raises ValueError if the name exists."""
    if name in _ENTRIES:
        raise ValueError(f"a model named {name!r} exists already; register it under another name")
    _ENTRIES[name] = entry


def _entries() -> dict[str, Entry]:
    for room in ROOMS:
        import_module(room)
    return _ENTRIES


def entry(name: str) -> Entry:
    """Returns the entry of a registered model."""
    if name not in _entries():
        raise ValueError(f"unknown model {name!r}; known: {', '.join(names())}")
    return _ENTRIES[name]


def names(family: str | None = None, task: str | None = None) -> list[str]:
    """Returns the names of all registered models, or of one family, or of one task ("classification", "detection")."""
    return sorted(n for n, e in _entries().items() if family in (None, e.family) and task in (None, e.task))


def create(
    name: str,
    *,
    num_classes: int | None = None,
    in_channels: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    timesteps: int = 4,
    neuron: str | NeuronLike = LIF,
    norm: NormLike = "tdbn",
    width: float | None = None,
    **options: Any,
) -> SpikingNet:
    """Builds a network by name.

    It takes static images [B, C, H, W] or frames [T, B, C, H, W] and returns [T, B, classes]. Detection networks
    return a list of maps instead (`steadyspike.detection.networks.ems_yolo.DetectionNet`). Convolutions and linear
    layers compute with spikes if that is faster (`steadyspike.use_events`).

    num_classes, in_channels, image_size: the default is that of the data set the model was made for
    timesteps: T for static images, and for norms and neurons with parameters per step
    neuron, norm, width: see `Parts`
    options: those of the family (``block``, ``head``, ``dropout``, ``init``, ...; docs/models.md) and of `Parts`
    """
    e = entry(name)
    chosen = {**e.options, **options}
    unknown = [o for o in chosen if o not in e.option_names()]
    if unknown:
        raise TypeError(f"{name} has no option {unknown[0]!r}; known: {', '.join(e.option_names())}")
    parts_options = {o: chosen.pop(o) for o in _PARTS_OPTIONS if o in chosen}
    parts = Parts(as_neuron(neuron), norm, timesteps, e.width if width is None else width, **parts_options)
    channels = whole_number(e.in_channels if in_channels is None else in_channels, "in_channels")
    image = Shape(channels, *image_sides(e.image_size if image_size is None else image_size))
    classes = whole_number(e.num_classes if num_classes is None else num_classes, "num_classes")
    net = use_events(e.build(Task(classes, image), parts, **chosen))
    made_of = {
        "name": name, "num_classes": classes, "in_channels": channels, "image_size": (image.height, image.width),
        "timesteps": timesteps, "neuron": neuron, "norm": norm, "width": width, "options": options,
    }  # fmt: skip
    # The user's own code is not stored, because it could make a model impossible to pickle.
    plain = isinstance(neuron, str | type | NeuronSpec) and isinstance(norm, str)
    net.made_of = made_of if plain and not any(map(callable, options.values())) else None
    return net
