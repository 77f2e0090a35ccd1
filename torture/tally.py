"""What a kind of fault came to, and the table of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Tries of one kind of fault; `failures` says for each that went wrong what happened, with its seed or number."""

    kind: str
    tries: int = 0
    refused: int = 0
    accepted: int = 0
    failures: list[str] = field(default_factory=list)
    note: str = ""  # such as why it could not be tried here

    def say(self) -> None:
        """Prints what it came to so far, since a whole test takes minutes."""
        print(f"  {self.kind}: {self.tries} tries, {len(self.failures)} failures", flush=True)

    def count(self, failure: str | None) -> None:
        """One more try."""
        self.tries += 1
        if failure is not None:
            self.failures.append(failure)


def table(tallies: Sequence[Tally]) -> str:
    """One line per kind: tries and failures."""
    width = max(len(tally.kind) for tally in tallies)
    lines = [f"{'kind of fault':<{width}}  {'tries':>7}  failures"]
    for tally in tallies:
        note = f"  ({tally.note})" if tally.note else ""
        lines.append(f"{tally.kind:<{width}}  {tally.tries:>7}  {len(tally.failures)}{note}")
    total = sum(tally.tries for tally in tallies), sum(len(tally.failures) for tally in tallies)
    return "\n".join([*lines, f"{'all':<{width}}  {total[0]:>7}  {total[1]}"])
