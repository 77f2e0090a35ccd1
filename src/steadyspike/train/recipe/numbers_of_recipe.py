"""The published number that a recipe carries ([paper]), and what all its tables share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Table(BaseModel):
    """A TOML table: unknown keys and wrong types are refused, nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Paper(Table):
    """[paper]: the published number of this configuration; not inherited."""

    value: float | None = Field(default=None, description="The published number.")
    verdict: str = Field(default="", description="The paper's outcome if it prints no number, such as 'diverges'.")
    spread: float | None = Field(default=None, ge=0, description="Its published spread (the +- behind it).")
    unit: str = Field(default="% accuracy", description="The unit of the number.")
    where: str = Field(description="The table, figure or section that shows it.")
    note: str = Field(default="", description="What to know before comparing with it.")

    @model_validator(mode="after")
    def _says_something(self) -> Paper:
        if self.value is None and not self.verdict:
            raise ValueError("[paper] needs paper.value or paper.verdict; a place without either is 'shown'")
        return self
