"""The required contents of run.json and result.json, on which all readers rely.

A checksum proves that a file is unchanged. The form proves that this version wrote it for this purpose.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from steadyspike.train.recipe.kinds import kind_of_result


class _Form(BaseModel):
    """Other keys may exist, too."""

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
    """Returns the first number of a kind of run that is missing in the test part of a result; None if none is."""
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
    """What is wrong with the content of a file called ``name``, as the end of a sentence; None if nothing is."""
    try:
        if name == "run.json":
            _About.model_validate(content)
        if name == "result.json":
            status = _Result.model_validate(content).status
            forms: dict[str, type[_Form]] = {"interrupted": _Interrupted, "finished": _Ended}
            form = forms.get(status, _EndedEarly)
            form.model_validate(content)
            if form is not _Interrupted and (key := _wrong_score(content["test"])) is not None:
                return f"its {'test.' + key!r} is missing or has another type"
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        return f"its {key!r} is missing or has another type"
    return None
