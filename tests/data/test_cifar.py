"""CIFAR files: both layouts, archives by hash, wrong sizes, and pickles that try to run code."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from steadyspike.data.data_folders import DataFolders
from steadyspike.data.download import Remote
from steadyspike.data.errors import DataError
from steadyspike.data.formats import cifar_batch as files
from steadyspike.data.formats import plain_pickle
from steadyspike.data.sets import cifar

from .samples import cifar_pixels, write_cifar10

SMALL = replace(cifar.CIFAR10, train_rows=20, test_rows=20)


def test_both_layouts_give_the_same_images(data_folders: DataFolders) -> None:
    write_cifar10(data_folders.data_dir)
    binary = cifar.load(data_folders, SMALL)
    os.rename(data_folders.data_dir / "cifar-10-batches-bin", data_folders.data_dir / "elsewhere")
    python = cifar.load(data_folders, SMALL)
    assert torch.equal(binary.source.data, python.source.data)  # type: ignore[attr-defined]
    assert torch.equal(binary.labels, python.labels)
    assert binary.classes == python.classes == cifar.CIFAR10_NAMES
    assert binary.source.data.shape == (120, 3, 32, 32)  # type: ignore[attr-defined]
    assert binary.population.official_test is not None and binary.population.official_test.sum() == 20


def test_a_smaller_size_averages_squares_of_pixels(data_folders: DataFolders) -> None:
    write_cifar10(data_folders.data_dir)
    full, small = cifar.load(data_folders, SMALL), cifar.load(data_folders, SMALL, 16)
    pixels = full.source.data[7].double()  # type: ignore[attr-defined]
    mean = pixels[:, 4:6, 10:12].mean((1, 2))
    assert torch.equal(small.source.data[7][:, 2, 5], mean.round().to(torch.uint8))  # type: ignore[attr-defined]
    assert small.size == (16, 16) and small.augment.padding == 2 and full.augment.padding == 4
    with pytest.raises(DataError, match="32, 16, 8 or 4"):
        cifar.load(data_folders, SMALL, 12)


def test_planes_are_red_green_blue_row_by_row(tmp_path: Path) -> None:
    pixels = np.arange(3072).astype(np.uint8)
    (tmp_path / "a.bin").write_bytes(bytes([7]) + pixels.tobytes())
    images, labels = files.read_binary(tmp_path / "a.bin", 1, 10, 1)
    assert labels.tolist() == [7]
    assert images[0, 1, 2, 3] == pixels[1024 + 2 * 32 + 3]


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(bytes([19, 99]) + bytes(3072))
    assert files.read_binary(tmp_path / "train.bin", 2, 100, 1)[1].tolist() == [99]
    content = {"fine_labels": [99], "coarse_labels": [19], "data": np.zeros((1, 3072), np.uint8)}
    (tmp_path / "train").write_bytes(pickle.dumps(content, protocol=2))
    assert files.read_pickle(tmp_path / "train", "fine_labels", 100, 1)[1].tolist() == [99]


def archive_of(folder: Path, inner: str, path: Path) -> Remote:
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder / inner, arcname=inner)
    return Remote(path.name, "http://127.0.0.1:1/", hashlib.md5(path.read_bytes()).hexdigest())


def test_read_from_the_archive_after_its_hash_was_checked(tmp_path: Path, data_folders: DataFolders) -> None:
    write_cifar10(tmp_path / "made")
    remote = archive_of(tmp_path / "made", "cifar-10-batches-bin", data_folders.data_dir / "cifar-10-binary.tar.gz")
    spec = replace(SMALL, binary=("cifar-10-batches-bin", remote))
    assert len(cifar.load(data_folders, spec).source) == 120
    assert len(cifar.load(data_folders, spec).source) == 120, "the second time from what was extracted"


@pytest.mark.parametrize("wreck", ["hash", "truncated", "empty"])
def test_wrong_archives(tmp_path: Path, data_folders: DataFolders, wreck: str) -> None:
    """The published hash stands in the spec: nothing is extracted and the archive is left alone."""
    write_cifar10(tmp_path / "made")
    path = data_folders.data_dir / "cifar-10-binary.tar.gz"
    archive_of(tmp_path / "made", "cifar-10-batches-bin", path)
    if wreck != "hash":
        os.truncate(path, path.stat().st_size // 2 if wreck == "truncated" else 0)
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: has md5 .* c32a1d4ab5d03f1284b67883e8d87530 is"):
        cifar.load(data_folders, SMALL)
    assert path.exists()
    assert not list(data_folders.cache_dir.rglob("*.bin"))


def test_a_download_that_fails_says_where_the_data_was_looked_for(data_folders: DataFolders) -> None:
    remote = Remote("a.tar.gz", "http://127.0.0.1:1/x", "0")
    folder = re.escape(str(data_folders.data_dir))
    with pytest.raises(
        DataError, match=rf"^cifar10 was not found in {folder}, .*: {folder}/a.tar.gz: .*failed"
    ) as told:
        replace(data_folders, download=True).downloaded(remote, "cifar10")
    assert told.value.path == data_folders.data_dir / "a.tar.gz"


def test_not_there_and_no_download(data_folders: DataFolders) -> None:
    with pytest.raises(DataError, match=r"downloading is off; put cifar-10-binary\.tar\.gz"):
        cifar.load(data_folders, SMALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:-1], "bytes; 20 records of 3073"),
        (lambda raw: raw + raw, "bytes; 20 records of 3073"),
        (lambda raw: b"", "is empty"),
        (lambda raw: bytes([10]) + raw[1:], "has label 10; there are 10 classes"),
    ],
)
def test_wrong_binary_files_are_named(data_folders: DataFolders, change, message: str) -> None:  # type: ignore[no-untyped-def]
    write_cifar10(data_folders.data_dir)
    path = data_folders.data_dir / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=rf"data_batch_3\.bin.*{message}"):
        cifar.load(data_folders, SMALL)


class Evil:
    def __reduce__(self):  # type: ignore[no-untyped-def]
        return os.system, ("touch evil-was-here",)


class EvilEval:
    def __reduce__(self):  # type: ignore[no-untyped-def]
        return eval, ("open('evil-was-here', 'w')",)


@pytest.mark.parametrize("evil", [Evil(), EvilEval()], ids=["system", "eval"])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_runs_code_does_not(tmp_path: Path, monkeypatch, evil: object, protocol: int) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data_batch_1"
    pixels, labels = cifar_pixels(2)
    path.write_bytes(pickle.dumps({"data": pixels, "labels": labels, "x": evil}, protocol=protocol))
    with pytest.raises(DataError, match=r"data_batch_1: is not a plain data pickle"):
        files.read_pickle(path, "labels", 10, 2)
    assert not (tmp_path / "evil-was-here").exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\nload\n(S'/etc/passwd'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(dS'__call__'\nI1\nsb.",  # BUILD on a stand-in
        b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
        b"cbuiltins\ngetattr\n.",
        b"}q\x00(U\x04datar\xff\xff\xff\x7fK\x01u.",  # a memo index of two thousand million
        b"(lp0\n.",
        b"N.",
    ],
)
def test_pickle_programs(program: bytes) -> None:
    with pytest.raises(DataError, match="x: is not a plain data pickle"):
        plain_pickle.load(b"\x80\x02" + program, "x")


def test_pickles_of_python_2_and_of_newer_numpy() -> None:
    """A batch as Python 2 wrote it (strings, numpy.core) and as numpy 2 writes it (bytes, numpy._core)."""
    old = (
        b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b"
        b"\x87Rq\x04(K\x01K\x01K\x03\x86cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87Rq\x06(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x03\x00\xff\x80tbU\x06labels]q\x07K\x05au."
    )
    loaded = plain_pickle.load(old, "x")
    assert loaded["data"].tolist() == [[0, 255, 128]] and loaded["labels"] == [5]
    for protocol in (2, 3, 4, 5):
        if protocol < 5:
            new = pickle.dumps({b"data": np.array([[1, 2]], np.uint8), b"labels": [1]}, protocol=protocol)
            assert plain_pickle.load(new, "x")["data"].tolist() == [[1, 2]]


@pytest.mark.parametrize("names", [5, "x" * 100, list(range(100)), None], ids=["number", "text", "numbers", "none"])
def test_cifar100_class_names_of_the_wrong_kind(tmp_path: Path, names: object) -> None:
    (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": names}, protocol=2))
    with pytest.raises(DataError, match="meta: has no list of names under 'fine_label_names'"):
        cifar.class_names(tmp_path, cifar.CIFAR100, binary=False)
