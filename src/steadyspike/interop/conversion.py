"""`Conversion`: what `ss.convert` and `ss.stabilize` changed in a model, as a table."""

from __future__ import annotations

from dataclasses import dataclass, field

from steadyspike.nn.model_check import CheckReport


@dataclass(frozen=True)
class Row:
    """One neuron: its name in the model, its old type, its new type (empty if it was not converted), and remarks."""

    layer: str
    was: str
    now: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def left(self) -> bool:
        return not self.now


@dataclass
class Conversion:
    """A row for each neuron of another library, and the findings of `ss.check_model`. ``print(conversion)`` shows all.

    check: None if no example was given
    about: remarks that concern the whole model
    """

    rows: list[Row] = field(default_factory=list)
    check: CheckReport | None = None
    about: list[str] = field(default_factory=list)

    @property
    def converted(self) -> list[Row]:
        return [row for row in self.rows if not row.left]

    @property
    def left(self) -> list[Row]:
        """Returns the neurons that were not converted, each with the reason as its remark."""
        return [row for row in self.rows if row.left]

    def __str__(self) -> str:
        total = len(self.rows)
        lines = [f"{len(self.converted)} of {total} neurons of another library are now this library's"]
        for row in self.rows:
            lines.append(f"  {row.layer or '(the model itself)'}")
            lines.append(f"    was   {row.was}")
            lines.append(f"    now   {row.now or 'not converted'}")
            lines += [f"    note  {remark}" for remark in row.remarks]
        lines += [f"  {remark}" for remark in self.about]
        if self.check is None:
            lines.append("  not checked: give an example input (example=x) to run ss.check_model on the result")
        else:
            lines += ["  " + line for line in str(self.check).splitlines()]
        return "\n".join(lines)
