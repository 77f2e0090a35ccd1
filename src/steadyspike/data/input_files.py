"""Image and event files as inputs of a trained network, prepared in the same way as the training data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steadyspike.data.dataset import DataSet
from steadyspike.data.errors import DataError
from steadyspike.data.frames import FrameSettings

MOST_FRAMES, LARGEST_SIDE = 10_000, 1 << 14  # of a clip
NMNIST = (34, 34)  # the sensor size of the one format whose files do not contain it


def input_facts(data: DataSet) -> dict[str, Any]:
    """Returns how a file becomes an input of a network that was trained on ``data``, and the names of the classes.

    These are plain values, which are stored with the network, so that its data set is not needed to use it.
    """
    return {
        "classes": list(data.classes),
        "size": list(data.size),
        "channels": data.channels,
        "timesteps": data.timesteps,
        "mean": None if data.mean is None else list(data.mean),
        "std": None if data.std is None else list(data.std),
        "frames": data.settings.get("frames"),
        "axes": data.settings.get("axes", "dvs-cifar10"),
        "data": data.name,
    }


def frame_settings(kept: dict[str, Any]) -> FrameSettings:
    """Returns how events become frames, from the values that `input_facts` has stored."""
    size = kept.get("size")
    return FrameSettings(**{**kept, "size": None if size is None else tuple(size)})


def are_frame_settings(kept: Any) -> bool:
    """Returns whether values from a file are settings of `frame_settings` of a size that can be computed."""
    try:
        settings = frame_settings(kept)
    except (DataError, TypeError, ValueError, AttributeError):
        return False
    return settings.timesteps <= MOST_FRAMES and max(settings.size or (1,)) <= LARGEST_SIDE


def read_input(path: Path, facts: dict[str, Any], resize: bool) -> Tensor:
    """Returns [1, C, H, W] for an image, or [T, 1, C, H, W] for a recording, prepared by the facts of `input_facts`."""
    if not path.is_file():
        raise DataError("is not a file", path)
    return _events(path, facts) if facts["timesteps"] is not None else _image(path, facts, resize)


def _image(path: Path, facts: dict[str, Any], resize: bool) -> Tensor:
    from steadyspike.data.augment import normalise
    from steadyspike.data.images import open_rgb, to_tensor

    image = open_rgb(path)
    height, width = facts["size"]
    if image.size != (width, height):
        if not resize:
            raise DataError(
                f"has {image.size[0]} x {image.size[1]} pixels and the network takes {width} x {height}; "
                "give --resize to scale it", path
            )  # fmt: skip
        image = image.resize((width, height))
    if facts["channels"] == 1:
        x = to_tensor(image.convert("L").convert("RGB"))[:1]
    elif facts["channels"] == 3:
        x = to_tensor(image)
    else:
        raise DataError(f"is an image, and the network takes {facts['channels']} channels", path)
    if facts["mean"] is not None:
        return normalise(x[None], tuple(facts["mean"]), tuple(facts["std"]))
    return x[None].to(torch.float32) / 255


def _events(path: Path, facts: dict[str, Any]) -> Tensor:
    from steadyspike.data.formats.recording_file import read_recording
    from steadyspike.data.frames import clip

    if facts["frames"] is None:
        raise DataError("is a recording, and the network does not record how events become frames", path)
    settings = frame_settings(facts["frames"])
    sensor = tuple(facts["size"]) if settings.size is None else NMNIST
    events = read_recording(path, sensor, facts.get("axes", "dvs-cifar10"))
    frames = torch.as_tensor(clip(events, settings)).to(torch.float32)
    if list(frames.shape[-2:]) != list(facts["size"]):
        raise DataError(f"gives frames of {list(frames.shape[-2:])} and the network takes {facts['size']}", path)
    return frames[:, None]
