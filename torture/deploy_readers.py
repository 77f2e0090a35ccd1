"""Folded networks and NIR files: damaged, forged and made by hand. Each is read, or refused in one line.

Damaged NIR files run in processes forked from this one, many files in each: HDF5 may crash or hang there, as it
may in the reader's own process. What counts is the rest: nothing but `DamagedFile` and `CannotFold` may come out.
"""

from __future__ import annotations

import os
import random
import select
import signal
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import torch

from torture.forge import forge, read_parts, write_forged
from torture.hostile_nir import FILES
from torture.limits import cap
from torture.mutate import mutated
from torture.tally import Tally

PATIENCE = 20  # seconds for one file


def small_network() -> Any:
    """A folded network with a convolution, pools, an identity edge and a soft reset."""
    from torch import nn

    import steadyspike as ss
    from steadyspike.nn.time import Folded

    torch.manual_seed(0)
    model = nn.Sequential(
        Folded(nn.Conv2d(2, 4, 3, padding=1)), ss.LIF(0.5), Folded(nn.AvgPool2d(2)), nn.Flatten(2), nn.Linear(36, 8),
        ss.LIF(0.5), nn.Linear(8, 3),
    )  # fmt: skip
    return ss.deploy.fold(model, torch.rand(3, 2, 2, 6, 6), batch_dim=1)


def folded_files(folder: Path, count: int, seed: int, forged: bool) -> Tally:
    """Damaged folded files, or forged ones whose digest fits."""
    from steadyspike.deploy import DamagedFile, load, save

    network, x = small_network(), torch.rand(3, 1, 2, 6, 6)
    whole = save(network, folder / "whole.safetensors", {"classes": ["a", "b", "c"]})
    content, tensors = read_parts(whole)
    data, expected, path = whole.read_bytes(), network(x), folder / "changed.safetensors"
    tally = Tally("forged folded files" if forged else "damaged folded files")
    for i in range(count):
        dice = random.Random(f"{seed} {i}")
        if forged:
            write_forged(path, *forge(content, tensors, dice))
        else:
            path.write_bytes(mutated(data, dice))
        failure = None
        try:
            again = load(path)
            node = again.graph.input
            lead = (1, 1) if node.timed else (1,)
            dtype = next((n.tensors["weight"].dtype for n in again.graph if "weight" in n.tensors), torch.float32)
            again(torch.zeros(*lead, *node.shape, dtype=dtype), None if node.timed else 1)
            if not forged and not torch.equal(again(x), expected):
                failure = "accepted with other content"
            tally.accepted += 1
        except DamagedFile as error:
            tally.refused += 1
            failure = "more than one line" if "\n" in str(error) else None
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        tally.count(None if failure is None else f"{tally.kind} {seed} {i}: {failure}")
    return tally


def nir_files(folder: Path, count: int, seed: int) -> Tally:
    """Damaged NIR files through the code of the reader, in forked processes."""
    from steadyspike.deploy import export_nir

    data = export_nir(small_network(), folder / "whole.nir").read_bytes()
    tally, start = Tally("damaged NIR files"), 0
    while start < count:
        start = _batch(folder, data, range(start, count), seed, tally)
    return tally


def _batch(folder: Path, data: bytes, numbers: range, seed: int, tally: Tally) -> int:
    """Runs files in one forked process until it ends; returns the number of the next file."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _run(folder, data, numbers, seed, write)
    os.close(write)
    done, inside, text = numbers.start, False, b""
    while select.select([read], [], [], PATIENCE)[0]:
        part = os.read(read, 1 << 16)
        if not part:
            break
        text += part
        while b"\n" in text:
            line, _, text = text.partition(b"\n")
            inside = line == b"network"
            if not inside:
                tally.refused += line == b"refused"
                failure = None if line in (b"refused", b"read") else f"NIR {seed} {done}: {line.decode()}"
                tally.count(failure)
                done += 1
    else:
        os.kill(child, signal.SIGKILL)
    os.close(read)
    os.waitpid(child, 0)
    if done < numbers.stop:  # this file ended the process: allowed inside HDF5 only
        tally.count(f"NIR {seed} {done}: crashed or hung outside of HDF5" if inside else None)
        tally.note = "some ended the process that reads HDF5, which is what it is for"
        done += 1
    return done


def _run(folder: Path, data: bytes, numbers: range, seed: int, write: int) -> NoReturn:
    import h5py

    from steadyspike.deploy import CannotFold, DamagedFile
    from steadyspike.deploy.from_nir import network_of
    from steadyspike.deploy.nir_file import graph_of_tree, restored
    from steadyspike.deploy.nir_worker import Reader

    cap(1 << 30)
    path = folder / f"{os.getpid()}.nir"
    try:
        for i in numbers:
            path.write_bytes(mutated(data, random.Random(f"{seed} {i}")))
            printed = "read"
            try:
                reader = Reader(256 << 20)
                with h5py.File(path, "r") as file:
                    tree = reader.group(file["node"], "node")
                content = b"".join(array.tobytes() for array in reader.arrays)
            except Exception:  # the worker process refuses the file with any of these
                os.write(write, b"refused\n")
                continue
            os.write(write, b"network\n")
            try:
                network_of(graph_of_tree(restored(tree, content), "file"), None, "file")
            except (DamagedFile, CannotFold) as error:
                printed = "refused" if "\n" not in str(error) else "more than one line"
            except BaseException as error:
                printed = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            os.write(write, printed.encode() + b"\n")
    finally:
        path.unlink(missing_ok=True)
        os._exit(0)


def hostile_files(folder: Path) -> Tally:
    """Files made by hand, read as a user reads them."""
    from steadyspike.deploy import CannotFold, DamagedFile, from_nir

    tally = Tally("hostile NIR files")
    for name, (write, refusal) in FILES.items():
        path = folder / "hostile.nir"
        path.unlink(missing_ok=True)
        write(path)
        failure = None
        try:
            from_nir(path)
            failure = f"{name}: accepted" if refusal else None
        except (DamagedFile, CannotFold) as error:
            fits = refusal and refusal in str(error) and "\n" not in str(error)
            failure = None if fits else f"{name}: {error}"
        except Exception as error:
            failure = f"{name}: {type(error).__name__}: {error}"
        tally.count(failure)
    return tally


def torture(scale: float, seed: int) -> list[Tally]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tallies = [
            folded_files(folder, int(20_000 * scale), seed, forged=False),
            folded_files(folder, int(20_000 * scale), seed, forged=True),
            nir_files(folder, int(10_000 * scale), seed),
            hostile_files(folder),
        ]
    for tally in tallies:
        tally.say()
    return tallies
