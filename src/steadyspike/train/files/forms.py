"""What run.json and result.json must hold, so that whoever reads them can rely on it.

A checksum says that a file is what was written; the form says that it was written by this version for this purpose.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError


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
    accuracy: list[float] = Field(min_length=1)
    loss: float | None
    samples: int


class _BoxScores(_Form):
    AP: float
    AP50: float
    classes: dict[str, dict[str, float]]
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


class _EndedWithBoxes(_Ended):
    test: _BoxScores  # type: ignore[assignment]


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


def form_problem(name: str, content: dict[str, Any]) -> str | None:
    """What a file called ``name`` lacks, as the end of a sentence about it; None if its readers can rely on it."""
    try:
        if name == "run.json":
            _About.model_validate(content)
        if name == "result.json":
            status = _Result.model_validate(content).status
            forms: dict[str, type[_Form]] = {"interrupted": _Interrupted, "finished": _Ended}
            boxes = isinstance(test := content.get("test"), dict) and "AP50" in test
            form = forms.get(status, _EndedEarly)
            (_EndedWithBoxes if boxes and form is not _Interrupted else form).model_validate(content)
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        return f"its {key!r} is missing or of another kind"
    return None
