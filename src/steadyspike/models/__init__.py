"""Spiking networks by name, and the blocks they are built from."""

from steadyspike.models.blocks.conv import ConvNormLIF
from steadyspike.models.model_registry import Entry, create, names, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Shape, Task

# Imported so that they register their networks.
from steadyspike.models import cnn7, ms_resnet, resnet19, resnet34, sew_resnet, vgg9, vggsnn  # noqa: F401  # isort: skip
from steadyspike.models import qkformer, sdt, spikformer, spikingformer, spikingresformer  # noqa: F401  # isort: skip

__all__ = ["ConvNormLIF", "Entry", "Parts", "Shape", "SpikingNet", "Task", "create", "names", "register"]


def __dir__() -> list[str]:
    return sorted(__all__)
