"""Image folders: the standard transforms, decoding in workers, and folders with something wrong."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import steadyspike.data as data
from steadyspike.data.errors import DataError
from steadyspike.data.images import open_rgb, random_box, random_resized_crop, resize_and_centre, to_tensor


def photograph(path: Path, size: tuple[int, int] = (50, 40), seed: int = 0, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (size[1] // 5, size[0] // 5, 3)).astype(np.uint8)
    Image.fromarray(noise).resize(size).convert(mode).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    for number in range(12):
        for part in ("train", "val"):
            photograph(root / part / "cat" / f"{number}.jpg", seed=number)
            photograph(root / part / "dog" / f"{number}.png", (30, 60), seed=100 + number)
    return root


def test_folder_bundle(folder: Path, tmp_path: Path) -> None:
    bundle = data.load("folder", folder, cache_dir=tmp_path / "c", size=16)
    assert bundle.classes == ("cat", "dog")
    assert len(bundle.split.test) == 24 and bundle.split.name.startswith("official")
    x, y = next(iter(bundle.train_loader(10)))
    assert x.shape == (10, 3, 16, 16) and x.dtype == torch.float32
    again = next(iter(bundle.train_loader(10, workers=1)))
    assert torch.equal(x, again[0]) and torch.equal(y, again[1])


def test_evaluation_transform_is_resize_and_centre_crop(folder: Path, tmp_path: Path) -> None:
    bundle = data.load("folder", folder, cache_dir=tmp_path / "c", size=16)
    x, _ = next(iter(bundle.eval_loader("test", 24)))
    index = bundle.split.test[3]
    image = open_rgb(folder / bundle.dataset.population.ids[index])
    expected = bundle.dataset.finish(resize_and_centre(image, 18, 16)[None])[0]
    assert torch.equal(x[3], expected)


def test_resize_and_centre_matches_the_definition() -> None:
    """Short side to 256, long side in proportion (rounded down), middle 224."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 401, 3)).astype(np.uint8))
    expected = image.resize((342, 256), Image.Resampling.BILINEAR).crop((59, 16, 283, 240))
    assert torch.equal(resize_and_centre(image, 256, 224), to_tensor(expected))


def test_random_resized_crop_is_crop_then_resize() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 80, 3)).astype(np.uint8))
    for seed in range(20):
        box = random_box(80, 60, torch.Generator().manual_seed(seed))
        out = random_resized_crop(image, 24, torch.Generator().manual_seed(seed))
        expected = to_tensor(image.crop(box).resize((24, 24), Image.Resampling.BILINEAR))
        assert torch.equal(out, expected) or torch.equal(out, expected.flip(-1))


def test_a_crop_of_all_of_an_image_and_bicubic() -> None:
    """The transforms of Spikformer's ImageNet file: no area is cut off, and the aspect becomes square."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 70, 3)).astype(np.uint8))
    whole = to_tensor(image.resize((24, 24), Image.Resampling.BICUBIC))
    for seed in range(10):
        out = random_resized_crop(image, 24, torch.Generator().manual_seed(seed), 1.0, "bicubic")
        assert torch.equal(out, whole) or torch.equal(out, whole.flip(-1))
    middle = to_tensor(image.resize((28, 24), Image.Resampling.BICUBIC).crop((2, 0, 26, 24)))
    assert torch.equal(resize_and_centre(image, 24, 24, "bicubic"), middle)


@pytest.mark.parametrize(
    ("option", "message"),
    [({"least_area": 0.0}, "least_area must be above 0"), ({"interpolation": "cubic"}, "bilinear or bicubic, not")],
)
def test_wrong_crops_are_refused(tmp_path: Path, option: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.load("folder", tmp_path, **option)  # type: ignore[arg-type]


def test_random_boxes_have_the_stated_area_and_aspect() -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = [random_box(500, 400, generator) for _ in range(3000)]
    area = np.array([(r - left) * (b - t) / 200_000 for left, t, r, b in boxes])
    aspect = np.array([(r - left) / (b - t) for left, t, r, b in boxes])
    assert area.min() > 0.078 and area.max() <= 1.0
    assert aspect.min() > 0.74 and aspect.max() < 1.35
    # Boxes that do not fit are drawn again, which thins out the largest ones: a little below the mean of the range.
    assert 0.45 < area.mean() < 0.54
    assert all(left >= 0 and t >= 0 and r <= 500 and b <= 400 for left, t, r, b in boxes)


def test_aspect_is_uniform_in_its_logarithm() -> None:
    generator = torch.Generator().manual_seed(0)
    boxes = [random_box(500, 500, generator, scale=(0.08, 0.5)) for _ in range(3000)]
    logs = np.log([(r - left) / (b - t) for left, t, r, b in boxes]) / np.log(4 / 3)
    assert abs(logs.mean()) < 0.04
    assert logs.var() == pytest.approx(1 / 3, rel=0.06)


def test_a_very_long_image_falls_back_to_a_central_box() -> None:
    left, top, right, bottom = random_box(1000, 10, torch.Generator().manual_seed(0))
    assert (top, bottom) == (0, 10) and (right - left) / (bottom - top) <= 4 / 3 + 0.1


def test_small_images_with_crop_policy(folder: Path, tmp_path: Path) -> None:
    bundle = data.load("folder", folder, cache_dir=tmp_path / "c", size=8, policy="crop")
    assert next(iter(bundle.train_loader(6)))[0].shape == (6, 3, 8, 8)
    assert bundle.describe()["augment"].items() >= {"padding": 4, "flip": True}.items()


def test_folder_without_parts_is_split_at_random(folder: Path, tmp_path: Path) -> None:
    bundle = data.load("folder", folder / "train", cache_dir=tmp_path / "c", size=8, split="random:5")
    assert bundle.split.name.startswith("random:5") and len(bundle.split.test) == 2


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "RGBA", "1"])
def test_other_colour_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    path = photograph(tmp_path / ("a.jpg" if mode in ("L", "CMYK") else "a.png"), mode=mode)
    assert to_tensor(open_rgb(path)).shape == (3, 40, 50)


@pytest.mark.parametrize("content", [b"", b"not an image", None], ids=["empty", "text", "truncated"])
def test_a_file_that_is_not_an_image_is_named(folder: Path, tmp_path: Path, content: bytes | None) -> None:
    bad = folder / "train" / "cat" / "3.jpg"
    bad.write_bytes(bad.read_bytes()[:300] if content is None else content)
    bundle = data.load("folder", folder, cache_dir=tmp_path / "c", size=8, validation="none")
    with pytest.raises(DataError, match=r"cat/3\.jpg: is not an image that can be decoded"):
        list(bundle.train_loader(4))


def test_wrong_folders(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    (folder / "train" / "empty").mkdir()
    with pytest.raises(DataError, match=r"val: has other classes than .*train: empty"):
        data.load("folder", folder, cache_dir=cache)
    (folder / "val" / "empty").mkdir()
    with pytest.raises(DataError, match="train/empty: is a class folder without any image"):
        data.load("folder", folder, cache_dir=cache)
    flat = tmp_path / "flat"
    photograph(flat / "train" / "a" / "1.jpg")
    with pytest.raises(
        DataError, match=r"has the parts train; expected are .* A class folder cannot have the name of a part"
    ):
        data.load("folder", flat, cache_dir=cache)
    photograph(flat / "val" / "ILSVRC_1.JPEG")
    with pytest.raises(DataError, match="val: has no class folders; its images must be sorted"):
        data.load("folder", flat, cache_dir=cache)
    with pytest.raises(DataError, match="policy must be"):
        data.load("folder", folder, cache_dir=cache, policy="random")
    with pytest.raises(DataError, match=r"nowhere: is not a folder"):
        data.load("folder", tmp_path / "nowhere", cache_dir=cache)
    with pytest.raises(DataError, match="needs data_dir"):
        data.load("folder", cache_dir=cache)


def test_imagenet_layout(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(DataError, match="ImageNet was not found"):
        data.load("imagenet", tmp_path / "d", cache_dir=tmp_path / "c")
    folder.rename(tmp_path / "d" / "ILSVRC2012")
    bundle = data.load("imagenet", tmp_path / "d", cache_dir=tmp_path / "c")
    assert bundle.shape == (224, 224) and bundle.dataset.mean == (0.485, 0.456, 0.406)
    assert bundle.describe()["image_resize"] == 256


def test_sixteen_bit_grey_is_scaled(tmp_path: Path) -> None:
    """Pillow's own conversion turns everything above 255 of 65535 into white."""
    ramp = np.tile(np.linspace(0, 65535, 256).astype(np.uint16), (4, 1))
    for name in ("a.png", "a.tif", "a.pgm"):
        Image.fromarray(ramp).save(tmp_path / name)
        assert to_tensor(open_rgb(tmp_path / name))[1, 2].tolist() == list(range(256)), name


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_of_unknown_range_are_refused(tmp_path: Path, dtype: type) -> None:
    Image.fromarray(np.ones((4, 4), dtype)).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match=r"a\.tif: has pixels of mode [IF], whose range is unknown"):
        open_rgb(tmp_path / "a.tif")


@pytest.mark.parametrize("name", ["val", "validation"])
def test_three_parts_are_not_confused(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / "val").rename(folder / name)
    for label in ("cat", "dog"):
        for number in range(5):
            photograph(folder / "test" / label / f"{number}.png", seed=number)
    bundle = data.load("folder", folder, cache_dir=tmp_path / "c", size=8)
    ids = bundle.dataset.population.ids
    actual = {part: {ids[i].split("/")[0] for i in bundle.split.part(part)} for part in ("train", "validation", "test")}
    assert actual == {"train": {"train"}, "validation": {name}, "test": {"test"}}
    assert str(bundle).startswith("folder: 2 classes, 3 x 8 x 8, 24 train, 24 validation, 10 test; split official+")
    without = data.load("folder", folder, cache_dir=tmp_path / "c", size=8, validation="none").split
    assert (len(without.train), len(without.validation), len(without.test)) == (24, 0, 10)
    with pytest.raises(DataError, match=r"its own validation part; use 'holdout'"):
        data.load("folder", folder, cache_dir=tmp_path / "c", size=8, validation="holdout:0.2")
    (folder / "val").mkdir(exist_ok=True)
    (folder / "validation").mkdir(exist_ok=True)
    with pytest.raises(DataError, match="has the parts train, val, validation, test"):
        data.load("folder", folder, cache_dir=tmp_path / "c")


def test_imagenet_test_images_have_no_labels_and_are_left_alone(folder: Path, tmp_path: Path) -> None:
    photograph(folder / "test" / "ILSVRC2012_test_1.JPEG")
    bundle = data.load("imagenet", folder, cache_dir=tmp_path / "c", size=8)
    assert {bundle.dataset.population.ids[i].split("/")[0] for i in bundle.split.test} == {"val"}


@pytest.mark.parametrize("link", ["train/cat/loop", "val/cat"])
def test_a_folder_is_never_read_twice(folder: Path, tmp_path: Path, link: str) -> None:
    """A link to a folder above, or from the test part into the training part, would put images into two parts."""
    if (path := folder / link).is_dir():
        shutil.rmtree(path)
    path.symlink_to(folder / "train" / "cat")
    with pytest.raises(
        DataError, match=rf"{link}: is the same folder as .*train/cat: its images would be counted twice"
    ):
        data.load("folder", folder, cache_dir=tmp_path / "c")


def test_file_names_that_are_not_text(folder: Path, tmp_path: Path) -> None:
    try:
        shutil.copy(folder / "train" / "cat" / "0.jpg", os.fsencode(folder / "train" / "cat") + b"/\xff\xfe.jpg")
    except OSError:
        pytest.skip("this disk only takes names that are text")
    bundle = data.load("folder", folder, cache_dir=tmp_path / "c", size=8)
    assert len(bundle.dataset.population) == 49 and len(bundle.split.fingerprint) == 16
    assert sum(len(y) for part in ("train", "validation") for _, y in bundle.eval_loader(part, 8)) == 25


def test_an_unreadable_class_folder_is_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def scandir(path):  # type: ignore[no-untyped-def]
        if str(path).endswith("dog"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match=r"train/dog: cannot be read \(Permission denied\)"):
        data.load("folder", folder, cache_dir=tmp_path / "c")
