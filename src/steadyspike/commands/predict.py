"""`steadyspike predict`: the class of image or event files, and the time step at which it was decided."""

from __future__ import annotations

from pathlib import Path

from steadyspike.commands.common import ENDED, console, one_line_errors
from steadyspike.data.errors import DataError


@one_line_errors
def run(
    place: Path,
    files: list[Path],
    data_dir: Path | None,
    top: int,
    confidence: float | None,
    resize: bool,
    out: Path | None = None,
) -> int:
    from steadyspike.train.files.folder import RunFolder
    from steadyspike.train.recipe import kinds

    if place.is_dir() and (kind := kinds.kind_of(RunFolder(place).read_recipe())).predict:
        kinds.imported(kind.predict)(place, files, confidence, out, console)
        return ENDED
    if out is not None:
        raise DataError(f"--out is for runs that find boxes; {place} finds classes.")
    import torch
    from rich.table import Column, Table

    from steadyspike.commands.deployed import check_facts, folded
    from steadyspike.data.input_files import read_input
    from steadyspike.deploy import Confidence, stream

    network, facts = folded(place, data_dir)
    check_facts(place, facts, network)
    names = facts["classes"]
    one = stream(network, None if confidence is None else Confidence(confidence))
    table = Table(Column("file", overflow="fold"), "class", "confidence", "decided at step")
    if top > 1:
        table.add_column("then", overflow="fold")
    for file in files:
        x = read_input(file, facts, resize)
        static = facts["timesteps"] is None
        steps = network.graph.timesteps if static else x.shape[0]
        with torch.no_grad():
            logits, decided = one.run(x, steps if static else None)
        share, best = logits[0].softmax(-1).topk(min(top, len(names)))
        row = [str(file), names[best[0]], f"{share[0]:.1%}", f"{int(decided[0])} of {steps}"]
        if top > 1:
            row.append(", ".join(f"{names[i]} {p:.1%}" for i, p in zip(best[1:].tolist(), share[1:].tolist())))
        table.add_row(*row)
    console.print(table)
    return ENDED
