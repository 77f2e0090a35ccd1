"""Splits as objects: three disjoint parts of named samples, with a fingerprint that a run stores.

A sample is identified by its id ("truck/cifar10_truck_17", "test/00041"), not by its position in a folder listing.
Random choices rank samples by a hash of (seed, id), so they do not depend on a generator, the file order or a library
version.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyspike.data.errors import DataError

Index = NDArray[np.int64]
PARTS = ("train", "validation", "test")
SELECTIONS = {
    "validation": "model selection on a validation part kept out of training",
    "test": "best epoch chosen on the test part (the paper's practice; optimistic)",
    "none": "no model selection: the last epoch counts",
}


class SplitMismatchWarning(UserWarning):
    """The checkpoint that is evaluated was trained with another split."""


@dataclass(frozen=True)
class Population:
    """All samples of a data set, which a split divides.

    ids: unique names
    labels: class indices [N]
    official_test: bool [N] if the publisher fixed the test part
    numbers: the number in every sample's file name [N], if splits are defined by it (DVS-CIFAR10)
    official_validation: bool [N] if the data has its own validation part
    """

    ids: Sequence[str]
    labels: Index
    official_test: NDArray[np.bool_] | None = None
    numbers: Index | None = None
    official_validation: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Split:
    """Three index arrays into a population.
    selection: the part that model selection uses, see SELECTIONS

    dataset: the name of the data set; two data sets may share their samples' names (digits and digits-events do)
    """

    name: str
    population: Population
    train: Index
    validation: Index
    test: Index
    selection: str
    dataset: str = ""

    def __post_init__(self) -> None:
        together = np.concatenate([self.part(name) for name in PARTS])
        if len(np.unique(together)) != len(together):
            raise DataError(f"split '{self.name}': a sample is in more than one part")
        if len(self.train) == 0 or len(self.test) == 0:
            raise DataError(f"split '{self.name}' leaves {len(self.train)} training and {len(self.test)} test samples")
        if self.selection not in SELECTIONS:
            raise DataError(f"selection must be one of {', '.join(SELECTIONS)}, not '{self.selection}'")

    def part(self, name: str) -> Index:
        if name not in PARTS:
            raise DataError(f"'{name}' is not a part of a split; the parts are {', '.join(PARTS)}")
        array: Index = getattr(self, name)
        return array

    @cached_property
    def part_fingerprints(self) -> dict[str, str]:
        """Returns a hash of the (id, label) pairs of every part; their order does not matter."""
        return {name: self._hash_part(name) for name in PARTS}

    def _hash_part(self, name: str) -> str:
        ids, labels = self.population.ids, self.population.labels
        lines = sorted(f"{ids[i]}\t{labels[i]}\n" for i in self.part(name))
        return hashlib.sha256(_encoded("".join(lines))).hexdigest()[:16]

    @cached_property
    def fingerprint(self) -> str:
        """Returns one hash for the whole split.

        It is equal exactly if all three parts hold the same samples and labels.
        """
        return hashlib.sha256("/".join(self.part_fingerprints[name] for name in PARTS).encode()).hexdigest()[:16]

    def record(self) -> dict[str, Any]:
        """Returns what a run stores with its numbers."""
        return {
            "dataset": self.dataset,
            "name": self.name,
            "fingerprint": self.fingerprint,
            "parts": {n: {"samples": len(self.part(n)), "fingerprint": self.part_fingerprints[n]} for n in PARTS},
            "selection": self.selection,
            "selection_text": SELECTIONS[self.selection],
        }

    def difference(self, record: dict[str, Any]) -> str | None:
        """Returns None if `record` (from `record()`) belongs to this split.

        Otherwise returns a sentence that names the difference.
        """
        if (recorded := record.get("dataset")) and self.dataset and recorded != self.dataset:
            return f"the checkpoint was trained on data set '{recorded}', this is '{self.dataset}'."
        if record.get("fingerprint") == self.fingerprint:
            if (chosen := record.get("selection", self.selection)) == self.selection:
                return None
            return (
                f"the checkpoint was chosen otherwise: {SELECTIONS.get(chosen, chosen)}; this split stands for "
                f"{SELECTIONS[self.selection]}."
            )
        stored = record.get("parts", {})
        other = [n for n in PARTS if stored.get(n, {}).get("fingerprint") != self.part_fingerprints[n]]
        return (
            f"the checkpoint was trained on split '{record.get('name')}' ({record.get('fingerprint')}), this is split "
            f"'{self.name}' ({self.fingerprint}); the {' and '.join(other)} parts hold other samples"
            + (": test samples may have been trained on." if "test" in other else ".")
        )

    def warn_if_other(self, record: dict[str, Any]) -> bool:
        """Warns (SplitMismatchWarning) if `record` belongs to another split; returns True if it is the same."""
        if (text := self.difference(record)) is not None:
            warnings.warn(text[0].upper() + text[1:], SplitMismatchWarning, stacklevel=2)
        return text is None


def make_split(
    population: Population, name: str, validation: str = "holdout", test_fraction: float = 0.1, dataset: str = ""
) -> Split:
    """Makes the split `name` of `population` (of the data set called `dataset`), with its validation part.

    name: "official", "tebn" (numbers 0-99 of every class are the test part), "tet" (900-999), "random:SEED"
    validation: "holdout" or "holdout:FRACTION[:SEED]" (0.1, seed 0; taken from the training part, class by class),
        "none" (use the last epoch) or "test" (use the best epoch on the test part, as the paper did)

    If a validation part comes with the data, "holdout" is this part; with "none" and "test" its samples are not used.
    """  # fmt: skip
    for option, value, example in (("split", name, "random:0"), ("validation", validation, "holdout")):
        if not isinstance(value, str):
            raise DataError(f"{option} must be a text such as '{example}', not {value!r}")
    if len(set(population.ids)) != len(population):
        raise DataError(f"split '{name}': sample ids are not unique")
    in_test = _test_mask(population, name, test_fraction)
    given = population.official_validation
    train = np.flatnonzero(~in_test if given is None else ~in_test & ~given)
    test = np.flatnonzero(in_test)
    kind, _, rest = validation.partition(":")
    if kind in ("none", "test") and not rest:
        return Split(f"{name}+validation:{kind}", population, train, np.empty(0, np.int64), test, kind, dataset)
    if kind != "holdout":
        raise DataError(f"validation must be 'holdout[:FRACTION[:SEED]]', 'none' or 'test', not '{validation}'")
    if given is not None:
        if rest:
            raise DataError(f"validation '{validation}': this data set has its own validation part; use 'holdout'")
        label = f"{name}+validation:official"
        return Split(label, population, train, np.flatnonzero(given), test, "validation", dataset)
    fraction, seed = _holdout(rest, validation)
    held = _ranked_fraction(population, train, fraction, f"validation:{seed}")
    if len(held) == 0 and len(train) > 0:
        raise DataError(
            f"split '{name}': no class has two training samples, so none can be held out for validation; load with "
            "validation='none' or 'test'"
        )
    rest_of_train = np.setdiff1d(train, held)
    return Split(f"{name}+holdout:{fraction:g}:{seed}", population, rest_of_train, held, test, "validation", dataset)


def _holdout(text: str, option: str) -> tuple[float, int]:
    fraction, _, seed = text.partition(":")
    try:
        value, number = float(fraction or 0.1), int(seed or 0)
    except ValueError:
        raise DataError(f"validation '{option}' is not 'holdout:FRACTION[:SEED]'") from None
    if not 0 < value < 1:
        raise DataError(f"validation '{option}': the fraction must lie between 0 and 1")
    return value, number


def _test_mask(population: Population, name: str, test_fraction: float) -> NDArray[np.bool_]:
    if name not in (valid := split_names(population)) and not (name.startswith("random:") and "random:SEED" in valid):
        raise DataError(f"there is no split '{name}' of this data set; valid are {', '.join(valid)}")
    if name == "official":
        assert population.official_test is not None
        return population.official_test
    if population.numbers is not None and name in ("tebn", "tet"):
        return population.numbers < 100 if name == "tebn" else population.numbers >= 900
    try:
        seed = int(name.removeprefix("random:"))
    except ValueError:
        raise DataError(f"split '{name}': write random:SEED with a whole number") from None
    mask = np.zeros(len(population), bool)
    mask[_ranked_fraction(population, np.arange(len(population)), test_fraction, f"test:{seed}")] = True
    return mask


def split_names(population: Population) -> tuple[str, ...]:
    """Returns the names of the splits that exist for this data set.

    If the publisher fixed a test part, there is no random split, because it would train on official test samples.
    """
    if population.official_test is not None:
        return ("official",)
    return (("tebn", "tet") if population.numbers is not None else ()) + ("random:SEED",)


def _ranked_fraction(population: Population, among: Index, fraction: float, salt: str) -> Index:
    """Returns the given fraction of every class in `among`: the samples whose hashes rank first.

    The number per class is rounded; it is at least one and never all.
    """
    rank = np.array([_hashed(f"{salt}:{population.ids[i]}") for i in among], dtype=np.uint64)
    labels = population.labels[among]
    chosen = []
    order = np.lexsort((rank, labels))
    for members in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        take = min(max(round(fraction * len(members)), 1), len(members) - 1)
        chosen.append(among[members[:take]])
    return np.sort(np.concatenate(chosen))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # file names need not be valid text


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(_encoded(text), digest_size=8).digest(), "big")
