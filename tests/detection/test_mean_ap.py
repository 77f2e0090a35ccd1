"""mAP: hand-made cases, the COCO authors' own check, and exact agreement with two other evaluators."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import steadyspike as ss
from steadyspike.data.errors import DataError
from steadyspike.detection import class_ap, mean_ap, yolo_ap
from steadyspike.detection.coco_matching import IOU_THRESHOLDS
from steadyspike.detection.mean_ap import NUMBERS
from tests.detection import literal

REAL = Path(os.environ.get("STEADYSPIKE_DATA", "/nowhere")) / "coco-parity"
OTHERS = ("faster-coco-eval", "pycocotools")


def truth(annotations, images=(1,), categories=(1,)):
    rows = [
        {"id": n, "image_id": i, "category_id": c, "bbox": box, "area": box[2] * box[3], "iscrowd": crowd}
        for n, (i, c, box, crowd) in enumerate(annotations, 1)
    ]
    listed = [{"id": c, "name": f"c{c}"} for c in categories]
    return {"images": [{"id": i} for i in images], "annotations": rows, "categories": listed}


def detected(*rows):
    return [{"image_id": i, "category_id": c, "bbox": box, "score": s} for i, c, box, s in rows]


def random_case(seed: int):
    """Many images, classes with gaps in their ids, crowds, empty images, equal scores, boxes of all sizes."""
    random = np.random.default_rng(seed)
    images, categories = [3, 4, 7, 8, 9, 20], [2, 5, 6, 11]
    annotations, results = [], []
    for image in images[1:]:
        for _ in range(int(random.integers(0, 9))):
            side = random.choice([12.0, 50.0, 150.0], 2) * random.uniform(0.6, 1.4, 2)
            box = [*(random.uniform(0, 300, 2)), *side]
            label = int(random.choice(categories[:3]))
            annotations.append((image, label, [float(v) for v in box], int(random.random() < 0.15)))
            for _ in range(int(random.integers(0, 4))):
                moved = np.array(box) + random.normal(0, 0.12, 4) * np.array([*side, *side])
                moved[2:] = np.abs(moved[2:])
                score = float(np.round(random.random(), 1))
                results.append((image, label, [float(v) for v in moved], score))
    for _ in range(30):
        box = [float(v) for v in (*random.uniform(0, 300, 2), *random.uniform(5, 90, 2))]
        results.append((int(random.choice(images)), int(random.choice(categories)), box, float(random.random())))
    random.shuffle(results)
    return truth(annotations, images, categories), detected(*results)


def test_a_perfect_result() -> None:
    reference = truth([(1, 1, [10, 10, 50, 50], 0)])
    numbers = mean_ap(reference, detected((1, 1, [10, 10, 50, 50], 0.5)))
    assert list(numbers) == list(NUMBERS)
    assert [numbers[name] for name in ("AP", "AP50", "AR1", "APm")] == pytest.approx([1.0] * 4)
    assert numbers["APs"] == numbers["APl"] == numbers["ARs"] == -1.0
    assert ss.detection.mean_ap is mean_ap


def test_by_hand() -> None:
    """Two objects; the best detection is wrong, the second finds one: precision 1/2 up to recall 1/2."""
    reference = truth([(1, 1, [0, 0, 10, 10], 0), (1, 1, [50, 50, 10, 10], 0)])
    results = detected((1, 1, [100, 100, 10, 10], 0.9), (1, 1, [0, 0, 10, 10], 0.8))
    numbers = mean_ap(reference, results)
    assert numbers["AP50"] == pytest.approx(51 * 0.5 / 101) and numbers["AR100"] == 0.5 and numbers["AR1"] == 0.0
    assert class_ap(reference, results) == {"c1": {"AP": numbers["AP"], "AP50": numbers["AP50"]}}


def test_a_crowd_is_neither_right_nor_wrong() -> None:
    reference = truth([(1, 1, [0, 0, 100, 100], 1), (1, 1, [200, 0, 40, 40], 0)])
    inside = detected((1, 1, [10, 10, 20, 20], 0.9), (1, 1, [40, 10, 20, 20], 0.8), (1, 1, [200, 0, 40, 40], 0.5))
    assert mean_ap(reference, inside)["AP"] == pytest.approx(1.0)


def test_nothing_found_and_nothing_to_find() -> None:
    reference = truth([(1, 1, [0, 0, 10, 10], 0)])
    assert mean_ap(reference, [])["AP"] == 0.0 == mean_ap(reference, [])["AR100"]
    assert mean_ap(truth([]), [])["AP"] == -1.0
    assert mean_ap(truth([]), detected((1, 1, [0, 0, 5, 5], 0.5)))["AP"] == -1.0
    for engine in OTHERS:
        pytest.importorskip(engine.replace("-", "_"))
        assert mean_ap(reference, [], engine=engine) == mean_ap(reference, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k, r: r[0].update(score=float("nan")), "detection 0 has no finite score"),
        (lambda k, r: r[0].update(image_id=77), "image 77, which is not in the truth"),
        (lambda k, r: r[0].update(category_id=77), "category 77, which is not in the truth"),
        (lambda k, r: r[0].pop("bbox"), "'bbox' is missing"),
        (lambda k, r: r[0].update(bbox=[0, 0, -5, 5]), "negative size"),
        (lambda k, r: r[0].update(bbox=[0, 0, 5]), "not in COCO's form"),
        (lambda k, r: k["images"].append({"id": 1}), "more than one image"),
        (lambda k, r: k["annotations"][0].update(category_id=8), "category 8, which is not listed"),
        (lambda k, r: k.pop("images"), "'images' is missing"),
    ],
)
def test_what_is_wrong_is_named(change, message) -> None:
    reference, results = truth([(1, 1, [0, 0, 10, 10], 0)]), detected((1, 1, [0, 0, 10, 10], 0.5))
    change(reference, results)
    with pytest.raises(DataError, match=message):
        mean_ap(reference, results)


def test_files_and_their_faults(tmp_path: Path) -> None:
    reference, results = random_case(0)
    (tmp_path / "truth.json").write_text(json.dumps(reference))
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert mean_ap(tmp_path / "truth.json", str(tmp_path / "results.json")) == mean_ap(reference, results)
    with pytest.raises(DataError, match="cannot be read"):
        mean_ap(tmp_path / "none.json", results)
    (tmp_path / "results.json").write_text("[")
    with pytest.raises(DataError, match=r"results\.json: is not JSON"):
        mean_ap(reference, tmp_path / "results.json")
    with pytest.raises(DataError, match="engine must be"):
        mean_ap(reference, results, engine="mine")


def test_an_annotation_of_id_0_counts() -> None:
    """Both other evaluators take a match with it for none."""
    reference = truth([(1, 1, [0, 0, 10, 10], 0)])
    reference["annotations"][0]["id"] = 0
    for engine in ("own", *(o for o in OTHERS if _there(o))):
        assert mean_ap(reference, detected((1, 1, [0, 0, 10, 10], 0.5)), engine=engine)["AP"] == pytest.approx(1.0)


def _there(engine: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(engine.replace("-", "_")) is not None


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("seed", range(6))
def test_agreement_with_other_evaluators(engine: str, seed: int) -> None:
    pytest.importorskip(engine.replace("-", "_"))
    reference, results = random_case(seed)
    ours, theirs = mean_ap(reference, results), mean_ap(reference, results, engine=engine)
    assert ours == pytest.approx(theirs, abs=1e-12)
    assert 0 < ours["AP"] < 1 and all(ours[name] > -1 for name in NUMBERS)


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.exists(), reason="needs STEADYSPIKE_DATA with coco-parity")
def test_the_coco_authors_own_check() -> None:
    expected = json.loads((REAL / "expected_bbox.json").read_text())
    files = REAL / "instances_val2014_100.json", REAL / "instances_val2014_fakebbox100_results.json"
    ours = mean_ap(*files)
    assert ours == pytest.approx(expected["stats"], abs=1e-12)
    assert [round(value, 3) for value in ours.values()] == expected["published_3_digits"]
    for engine in OTHERS:
        if _there(engine):
            assert mean_ap(*files, engine=engine) == pytest.approx(ours, abs=1e-12)
    assert yolo_ap(*files) == pytest.approx(_literal_yolo(*(json.loads(file.read_text()) for file in files)), abs=1e-9)


def _literal_yolo(reference, results) -> dict[str, float]:
    table = np.array(list(literal.yolo_ap(reference, results, IOU_THRESHOLDS).values()))
    return {"yolo_AP50": table[:, 0].mean(), "yolo_AP": table.mean()}


@pytest.mark.parametrize("seed", range(4))
def test_the_number_of_yolo_is_that_of_its_matching_box_by_box(seed: int) -> None:
    reference, results = random_case(seed)
    for location, row in enumerate(results):  # equal scores: the published code sorts them in no fixed order
        row["score"] += 1e-6 * location
    assert yolo_ap(reference, results) == pytest.approx(_literal_yolo(reference, results), abs=1e-9)


def test_of_two_detections_of_one_box_the_one_with_the_higher_score_counts() -> None:
    """The better placed one is a false alarm, as in YOLO's code: 0.6 of overlap with score 0.9 comes first."""
    reference = truth([(1, 1, [0, 0, 10, 10], 0)])
    results = detected((1, 1, [0, 0, 10, 6], 0.9), (1, 1, [0, 0, 10, 10], 0.8))
    numbers = yolo_ap(reference, results)
    assert numbers["yolo_AP50"] == pytest.approx(0.995, abs=1e-3)
    # right at .5, .55 and .6 only
    assert numbers["yolo_AP"] == pytest.approx(0.3 * numbers["yolo_AP50"], abs=1e-2)


def test_a_detection_between_two_boxes_belongs_to_the_last_as_in_yolos_code() -> None:
    """The first detection overlaps both boxes equally, the second only the first box: both are right."""
    reference = truth([(1, 1, [0, 0, 10, 10], 0), (1, 1, [2, 0, 10, 10], 0)])
    results = detected((1, 1, [1, 0, 10, 10], 0.9), (1, 1, [-2, 0, 10, 10], 0.8))
    assert yolo_ap(reference, results)["yolo_AP50"] == pytest.approx(0.995, abs=1e-3)
    assert yolo_ap(reference, results) == pytest.approx(_literal_yolo(reference, results), abs=1e-9)


def test_the_number_of_yolo_is_another() -> None:
    reference = truth([(1, 1, [0, 0, 10, 10], 0), (1, 1, [50, 50, 10, 10], 0)])
    results = detected((1, 1, [0, 0, 10, 10], 0.8))
    assert mean_ap(reference, results)["AP50"] == pytest.approx(51 / 101)
    # recall 0, .5, then a straight line down to precision 0 at recall 1: .5 + .25
    assert yolo_ap(reference, results)["yolo_AP50"] == pytest.approx(0.75, abs=1e-3)
    assert yolo_ap(truth([]), [])["yolo_AP"] == -1.0
