"""Checkpoint files: whole or not there, ours or refused, and a full disk leaves the old one."""

import io
import os
import random
import resource
import signal
import zipfile

import pytest
import torch

from steadyspike.disk.sealed import TRAILER, SealedWriter
from steadyspike.train.files.atomic import CheckpointError, link, write_atomically
from steadyspike.train.files.checkpoint import (
    FORMAT,
    latest,
    previous_of,
    read_checkpoint,
    save_checkpoint,
    write_state,
)
from steadyspike.train.files.loggers import Board
from steadyspike.train.files.tables import Table, read_table

TOO_LARGE = "it would be larger than a file of this process may be (ulimit -f)"


def state(value, **identity):
    return {"format": FORMAT, "identity": identity, "w": torch.full((1000,), float(value))}


@pytest.fixture
def kept(tmp_path):
    """last.ckpt holds 2, the one before 1."""
    path = tmp_path / "last.ckpt"
    for value in (1, 2):
        save_checkpoint(state(value, run="a"), path)
    return path


def test_the_previous_checkpoint_is_kept_and_nothing_else(kept):
    assert read_checkpoint(kept)["w"][0] == 2
    assert read_checkpoint(previous_of(kept))["w"][0] == 1
    assert sorted(os.listdir(kept.parent)) == ["last.ckpt", "last.previous.ckpt"]


def test_two_may_write_one_file_at_a_time(tmp_path):
    """`reproduce` twice in one folder: one renamed the temporary file of the other."""
    path = tmp_path / "x.npz"

    def write(file):
        write_atomically(path, lambda other: other.write(b"first"))
        assert path.read_bytes() == b"first"
        file.write(b"second")

    write_atomically(path, write)
    assert path.read_bytes() == b"second" and os.listdir(tmp_path) == ["x.npz"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    path = tmp_path / "x.npz"
    if (child := os.fork()) == 0:
        write_atomically(path, lambda file: os.kill(os.getpid(), signal.SIGKILL))
    os.waitpid(child, 0)
    (tmp_path / ".x.npz.partial").write_bytes(b"of an older version")
    assert len(os.listdir(tmp_path)) == 2
    write_atomically(path, lambda file: file.write(b"new"))
    assert os.listdir(tmp_path) == ["x.npz"]


def test_a_write_that_is_interrupted_leaves_nothing(tmp_path):
    def stop(file):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "x", stop)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("damage", ["truncate", "flip", "garbage", "empty"])
def test_damage_is_refused_by_name_and_the_previous_one_used(kept, damage):
    content = bytearray(kept.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    kept.write_bytes({"truncate": content[:-200], "flip": content, "garbage": b"hello", "empty": b""}[damage])
    actual = latest(kept, {"run": "a"})
    assert actual.state is not None and actual.state["w"][0] == 1 and actual.path == previous_of(kept)
    assert len(actual.refused) == 1 and str(kept) in actual.refused[0]


def test_a_tensor_marked_as_a_folder_is_refused(kept):
    """torch leaves the memory of such a tensor as it was: one bit of the file, and a run trains on garbage."""
    content = bytearray(kept.read_bytes())
    entries = [i for i in range(len(content)) if content[i : i + 4] == b"PK\x01\x02"]
    tensor = next(i for i in entries if b"data/0" in content[i + 46 : i + 80])
    content[tensor + 38] |= 0x10  # external attributes of the directory entry
    kept.write_bytes(content)
    with pytest.raises(CheckpointError, match="does not have the checksum it was written with"):
        read_checkpoint(kept)
    kept.write_bytes(sealed(bytes(content[:-TRAILER])))  # also if the damaged file was given a checksum
    with pytest.raises(CheckpointError, match="holds a folder"):
        read_checkpoint(kept)


def sealed(content):
    """A forged file: any content with a checksum that fits."""
    out = io.BytesIO()
    writer = SealedWriter(out)
    writer.write(content)
    writer.finish()
    return out.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("compression", "change", "message"),
    [
        (zipfile.ZIP_DEFLATED, lambda raw: [raw], "was packed again, with compression"),
        (zipfile.ZIP_STORED, lambda raw: [raw, bytes(len(raw))], "holds two entries of one name"),
        (zipfile.ZIP_STORED, lambda raw: [raw[:40]], "is not a checkpoint"),
        (zipfile.ZIP_STORED, lambda raw: [raw * 2], "is not a checkpoint"),
        (zipfile.ZIP_STORED, lambda raw: [], "is not a checkpoint"),
    ],
)
def test_a_checkpoint_that_was_packed_anew_is_believed_only_if_it_is_the_same(kept, compression, change, message):
    packed = {}
    for kind, how in (("same", lambda raw: [raw]), ("other", change)):
        buffer = io.BytesIO()
        with zipfile.ZipFile(kept) as old, zipfile.ZipFile(buffer, "w", 0 if kind == "same" else compression) as new:
            for name in old.namelist():
                for content in how(old.read(name)) if name.endswith("data/0") else [old.read(name)]:
                    new.writestr(name, content)
        packed[kind] = sealed(buffer.getvalue())
    kept.write_bytes(packed["same"])
    assert torch.equal(read_checkpoint(kept)["w"], state(2)["w"])
    kept.write_bytes(packed["other"])
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(kept)


def test_no_random_damage_is_accepted(kept):
    """The long form is `make torture`: 100,000 of each kind of file."""
    clean, draw = kept.read_bytes(), random.Random(0)
    for _ in range(500):
        content = bytearray(clean)
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        kept.write_bytes(content)
        with pytest.raises(CheckpointError):
            read_checkpoint(kept)


def test_a_whole_state_that_cannot_be_used_falls_back_too(kept):
    actual = latest(kept, {"run": "a"}, lambda state: "it is too large" if state["w"][0] == 2 else None)
    assert actual.state is not None and actual.state["w"][0] == 1
    assert actual.refused == [f"{kept} cannot be used: it is too large"]


def test_foreign_files_are_refused(kept, tmp_path):
    torch.save({"state_dict": {}}, kept)
    with pytest.raises(CheckpointError, match="has no checksum at its end"):
        read_checkpoint(kept)
    with open(kept, "wb") as file:
        write_state({"state_dict": {}}, file)
    with pytest.raises(CheckpointError, match="not a checkpoint of this library"):
        read_checkpoint(kept)
    with pytest.raises(CheckpointError, match="belongs to another run: its run is a, here it is b"):
        read_checkpoint(previous_of(kept), {"run": "b"})
    with pytest.raises(CheckpointError, match="no checkpoint left to continue from"):
        latest(kept, {"run": "b"})
    assert latest(tmp_path / "none.ckpt", {}) == (None, tmp_path / "none.ckpt", [])


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    with open(tmp_path / "x.ckpt", "wb") as file:
        write_state({"format": FORMAT, "evil": Evil()}, file)
    with pytest.raises(CheckpointError, match=r"x\.ckpt is not a checkpoint \(UnpicklingError\)"):
        read_checkpoint(tmp_path / "x.ckpt")
    assert not (tmp_path / "owned").exists()


def test_a_full_disk_is_said_and_the_old_checkpoint_is_intact(kept):
    """The kernel refuses to let a file grow, as it does on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"last\.ckpt could not be written: .*; the previous file is intact"):
            save_checkpoint(state(3, run="a"), kept)
        with pytest.raises(CheckpointError) as first:
            save_checkpoint(state(3, run="a"), kept.with_name("first.ckpt"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(first.value).endswith("first.ckpt could not be written: " + TOO_LARGE)
    assert read_checkpoint(kept)["w"][0] == 2
    assert sorted(os.listdir(kept.parent)) == ["last.ckpt", "last.previous.ckpt"]


def often(do):
    for step in range(1000):
        do(step)


@pytest.mark.parametrize("limit", [64, 1000, 4096])
def test_tables_and_scalars_that_cannot_be_written_are_named(tmp_path, limit):
    """The buffer is flushed at every row, so it is that row that fails, wherever the limit is."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    table, board = Table(tmp_path / "t.csv", ("a",)), Board(tmp_path, 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises(CheckpointError) as row:
            often(lambda step: table.add(a="x" * 50))
        with pytest.raises(CheckpointError) as scalar:
            often(lambda step: board.add("a", {"b": 1.0}, step))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        board.close()
        table.close()
    assert str(row.value) == f"{tmp_path / 't.csv'} could not be written: {TOO_LARGE}"
    assert str(scalar.value) == f"{board.path} could not be written: {TOO_LARGE}"


def test_tensorboard_reads_the_scalars(tmp_path):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    board = Board(tmp_path, 3)
    board.add("epoch", {"loss": 0.5, "nothing": None, "lr": 0.25}, 7)
    board.close()
    events = list(EventFileLoader(str(board.path)).Load())
    assert events[0].file_version == "brain.Event:2" and events[1].step == 3
    scalars = {v.tag: v.tensor.float_val[0] for v in events[2].summary.value}
    assert scalars == {"epoch/loss": 0.5, "epoch/lr": 0.25} and events[2].step == 7


def test_a_link_stays_when_its_source_is_replaced(kept):
    best = kept.with_name("best.ckpt")
    link(kept, best)
    save_checkpoint(state(3), kept)
    assert read_checkpoint(best)["w"][0] == 2


def test_tables_are_cut_back_to_a_length_and_read_back_equal(tmp_path):
    path = tmp_path / "t.csv"
    table = Table(path, ("a", "b"))
    table.add(a=0.1, b='x, "y"')
    extent = table.sync()
    table.add(a=2.0)
    table.close()
    again = Table(path, ("a", "b"), extent)
    again.add(a=1 / 3, b=None)
    again.close()
    rows = read_table(path)
    assert [float(r["a"]) for r in rows] == [0.1, 1 / 3] and rows[0]["b"] == 'x, "y"' and rows[1]["b"] == ""
    with pytest.raises(CheckpointError, match=r"has .* bytes, but it had 9999 when this was written"):
        Table(path, ("a", "b"), {**extent, "length": 9999})
    path.write_bytes(path.read_bytes().replace(b"0.1", b"0.7"))
    with pytest.raises(CheckpointError, match=r"t\.csv was changed: it does not have the checksum"):
        Table(path, ("a", "b"), extent)
