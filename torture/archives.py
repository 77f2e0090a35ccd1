"""Hostile files: archives that escape, bombs, pickles that run code. Each must be refused, cheaply, in one line.

`torture(scale, seed)` returns one `Tally` for archives, one for pickles and one for the rest.
"""

from __future__ import annotations

import io
import os
import pickle
import random
import shutil
import stat
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from steadyspike.data.archive import extract
from steadyspike.data.formats import aedat4, cifar_batch, idx
from steadyspike.data.images import open_rgb
from torture import hostile
from torture.limits import MIB, limited
from torture.tally import Tally

# The target of a member with an absolute path.
ESCAPED = Path(tempfile.gettempdir()) / "evil-torture"


def read_pickle(path: Path) -> object:
    return cifar_batch.read_pickle(path, "labels", 10, 10_000)


def unpack(path: Path) -> object:
    return extract(path, path.parent / "below" / "out")


@dataclass(frozen=True)
class Case:
    """A hostile file: how it is made and read, a part of the error it must give, MiB that reading it may take."""

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    message: str
    memory: int = 32


def _tar_member(kind: bytes, name: str, link: str = "") -> Callable[[Path], object]:
    def make(path: Path) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        with tarfile.open(path, "w:gz") as out:
            out.addfile(tarfile.TarInfo("good"), io.BytesIO())
            out.addfile(info, io.BytesIO() if info.isreg() else None)

    return make


def _zip_member(name: str, mode: int = 0, copies: int = 1) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as out:
            warnings.simplefilter("ignore")  # of a name that is there twice
            out.writestr("good", b"x")
            for _ in range(copies):
                out.writestr(info, b"/etc/passwd")

    return make


class Runs:
    """Pickles to a call of `function` with `arguments`."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


MARK = "pickle-ran"


def _pickled(function: Callable[..., object], *arguments: object) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        protocol = random.Random(path.name).choice((0, 1, 2, 3, 4, 5))
        path.write_bytes(pickle.dumps({"data": Runs(function, *arguments), "labels": []}, protocol))

    return make


def escapes() -> Iterator[Case]:
    """Members that would be written, or lead, outside of the folder."""
    outside = "outside the target"
    for number, name in enumerate(("../evil", str(ESCAPED), "a/../../evil", "..\\evil", "C:/evil", "./../evil")):
        yield Case(f"escape{number}.tar.gz", _tar_member(tarfile.REGTYPE, name), unpack, outside)
        yield Case(f"escape{number}.zip", _zip_member(name), unpack, outside)
        yield Case(f"folder{number}.tar.gz", _tar_member(tarfile.DIRTYPE, name), unpack, outside)
    special = "is a link or a device"
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
    for number, kind in enumerate(kinds):
        yield Case(f"special{number}.tar.gz", _tar_member(kind, "l", "../../evil"), unpack, special)
    for number, mode in enumerate((stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK)):
        yield Case(f"special{number}.zip", _zip_member("l", mode | 0o777), unpack, special)
    yield Case("twice.zip", _zip_member("good"), unpack, "two members called 'good'")


def bombs() -> Iterator[Case]:
    """Small archives and files that ask for much memory or time."""
    header = "has a header of 268435456"
    yield Case("gnu.tar.gz", lambda p: hostile.long_header(p, tarfile.GNUTYPE_LONGNAME), unpack, header)
    yield Case("pax.tar.gz", lambda p: hostile.long_header(p, tarfile.XHDTYPE), unpack, header)
    yield Case("global.tar.gz", lambda p: hostile.long_header(p, tarfile.XGLTYPE), unpack, header)
    yield Case("members.tar.gz", hostile.empty_members, unpack, "members, which is more than its size")
    yield Case("members.zip", hostile.empty_members, unpack, "has a directory of", 64)
    yield Case("zeros.tar.gz", hostile.large_member, unpack, "unpacks to more than")
    yield Case("zeros.zip", hostile.large_member, unpack, "unpacks to more than")
    yield Case("lie.zip", hostile.zip_lie, unpack, "unpacks to more than")
    yield Case("deep.zip", hostile.deep_folders, unpack, "lies more than 16 folders deep")
    yield Case("memory.tar.xz", hostile.xz_dictionary, unpack, "Memory usage limit")
    yield Case("sparse.tar", hostile.sparse_member, unpack, "sparse file")
    yield Case("old-sparse.tar", hostile.old_sparse_member, unpack, "is a link or a device")


def others() -> Iterator[Case]:
    """Files of other kinds that ask for much, or hold what cannot be."""
    yield Case("deep16.png", lambda p: hostile.png(p, 13370, 13370, 16), open_rgb, "has 13370 x 13370 pixels")
    yield Case("bomb.aedat4", hostile.aedat4_zstd_bomb, aedat4.read, "unpacks to more than", 64)
    for number, late in enumerate(((1 << 63) - 1, -(1 << 63), 1 << 61)):
        make = partial(hostile.aedat4_times, time=late)
        yield Case(f"late{number}.aedat4", make, aedat4.read, "has the time", 64)
    yield Case("zeros-idx1-ubyte.gz", hostile.gz_zeros, idx.read, "unpacks to more than", 400)


def pickles() -> Iterator[Case]:
    """Pickles that run code, never end or grow."""
    plain = "is not a plain data pickle"
    calls: list[tuple[Any, ...]] = [
        (os.system, f"touch {MARK}"), (eval, f"open('{MARK}', 'w')"), (exec, f"open('{MARK}', 'w')"),
        (open, MARK, "w"), (os.mkdir, MARK), (__import__, "this"), (getattr, "x", "upper"), (bytearray, 1 << 33),
    ]  # fmt: skip
    for number, call in enumerate(calls):
        yield Case(f"call{number}", _pickled(*call), read_pickle, plain)
    yield Case("data_batch_1", hostile.nested_key, read_pickle, "a key is a tuple, not text")
    yield Case("data_batch_2", hostile.nested_value, read_pickle, "has no array 'data'")
    yield Case("data_batch_3", hostile.encoded_again_and_again, read_pickle, "encodes more text than it holds", 64)


def problem(case: Case, folder: Path) -> str | None:
    """What is wrong with how the file is taken; None if it is refused as it must be and leaves nothing behind."""
    path = folder / case.name
    case.make(path)
    before = set(os.listdir(folder))
    here = os.getcwd()
    os.chdir(folder)  # what a pickle runs would write here
    try:
        outcome = limited(lambda: case.read(path), 1500 * MIB, 60)
    finally:
        os.chdir(here)
    if outcome.kind != "refused":
        return f"{case.name}: {outcome}"
    if case.message not in outcome.text or not outcome.text.startswith(str(folder)) or "\n" in outcome.text:
        return f"{case.name}: the error is {outcome.text[:300]!r}"
    if outcome.grown > case.memory * MIB or outcome.seconds > 20:
        return f"{case.name}: took {outcome.grown // MIB} MiB and {outcome.seconds:.1f} seconds"
    left = {name for name in set(os.listdir(folder)) - before if name != "below"}
    left |= {p.name for p in (folder / "below").glob("*") if p.suffix != ".lock"}
    left |= {p.name for p in ESCAPED.parent.glob(f"{ESCAPED.name}*")}
    return f"{case.name}: left {sorted(left)} behind" if left else None


def torture(scale: float, seed: int) -> list[Tally]:
    """All hostile files in an order that `seed` decides; there is one of each, whatever the scale."""
    print(f"hostile files: seed {seed}", flush=True)
    tallies = []
    groups = {
        "hostile archives": (*escapes(), *bombs()),
        "hostile pickles": tuple(pickles()),
        "hostile files": tuple(others()),
    }
    for kind, cases in groups.items():
        tally = Tally(kind, len(cases))
        for case in random.Random(seed).sample(cases, len(cases)):
            folder = Path(tempfile.mkdtemp(prefix="torture-"))
            try:
                actual = problem(case, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            tally.refused += actual is None
            tally.failures += [] if actual is None else [actual]
        tallies.append(tally)
        failed = len(tally.failures)
        print(f"  {kind:<16} {tally.tries:>7} files {tally.refused:>7} refused {failed:>3} failed", flush=True)
    return tallies
