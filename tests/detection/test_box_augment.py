"""Letterbox, mosaic, zoom, mirror and colours move images and boxes together; all from one seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from steadyspike import data
from steadyspike.data.errors import DataError
from steadyspike.detection.data.box_augment import BoxAugment
from steadyspike.detection.data.letterbox import GREY, fit, letterbox, scaled_size
from steadyspike.detection.data.mosaic import Scene, mirrored, mosaic, recoloured, worth_keeping, zoom

ROOM = (64, 96)


def scene(size: tuple[int, int], *boxes: tuple[int, int, int, int]) -> Scene:
    """A black image with white rectangles, which are its boxes."""
    pixels = np.zeros((*size, 3), np.uint8)
    for left, top, right, bottom in boxes:
        pixels[top:bottom, left:right] = 255
    return Scene(Image.fromarray(pixels), np.array(boxes, float).reshape(-1, 4), np.arange(len(boxes)))


def white(image: Image.Image) -> tuple[int, int, int, int]:
    """The box of what is white."""
    rows, columns = np.nonzero(np.asarray(image)[..., 0] > 180)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def assert_same_place(actual: Scene, tolerance: float = 1.0) -> None:
    assert np.abs(np.array(white(actual.image)) - actual.corners[0]).max() <= tolerance


@pytest.mark.parametrize("size", [(40, 60), (200, 100), (64, 96), (10, 300), (1, 1)])
def test_letterbox_keeps_the_aspect_and_comes_back(size: tuple[int, int]) -> None:
    height, width = scaled_size(size, ROOM)
    assert height <= ROOM[0] and width <= ROOM[1] and (height == ROOM[0] or width == ROOM[1])
    location = fit(size, ROOM)
    boxes = np.array([[0.0, 0, size[1], size[0]], [1, 0.5, 3, 2]])
    there = location.forward(boxes)
    np.testing.assert_allclose(there[0], [location.left, location.top, location.left + width, location.top + height])
    np.testing.assert_allclose(location.back(there), boxes)
    image = letterbox(Image.new("RGB", (size[1], size[0]), (255, 0, 0)), ROOM)
    assert image.size == (96, 64)
    pixels = np.asarray(image)
    red = (pixels == (255, 0, 0)).all(-1)
    assert red.sum() == height * width and (pixels[~red] == GREY).all()


def test_a_mosaic_puts_four_images_corner_to_corner() -> None:
    scenes = [scene((40, 60), (10, 10, 30, 20)) for _ in range(4)]
    actual = mosaic(scenes, ROOM, (100, 70))
    assert actual.image.size == (192, 128) and len(actual.corners) == 4
    assert actual.corners.tolist() == [[50, 40, 70, 50], [110, 40, 130, 50], [50, 80, 70, 90], [110, 80, 130, 90]]
    pixels = np.asarray(actual.image)[..., 0]
    for left, top, right, bottom in actual.corners.astype(int):
        assert (pixels[top:bottom, left:right] == 255).all()
    assert (pixels == 255).sum() == 4 * 200 and (pixels[0] == GREY[0]).all()


def test_a_mosaic_cuts_what_leaves_the_canvas() -> None:
    actual = mosaic([scene((64, 96), (0, 0, 90, 60)) for _ in range(4)], ROOM, (48, 32))
    assert actual.corners[0].tolist() == [0, 0, 42, 28]


@pytest.mark.parametrize(("scale", "shift"), [(1.0, (48.0, 32.0)), (0.5, (40.0, 30.0)), (1.5, (55.0, 38.0))])
def test_zoom_moves_image_and_boxes_alike(scale: float, shift: tuple[float, float]) -> None:
    actual = zoom(scene((128, 192), (80, 50, 112, 74)), ROOM, scale, shift)
    assert actual.image.size == (96, 64)
    assert_same_place(actual)


def test_mirror_moves_image_and_boxes_alike() -> None:
    actual = mirrored(scene(ROOM, (10, 20, 30, 50)))
    assert actual.corners.tolist() == [[66, 20, 86, 50]]
    assert white(actual.image) == (66, 20, 86, 50)


def test_boxes_that_are_hardly_there_go() -> None:
    before = np.array([[0, 0, 20, 20], [0, 0, 100, 100], [0, 0, 50, 50], [0, 0, 60, 60.0]])
    after = np.array([[0, 0, 2, 20], [0, 0, 9, 9], [0, 0, 50, 2.4], [0, 0, 30, 30.0]])
    assert worth_keeping(before, after).tolist() == [False, False, False, True]


def test_colours_change_by_their_factors() -> None:
    image = Image.new("RGB", (4, 4), (200, 100, 50))
    assert np.abs(np.asarray(recoloured(image, (1.0, 1.0, 1.0))).astype(int) - [200, 100, 50]).max() <= 2
    darker = np.asarray(recoloured(image, (1.0, 1.0, 0.5))).astype(int)
    assert np.abs(darker - [100, 50, 25]).max() <= 2
    grey = np.asarray(recoloured(image, (1.0, 0.0, 1.0))).astype(int)
    assert (grey == 200).all()


def test_equal_seeds_give_equal_scenes() -> None:
    scenes = [scene((64, 80), (10 + i, 10, 50, 40)) for i in range(5)]
    pool = np.arange(5)

    def made(seed: int, **options: float) -> Scene:
        return BoxAugment(**options)(0, pool, scenes.__getitem__, ROOM, seed)

    first, again, other = made(1), made(1), made(2)
    assert np.array_equal(np.asarray(first.image), np.asarray(again.image))
    assert np.array_equal(first.corners, again.corners)
    assert not np.array_equal(np.asarray(first.image), np.asarray(other.image))
    plain = made(1, mosaic=0.0, scale=0.0, translate=0.0, hsv=(0.0, 0.0, 0.0), flip=0.0)
    assert_same_place(plain)
    assert plain.image.size == (96, 64)
    for seed in range(20):
        actual = made(seed)
        assert (actual.corners >= 0).all() and (actual.corners <= [96, 64, 96, 64]).all()


@pytest.mark.parametrize("wrong", [{"mosaic": 2.0}, {"scale": 1.0}, {"hsv": (0.1, 0.2)}, {"flip": "yes"}])
def test_wrong_options_are_named(wrong: dict) -> None:
    with pytest.raises(DataError, match=next(iter(wrong))):
        BoxAugment(**wrong)


def test_a_mosaic_never_shows_an_image_of_another_part() -> None:
    bundle = data.load("shapes", images=20)
    loader = bundle.train_loader(4)
    item = loader._reader._loader.dataset.item
    seen = set()
    original = type(item).scene

    class Watching(type(item)):  # type: ignore[misc]
        def scene(self, index: int) -> Scene:
            seen.add(index)
            return original(self, index)

    object.__setattr__(item, "__class__", Watching)
    for epoch in range(6):
        list(loader.batches(epoch))
    assert seen == set(bundle.indices("train").tolist())


def test_loaders_give_the_same_batches_again_and_from_any_place() -> None:
    bundle = data.load("shapes", images=20)
    first = list(bundle.train_loader(4, seed=3).batches(1))
    again = list(bundle.train_loader(4, seed=3, workers=1).batches(1, start=1))
    assert len(first) == 3
    for (x, y), (u, v) in zip(first[1:], again):
        assert torch.equal(x, u) and torch.equal(y.boxes, v.boxes)
    other = next(iter(bundle.train_loader(4, seed=4).batches(1)))
    assert not torch.equal(first[0][0], other[0])
    loader = bundle.train_loader(4, seed=3)
    loader.set_epoch(1)
    next(iter(loader))
    resumed = bundle.train_loader(4, seed=3)
    resumed.load_state_dict(loader.state_dict())
    assert torch.equal(next(iter(resumed))[0], first[1][0])


def test_every_image_is_evaluated_once_over_processes() -> None:
    bundle = data.load("shapes", images=20)
    seen = [
        int(i)
        for rank in range(3)
        for _, y in bundle.eval_loader("test", 2, rank=rank, world_size=3)
        for i in y.samples
    ]
    assert sorted(seen) == bundle.indices("test").tolist()


def test_augmentation_can_be_changed_and_switched_off() -> None:
    bundle = data.load("shapes", images=20, augment={"mosaic": 0.0, "flip": 0.0})
    assert bundle.dataset.item.augment.mosaic == 0.0 and bundle.dataset.item.augment.scale == 0.3
    plain = data.load("shapes", images=20, augment="none")
    x, y = next(plain.train_loader(20, seed=0).batches(0))
    u, v = next(iter(plain.eval_loader("train", 20)))
    order = y.samples.argsort()
    assert torch.equal(x[order], u) and len(y.boxes) == len(v.boxes)
    with pytest.raises(DataError, match="augment must be"):
        data.load("shapes", images=20, augment={"padding": 4})
