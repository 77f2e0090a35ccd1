"""Splits: named, disjoint, fingerprinted, independent of order, loud when confused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyspike.data.errors import DataError
from steadyspike.data.splits import PARTS, Population, Split, SplitMismatchWarning, make_split


def dvs(files: int = 1000) -> Population:
    """DVS-CIFAR10's names: 10 classes, numbers 0..999."""
    classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    return Population(
        [f"{name}/{i}" for name in classes for i in range(files)],
        np.repeat(np.arange(10), files),
        numbers=np.tile(np.arange(files), 10),
    )


def official(train: int = 500, test: int = 100) -> Population:
    ids = [f"train/{i:05d}" for i in range(train)] + [f"test/{i:05d}" for i in range(test)]
    return Population(ids, np.arange(train + test) % 10, np.repeat([False, True], [train, test]))


def names_of(split: Split, part: str) -> set[str]:
    return {split.population.ids[i] for i in split.part(part)}


def test_tebn_tests_the_first_hundred_of_every_class() -> None:
    split = make_split(dvs(), "tebn", "none")
    assert names_of(split, "test") == {f"{c}/{i}" for c in {x.split("/")[0] for x in dvs().ids} for i in range(100)}
    assert len(split.train) == 9000


def test_tet_tests_the_last_hundred() -> None:
    split = make_split(dvs(), "tet", "none")
    assert all(int(name.split("/")[1]) >= 900 for name in names_of(split, "test"))
    assert len(split.test) == 1000


def test_fingerprints_are_fixed() -> None:
    """These values are what a published number refers to: a change here breaks every stored record."""
    assert make_split(dvs(), "tebn").fingerprint == "2251e6549f491ca7"
    assert make_split(dvs(), "tet").fingerprint == "6294792a61fb1659"
    assert make_split(dvs(), "random:0").fingerprint == "33aec2cdf85655be"
    assert make_split(official(), "official").fingerprint == "89bfdbae7208d689"


@settings(deadline=None, max_examples=40)
@given(
    counts=st.lists(st.integers(4, 40), min_size=2, max_size=6),
    seed=st.integers(0, 1000),
    fraction=st.floats(0.02, 0.5),
)
def test_parts_never_overlap_and_cover_everything(counts: list[int], seed: int, fraction: float) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    population = Population([f"s{i}" for i in range(len(labels))], labels)
    split = make_split(population, f"random:{seed}", f"holdout:{fraction}")
    together = np.concatenate([split.part(part) for part in PARTS])
    assert sorted(together) == list(range(len(labels)))
    for part in PARTS:
        assert set(labels[split.part(part)]) == set(labels), "every class is in every part"


def test_random_split_depends_on_names_not_on_order() -> None:
    population = dvs(30)
    order = np.random.default_rng(0).permutation(len(population))
    shuffled = Population([population.ids[i] for i in order], population.labels[order])
    a, b = make_split(population, "random:3"), make_split(shuffled, "random:3")
    assert a.fingerprint == b.fingerprint
    assert names_of(a, "validation") == names_of(b, "validation")
    assert make_split(population, "random:4").fingerprint != a.fingerprint


def test_validation_is_kept_out_of_training_by_default() -> None:
    split = make_split(official(), "official")
    assert (len(split.train), len(split.validation), len(split.test)) == (450, 50, 100)
    assert split.selection == "validation"
    assert np.bincount(official().labels[split.validation]).tolist() == [5] * 10
    other = make_split(official(), "official", "holdout:0.1:1")
    assert names_of(other, "test") == names_of(split, "test")
    assert names_of(other, "validation") != names_of(split, "validation")


def test_the_papers_practice_is_explicit_and_recorded() -> None:
    split = make_split(official(), "official", "test")
    assert len(split.train) == 500 and len(split.validation) == 0
    record = split.record()
    assert record["selection"] == "test"
    assert "best epoch chosen on the test part" in record["selection_text"]
    assert split.name == "official+validation:test"


def test_another_split_is_loud() -> None:
    trained = make_split(dvs(), "tet").record()
    with pytest.warns(SplitMismatchWarning, match="trained on split 'tet.*test samples may have been trained on"):
        assert make_split(dvs(), "tebn").warn_if_other(trained) is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_split(dvs(), "tet").warn_if_other(trained) is True
    with pytest.warns(SplitMismatchWarning, match="the train and validation parts hold other samples.$"):
        make_split(dvs(), "tet", "none").warn_if_other(trained)


def test_relabelled_samples_have_another_fingerprint() -> None:
    """Two archives with equal file numbering but another order of images differ by their labels."""
    a = official()
    b = Population(a.ids, np.roll(a.labels, 1), a.official_test)
    assert make_split(a, "official").fingerprint != make_split(b, "official").fingerprint


@pytest.mark.parametrize(
    ("population", "name", "validation", "message"),
    [
        (official(), "tebn", "holdout", "no split 'tebn'.*valid are official"),
        (official(), "random:0", "holdout", "valid are official"),
        (dvs(20), "official", "holdout", "valid are tebn, tet, random:SEED"),
        (dvs(20), "random:x", "holdout", "whole number"),
        (official(), "official", "half", "validation must be"),
        (official(), "official", "holdout:2", "between 0 and 1"),
        (official(), "official", "holdout:a", "FRACTION"),
        (dvs(50), "tebn", "holdout", "leaves 0 training"),
    ],
)
def test_wrong_requests_say_what_is_valid(population: Population, name: str, validation: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_split(population, name, validation)


def test_overlapping_parts_and_repeated_ids_are_refused() -> None:
    p = official()
    with pytest.raises(DataError, match="more than one part"):
        Split("x", p, np.arange(10), np.arange(5), np.arange(20, 30), "validation")
    with pytest.raises(DataError, match="not unique"):
        make_split(Population(["a", "a"], np.zeros(2, np.int64)), "random:0")
    with pytest.raises(DataError, match="not a part"):
        make_split(p, "official").part("dev")


def test_an_empty_holdout_says_why() -> None:
    single = Population([f"s{i}" for i in range(6)], np.tile(np.arange(3), 2), np.repeat([False, True], 3))
    with pytest.raises(DataError, match=r"no class has two training samples.*validation='none'"):
        make_split(single, "official")
    assert len(make_split(single, "official", "none").train) == 3


@pytest.mark.parametrize("wrong", [{"name": 5}, {"validation": None}])
def test_names_that_are_not_text(wrong: dict) -> None:
    with pytest.raises(DataError, match="must be a text such as"):
        make_split(official(), **{"name": "official", **wrong})


def test_another_data_set_or_way_of_choosing_is_another_split() -> None:
    """Equal fingerprints are not enough: digits and digits-events share names, "test" and "none" share parts."""
    still = make_split(official(), "official", dataset="digits")
    events = make_split(official(), "official", dataset="digits-events")
    assert still.fingerprint == events.fingerprint
    assert "trained on data set 'digits', this is 'digits-events'" in (events.difference(still.record()) or "")
    optimistic = make_split(official(), "official", "test", dataset="digits")
    last = make_split(official(), "official", "none", dataset="digits")
    assert "chosen otherwise: best epoch chosen on the test part" in (last.difference(optimistic.record()) or "")
    for split in (still, optimistic, last):
        assert split.difference(split.record()) is None
    old = {key: value for key, value in still.record().items() if key not in ("dataset", "selection")}
    assert events.difference(old) is None, "a record from before these were stored"
