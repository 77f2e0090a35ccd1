"""The table of a recipe that makes a run find boxes."""

from __future__ import annotations

from pydantic import Field

from steadyspike.train.recipe.numbers_of_recipe import Table


class Detection(Table):
    """[detection]: makes a run find boxes. The gains of its loss, and how boxes are chosen and scored."""

    box: float = Field(default=0.05, ge=0, description="The gain of the loss of boxes, 1 - CIoU.")
    obj: float = Field(default=1.0, ge=0, description="The gain of the loss of objectness.")
    cls: float = Field(default=0.5, ge=0, description="The gain of the loss of classes.")
    scale_gains: bool = Field(
        default=True,
        description="Multiply all gains by 3/maps, cls by classes/80 and obj by pixels/640^2, as published.",
    )
    anchor_ratio: float = Field(
        default=4.0, gt=1, description="A box and an anchor match if their sides differ by less than this ratio."
    )
    confidence: float = Field(default=0.001, ge=0, lt=1, description="The smallest score of a box that counts.")
    overlap: float = Field(
        default=0.6, gt=0, le=1, description="The IoU above which the worse of two boxes of a class is dropped (NMS)."
    )
    most: int = Field(default=300, ge=1, description="The largest number of boxes kept in an image.")
    pictures: int = Field(default=8, ge=0, description="The number of validation images in a picture of predictions.")
    pictures_every: int = Field(default=5, ge=1, description="Draw such a picture every so many epochs.")
