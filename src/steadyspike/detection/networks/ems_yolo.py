"""EMS-YOLO (Su et al., 2023): EMS-ResNet with two detection scales, in both published forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from steadyspike.detection.networks.detect import ANCHORS, Detect
from steadyspike.detection.networks.ems import EMSBlock
from steadyspike.models.blocks.conv import ConvNorm
from steadyspike.models.blocks.stages import block_counts
from steadyspike.models.model_registry import Entry, register
from steadyspike.models.net import SpikingNet
from steadyspike.models.parts import Parts, Shape, Task
from steadyspike.models.weight_init import initialise
from steadyspike.nn.factory import Site, starting_threshold
from steadyspike.nn.time import Folded

WIDTHS = (64, 128, 256, 512)
STRIDE = 32
FORMS = ("plain", "ee")


class TwoScales(nn.Module):
    """Backbone and neck: maps currents of the stem to those of stride 16 and of stride 32.

    layer1 ... layer4 each halve the image. neck and coarse process the last map. The output of side is doubled in
    size and concatenated with the map of layer3; fine processes the result.
    """

    def __init__(self, parts: Parts, shape: Shape, form: str, layers: Sequence[int]) -> None:
        super().__init__()
        lean, kept = form == "ee", shape
        stages: list[nn.Sequential] = []
        for i, (full, count) in enumerate(zip(WIDTHS, layers), start=1):
            channels, stage = parts.channels(full), nn.Sequential()
            for j in range(count):
                concat = lean or i > 1  # the first stage of the plain form keeps its channels
                block = _block(parts, shape, channels, 2 if j == 0 else 1, lean, concat=concat)
                stage.append(block)
                shape = block.shape
            stages.append(stage)
            kept = shape if i == 3 else kept
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        narrow, wide = parts.channels(256), parts.channels(512)
        self.neck = _block(parts, shape, narrow, 1, lean, hidden=None if lean else parts.channels(1024))
        self.coarse = _block(parts, self.neck.shape, wide, 1, lean, concat=lean)
        self.side = _block(parts, self.neck.shape, parts.channels(128), 1, lean, kernel=1)
        self.upsample = Folded(nn.Upsample(scale_factor=2, mode="nearest"))
        joined = kept._replace(channels=self.side.shape.channels + kept.channels)
        self.fine = _block(parts, joined, narrow, 1, lean)
        self.shapes = (self.fine.shape, self.coarse.shape)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.layer3(self.layer2(self.layer1(x)))
        neck = self.neck(self.layer4(kept))
        joined = torch.cat([self.upsample(self.side(neck)), kept], 2)
        return self.fine(joined), self.coarse(neck)


def _block(
    parts: Parts,
    shape: Shape,
    channels: int,
    stride: int,
    lean: bool,
    *,
    kernel: int = 3,
    hidden: int | None = None,
    concat: bool = False,
) -> EMSBlock:
    """A block of the lean form.

    It has half as many channels inside, and no neuron in a shortcut that only changes the shape.
    """
    hidden = channels // 2 if lean else hidden
    return EMSBlock(parts, shape, channels, stride, kernel=kernel, hidden=hidden, concat=concat, real=lean)


class DetectionNet(SpikingNet):
    """``forward(x, timesteps=None)``: static images [B, C, H, W] or frames [T, B, C, H, W] -> a map per scale.

    A map is [B, anchors, H / stride, W / stride, 5 + classes]. Height and width must be multiples of 32.
    """

    head: Detect

    def frames(self, x: Tensor, timesteps: int | None = None) -> Tensor:
        x = super().frames(x, timesteps)
        if x.shape[-1] % STRIDE or x.shape[-2] % STRIDE:
            raise ValueError(
                f"the image has {x.shape[-2]} x {x.shape[-1]} pixels; both sides must be multiples of {STRIDE}"
            )
        return x

    @torch.no_grad()
    def find_strides(self, objects: float) -> None:
        """Finds the strides by running the network once on a small empty image, and sets the head's first biases."""
        side = 2 * STRIDE
        mode = self.training
        maps = self.eval()(torch.zeros(1, self.in_channels, side, side), timesteps=1)
        self.train(mode)
        self.head.set_strides([side // raw.shape[3] for raw in maps], objects)


def ems_yolo(
    task: Task,
    parts: Parts,
    *,
    form: str = "ee",
    layers: tuple[int, int, int, int] = (1, 1, 1, 1),
    anchors: tuple[float, ...] = ANCHORS,
    gain: float = 1.0,
    last_gain: float = 0.2,
    objects: float = 8.0,
    init: str | Callable[[nn.Module], None] = "default",
) -> SpikingNet:
    """EMS-YOLO with two scales.

    form: ``"plain"`` (``resnet10.yaml``) or ``"ee"`` (``res10-ee.yaml``: narrow inside the blocks)
    layers: blocks of each stage; all but the first keep the shape
    gain, last_gain: start of the norms' scales, as a multiple of the neuron's starting V; last_gain is for the last
        norm of each residual branch. 1 and 0.2 are the published 0.5 and 0.1 for V = 0.5.
    anchors: widths and heights in pixels, the three of stride 16 first
    objects: expected number in an image of 640 x 640 pixels, for the start of the objectness
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}; known: {', '.join(FORMS)}")
    if task.image.height % STRIDE or task.image.width % STRIDE:
        raise ValueError(
            f"image_size {task.image.height} x {task.image.width}: both sides must be multiples of {STRIDE}"
        )
    if not objects > 0:
        raise ValueError(f"objects must be above 0, got {objects}")
    stem_channels = parts.channels(32 if form == "ee" else 64)
    stem = ConvNorm(parts, task.image, stem_channels, 3 if form == "ee" else 7, 2)
    body = TwoScales(parts, task.image.conv(stem_channels, 2), form, block_counts(layers, 4))
    head = Detect(body.shapes, task.num_classes, anchors)
    net = DetectionNet(stem, body, head, in_channels=task.image.channels, timesteps=parts.timesteps)
    initialise(net, init)
    _start_gains(net, parts, gain, last_gain)
    net.find_strides(objects)
    return net


def _start_gains(net: nn.Module, parts: Parts, gain: float, last_gain: float) -> None:
    threshold = starting_threshold(parts.neuron, Site(8, (1, 1), parts.timesteps))
    for module in net.modules():
        if isinstance(module, ConvNorm) and isinstance(weight := getattr(module.norm, "weight", None), nn.Parameter):
            nn.init.constant_(weight, gain * threshold)
    for module in net.modules():
        if isinstance(module, EMSBlock) and isinstance(
            weight := getattr(module.last_norm(), "weight", None), nn.Parameter
        ):
            nn.init.constant_(weight, last_gain * threshold)


_COCO = (80, 3, (640, 640))
register("ems_resnet10", Entry(ems_yolo, "ems_yolo", *_COCO, options={"form": "plain"}, task="detection"))
register("ems_resnet10_ee", Entry(ems_yolo, "ems_yolo", *_COCO, task="detection"))
register("ems_resnet18_ee", Entry(ems_yolo, "ems_yolo", *_COCO, options={"layers": (2, 2, 2, 2)}, task="detection"))
register("ems_resnet10_ee_small", Entry(ems_yolo, "ems_yolo", 3, 3, (64, 64), 1 / 8, task="detection"))
