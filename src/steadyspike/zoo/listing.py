"""The library's own trained networks as a list: what was measured of each; for the command and the pages."""

from __future__ import annotations

from dataclasses import dataclass

from steadyspike.train.files.folder import NETWORKS, RunFolder, packaged_names
from steadyspike.train.recipe.kinds import kind_of_result
from steadyspike.zoo.description import Numbers, read_description


@dataclass(frozen=True)
class Entry:
    """One network. scores: after each time step, or the one score of a detector, as text with their unit."""

    name: str
    data: str
    about: str
    timesteps: int
    scores: str
    unit: str
    samples: int
    parameters: int
    numbers: Numbers
    megabytes: float

    @property
    def written(self) -> str:
        return f"{self.scores} {self.unit}"


def entries() -> list[Entry]:
    """All networks by name."""
    return [_entry(name) for name in packaged_names()]


def _entry(name: str) -> Entry:
    folder = RunFolder(NETWORKS / name)
    description, recipe = read_description(folder.root), folder.read_recipe()
    test, about = folder.read_json("result.json")["test"], folder.read_json("run.json")
    kind = kind_of_result(test)
    numbers, measure = description.numbers, kind.measure
    assert numbers is not None, "an entry of the zoo has been measured"
    return Entry(
        name=name,
        data=description.input.data,
        about=recipe.about.removeprefix("zoo: "),
        timesteps=recipe.data.timesteps,
        scores=", ".join(map(measure.number, kind.test_scores(test))),
        unit=measure.unit or measure.name,
        samples=test["samples"],
        parameters=about["parameters"],
        numbers=numbers,
        megabytes=folder.weights.stat().st_size / 1e6,
    )
