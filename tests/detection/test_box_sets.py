"""Annotations of COCO, Pascal VOC and YOLO, and what is odd about them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from steadyspike import data
from steadyspike.data.errors import DataError
from steadyspike.detection.data.detection_set import DetectionBundle
from tests.detection import samples

REAL = Path(os.environ.get("STEADYSPIKE_DATA", "/nowhere"))


def test_a_folder_of_coco(tmp_path: Path) -> None:
    bundle = data.load("box-folder", samples.coco_folder(tmp_path), size=64)
    assert isinstance(bundle, DetectionBundle)
    assert [len(bundle.indices(part)) for part in ("train", "validation", "test")] == [4, 4, 4]
    table = bundle.dataset.table
    assert bundle.classes == ("cat", "dog", "owl") and table.category_ids.tolist() == [1, 3, 90]
    corners, classes = table.to_learn(0)
    assert classes.tolist() == [0, 2] and corners.tolist() == [[5, 5, 25, 15], [30, 10, 45, 30]]  # no crowd
    assert table.to_learn(1)[0].tolist() == [[0, 20, 20, 50]]  # cut to the image
    assert len(table.to_learn(2)[0]) == 1 and len(table.to_learn(3)[0]) == 0  # no size; no boxes at all
    assert bundle.describe()["boxes_left_out"] == 3
    truth = bundle.truth("test")
    assert len(truth["images"]) == 4 and sum(a["iscrowd"] for a in truth["annotations"]) == 1
    assert truth["annotations"][0]["area"] == 100.0 and min(a["id"] for a in truth["annotations"]) > 0


def test_without_a_test_part_the_validation_part_is_it(tmp_path: Path) -> None:
    bundle = data.load("box-folder", samples.coco_folder(tmp_path, ("train2017", "val2017"), ""), size=64)
    assert len(bundle.indices("test")) == 4 and bundle.split.name.startswith("official+holdout")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["images"].append(dict(c["images"][0])), "two images have one id"),
        (lambda c: c["annotations"].append(dict(c["annotations"][0])), "two annotations have the id 1"),
        (lambda c: c["categories"].append({"id": 1, "name": "hen"}), "two categories have one id"),
        (lambda c: c["categories"].append({"id": 4, "name": "dog"}), "two categories of one name"),
        (lambda c: c["annotations"][0].update(image_id=5), "annotation 1 is of image 5, which is not listed"),
        (lambda c: c["annotations"][0].update(category_id=5), "category 5, which is not listed"),
        (lambda c: c["annotations"][0].update(bbox=[0, 0, -4, 5]), "negative size"),
        (lambda c: c["annotations"][0].update(bbox=[0, 0, float("nan"), 5]), "position that is not finite"),
        (lambda c: c["annotations"][0].pop("bbox"), "'bbox' is missing"),
        (lambda c: c["images"][0].update(file_name="../000.jpg"), "leaves its folder"),
        (lambda c: c["images"][1].update(file_name="000.jpg"), "'000.jpg' is listed more than once"),
        (lambda c: c["images"][0].update(file_name="none.jpg"), "1 images of the train part are missing: 'none.jpg'"),
        (lambda c: c["images"][0].update(width=0), "0 x 40 pixels"),
        (lambda c: c.pop("categories"), "'categories' is missing"),
        (lambda c: c["categories"].pop(), "category 90, which is not listed"),
        (lambda c: c["images"][0].update(id=float("inf")), "inf is not a whole number"),
        (lambda c: c["images"][0].update(id=2**70), "is not a whole number"),
    ],
)
def test_odd_annotations_are_refused_by_name(tmp_path: Path, change, message: str) -> None:
    samples.coco_folder(tmp_path, ("train", "test"))
    for part in ("train", "test"):  # both, so that their categories stay the same
        path = tmp_path / "annotations" / f"instances_{part}.json"
        content = json.loads(path.read_text())
        if part == "train" or "categor" in message:
            change(content)
        path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        data.load("box-folder", tmp_path, size=64)


def test_an_image_of_another_size_than_its_annotation_is_refused(tmp_path: Path) -> None:
    samples.coco_folder(tmp_path, ("train", "test"))
    samples.picture(tmp_path / "images" / "000.jpg", (41, 60), 0)
    bundle = data.load("box-folder", tmp_path, size=64, validation="none")
    with pytest.raises(DataError, match=r"'000\.jpg' has 60 x 41 pixels, its annotation says 60 x 40"):
        list(bundle.train_loader(4))


def test_coco_2017_unpacked_and_zipped_are_the_same(tmp_path: Path) -> None:
    root = samples.coco_folder(tmp_path, ("train2017", "val2017"), "")
    plain = data.load("coco", root, size=64)
    packed = data.load("coco", samples.zipped(root), size=64)
    assert plain.split.fingerprint == packed.split.fingerprint
    for workers in (0, 1):
        for (x, y), (u, v) in zip(plain.train_loader(2), packed.train_loader(2, workers=workers)):
            assert torch.equal(x, u) and torch.equal(y.boxes, v.boxes) and torch.equal(y.samples, v.samples)
    with pytest.raises(DataError, match="COCO 2017 was not found"):
        data.load("coco", tmp_path / "zipped" / "..", cache_dir=tmp_path) if False else data.load(
            "coco", _empty(tmp_path)
        )


def _empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_a_folder_of_voc(tmp_path: Path) -> None:
    bundle = data.load("box-folder", samples.voc_folder(tmp_path), size=64, validation="none")
    table = bundle.dataset.table
    assert len(bundle.classes) == 20 and len(bundle.indices("train")) == 3 and len(bundle.indices("test")) == 1
    corners, classes = table.to_learn(0)
    assert corners.tolist() == [[0, 1, 20, 11]] and bundle.classes[classes[0]] == "dog"  # the difficult cat is left out
    assert len(table.to_learn(1)[0]) == 0
    root = tmp_path / "data"
    samples.voc_folder(root / "VOCdevkit" / "VOC2007")
    assert data.load("voc", root, size=64).split.record()["dataset"] == "voc"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation><size>", "is not an annotation of Pascal VOC"),
        ("<annotation></annotation>", "'size/height' is missing"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', "document type"),
        ("<annotation><size><width>4</width><height>x</height></size></annotation>", "not an annotation"),
    ],
)
def test_damaged_annotations_of_voc_are_named(tmp_path: Path, text: str, message: str) -> None:
    samples.voc_folder(tmp_path)
    (tmp_path / "Annotations" / "000001.xml").write_text(text)
    with pytest.raises(DataError, match=message):
        data.load("box-folder", tmp_path, size=64)


@pytest.mark.parametrize(
    "names",
    ["classes.txt", "names: [cat, 'dog']\n", "nc: 2\nnames:\n  0: cat\n  1: dog\nval: x\n", "names:\n- cat\n- dog\n"],
)
def test_a_folder_of_yolo(tmp_path: Path, names: str) -> None:
    bundle = data.load("box-folder", samples.yolo_folder(tmp_path, names), size=64, validation="none")
    assert bundle.classes == ("cat", "dog")
    corners, classes = bundle.dataset.table.to_learn(0)
    assert classes.tolist() == [0, 1]
    np.testing.assert_allclose(corners[0], [60 * 0.375, 40 * 0.25, 60 * 0.625, 40 * 0.75])
    assert len(bundle.dataset.table.to_learn(1)[0]) == 0  # no label file


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.2", "line 1 is not 'class x y width height'"),
        ("0 50 50 20 20", "outside 0..1"),
        ("5 0.5 0.5 0.2 0.2", r"0\.txt.* has class 5; there are 2"),
        ("0 nan 0.5 0.2 0.2", "outside 0..1"),
        ("0 0.5 0.5 0.2 0.2 \x00", "line 1 is not"),
        ("cat 0.5 0.5 0.2 0.2", "line 1 is not"),
    ],
)
def test_odd_lines_of_yolo_are_refused_by_name(tmp_path: Path, line: str, message: str) -> None:
    samples.yolo_folder(tmp_path)
    (tmp_path / "labels" / "train" / "0.txt").write_text(line)
    with pytest.raises(DataError, match=message):
        data.load("box-folder", tmp_path, size=64)


def test_files_of_windows_and_of_another_encoding(tmp_path: Path) -> None:
    samples.yolo_folder(tmp_path)
    for path in (tmp_path / "classes.txt", tmp_path / "labels" / "train" / "0.txt"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert data.load("box-folder", tmp_path, size=64).dataset.classes == ("cat", "dog")
    (tmp_path / "classes.txt").write_bytes("Kätzchen\ndog\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"classes\.txt.*UTF-8"):
        data.load("box-folder", tmp_path, size=64)


@pytest.mark.parametrize("turn", [3, 6])
def test_a_photograph_is_turned_as_its_exif_says(tmp_path: Path, turn: int) -> None:
    """Boxes are drawn on what a viewer shows; the stored pixels lie on their side."""
    samples.yolo_folder(tmp_path)
    shown = np.zeros((60, 40, 3), np.uint8)
    shown[:30, :20] = 255
    stored = Image.fromarray(shown).transpose({3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90}[turn])
    exif = Image.Exif()
    exif[0x0112] = turn
    stored.save(tmp_path / "images" / "train" / "0.png", exif=exif)
    (tmp_path / "labels" / "train" / "0.txt").write_text("0 0.25 0.25 0.5 0.5")
    item = data.load("box-folder", tmp_path, size=64).dataset.item
    assert item.table.sizes[0].tolist() == [60, 40]
    assert (np.asarray(item.image(0)) == shown).all()
    assert item.table.to_learn(0)[0].tolist() == [[0, 0, 20, 30]]


def test_names_of_voc_with_spaces(tmp_path: Path) -> None:
    samples.voc_folder(tmp_path)
    for folder, suffix in (("Annotations", "xml"), ("JPEGImages", "jpg")):
        (tmp_path / folder / f"000000.{suffix}").rename(tmp_path / folder / f"my photo (1).{suffix}")
    (tmp_path / "ImageSets" / "Main" / "trainval.txt").write_text("my photo (1)  1\n000001 -1\n000002\n")
    table = data.load("box-folder", tmp_path, size=64).dataset.table
    assert sorted(table.files) == ["000001.jpg", "000002.jpg", "000003.jpg", "my photo (1).jpg"]


def test_images_of_voc_need_not_be_jpg(tmp_path: Path) -> None:
    samples.voc_folder(tmp_path)
    images = tmp_path / "JPEGImages"
    for stem, suffix in (("000000", "png"), ("000001", "JPEG")):
        samples.picture(images / f"{stem}.{suffix}", samples.SIZES[int(stem)], 0)
        (images / f"{stem}.jpg").unlink()
    samples.picture(images / "000002.png", (9, 9), 0)  # beside 000002.jpg, which it is not
    table = data.load("box-folder", tmp_path, size=64).dataset.table
    assert sorted(table.files) == ["000000.png", "000001.JPEG", "000002.jpg", "000003.jpg"]
    (images / "000000.png").unlink()
    with pytest.raises(DataError, match=r"missing: .*000000\.jpg"):
        data.load("box-folder", tmp_path, size=64)


def test_a_folder_of_no_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a detection set"):
        data.load("box-folder", tmp_path)
    samples.yolo_folder(tmp_path)
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(DataError, match=r"no classes\.txt"):
        data.load("box-folder", tmp_path)
    with pytest.raises(DataError, match="multiples of 32"):
        data.load("shapes", size=50)


def test_the_embedded_shapes_are_always_the_same() -> None:
    first, second = data.load("shapes", images=20), data.load("shapes", images=20)
    assert first.dataset.table.fingerprint == second.dataset.table.fingerprint
    assert first.dataset.table.fingerprint != data.load("shapes", images=20, drawing_seed=1).dataset.table.fingerprint
    assert np.array_equal(np.asarray(first.dataset.item.image(3)), np.asarray(second.dataset.item.image(3)))
    assert set(first.dataset.table.classes.tolist()) == {0, 1, 2}
    assert [len(first.indices(part)) for part in ("train", "validation", "test")] == [12, 4, 4]


@pytest.mark.real_data
@pytest.mark.skipif(not (REAL / "bccd").exists(), reason="needs STEADYSPIKE_DATA with bccd")
def test_real_sets() -> None:
    cells = data.load("bccd", REAL)
    assert [len(cells.indices(part)) for part in ("train", "validation", "test")] == [205, 87, 72]
    assert cells.classes == ("RBC", "WBC", "Platelets") and len(cells.dataset.table.boxes) == 4886
    coco = data.load("coco", REAL / "coco-mini", size=320, validation="none")
    assert (len(coco.indices("train")), len(coco.indices("test")), coco.num_classes) == (46, 20, 80)
    assert int(coco.dataset.table.crowd.sum()) == 5
    for x, targets in coco.eval_loader("test", 8):
        assert x.shape[1:] == (3, 320, 320) and targets.boxes[:, 2:].min() >= 0
