"""The required contents of run.json and result.json, on which all readers rely.

A checksum proves that a file is unchanged; the form proves that this version wrote it for this purpose.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from steadyspike.train.recipe.kinds import kind_of_result


class _Form(BaseModel):
    """Other keys may be there, too."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Extent(_Form):
    length: int = Field(ge=0)
    sha256: str


class _Tables(_Form):
    metrics: _Extent
    __pydantic_extra__: dict[str, _Extent]


class _Scores(_Form):
    loss: float | None
    samples: int


class _Interrupted(_Form):
    signal: int


class _Ended(_Form):
    tables: _Tables
    test: _Scores
    weights: str
    seed: int


class _EndedEarly(_Ended):
    message: str


class _Result(_Form):
    status: str


class _Environment(_Form):
    commit: str | None
    gpus: list[str]
    cpu: str
    threads: int
    cores: int | None


class _Data(_Form):
    split: dict[str, Any]
    shape: list[int] = Field(min_length=3, max_length=3)
    classes: int


class _About(_Form):
    environment: _Environment
    processes: int = Field(ge=1)
    data: _Data
    data_dir: str | None = None


def _wrong_score(test: dict[str, Any]) -> str | None:
    """The first number of its kind that the test part of a result lacks."""
    kind = kind_of_result(test)
    for key, form in (kind.form if isinstance(kind.form, dict) else {kind.key: kind.form}).items():
        try:
            value = TypeAdapter(form).validate_python(test.get(key), strict=True)
        except ValidationError:
            return str(key)
        if value == []:
            return str(key)
    return None


def form_problem(name: str, content: dict[str, Any]) -> str | None:
    """What a file called ``name`` lacks, as the end of a sentence about it; None if its readers can rely on it."""
    try:
        if name == "run.json":
            _About.model_validate(content)
        if name == "result.json":
            status = _Result.model_validate(content).status
            forms: dict[str, type[_Form]] = {"interrupted": _Interrupted, "finished": _Ended}
            form = forms.get(status, _EndedEarly)
            form.model_validate(content)
            if form is not _Interrupted and (key := _wrong_score(content["test"])) is not None:
                return f"its {'test.' + key!r} is missing or of another kind"
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        return f"its {key!r} is missing or of another kind"
    return None
