"""The published number that a recipe carries ([paper]), and what all its tables share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

Mark = dict[str, JsonValue]
# Marks of keys; a key without one decides a run's numbers. `train.recipe.identity` reads them.
TEXT: Mark = {"decides": "text"}  # describes one recipe, and is not inherited
PLACE: Mark = {"decides": "place"}  # where a run happens and what it writes: may change when it is resumed
REPEAT: Mark = {"decides": "repeat"}  # which run of one configuration this is, and how it is measured
LATER: Mark = {"since": "later"}  # added after runs were made: at its default it does not change their fingerprint


class Table(BaseModel):
    """A TOML table: unknown keys and wrong types raise an error, and nothing is converted silently."""

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
