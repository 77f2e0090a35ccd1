"""Archives: extracted whole or not at all, never outside the target."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from steadyspike.data import decompress
from steadyspike.data.archive import extract
from steadyspike.data.errors import DataError

from .test_fuzz import ARCHIVES


def write_tar(path: Path, members: list[tarfile.TarInfo], content: bytes = b"data") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info in members:
            if info.isreg():
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return path


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("kind", ARCHIVES)
def test_extracts(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(ARCHIVES[kind])
    out = extract(path, tmp_path / "out")
    assert sorted(p.name for p in (out / "folder").iterdir()) == ["file0.bin", "file1.bin", "file2.bin"]
    assert (out / "folder" / "file1.bin").read_bytes() == bytes(range(256)) * 5


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil-steadyspike", "a/../../evil", "..\\evil", "C:/evil"])
def test_path_traversing_members(tmp_path: Path, name: str) -> None:
    """A good member before the bad one must not stay behind either."""
    path = write_tar(tmp_path / "a.tar.gz", [tarfile.TarInfo("good"), tarfile.TarInfo(name)])
    with pytest.raises(DataError, match=r"a\.tar\.gz: member .* outside the target"):
        extract(path, tmp_path / "deep" / "out")
    assert not (tmp_path / "deep" / "out").exists()
    assert not list(tmp_path.rglob("evil*")) and not Path("/tmp/evil-steadyspike").exists()
    bundle = tmp_path / "a.zip"
    with zipfile.ZipFile(bundle, "w") as z:
        z.writestr(name, "data")
    with pytest.raises(DataError, match="outside the target"):
        extract(bundle, tmp_path / "deep" / "out")
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize(
    "member",
    [
        link("l", "/etc/passwd", tarfile.SYMTYPE), link("l", "../../x", tarfile.LNKTYPE),
        link("d", "", tarfile.CHRTYPE), link("f", "", tarfile.FIFOTYPE),
    ],
    ids=["symlink", "hardlink", "device", "fifo"],
)  # fmt: skip
def test_links_and_devices_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    path = write_tar(tmp_path / "a.tar.gz", [tarfile.TarInfo("good"), member])
    with pytest.raises(DataError, match="link or a device"):
        extract(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_empty_missing_foreign_and_without_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a file"):
        extract(tmp_path / "none.tar", tmp_path / "out")
    (tmp_path / "empty.tar").touch()
    with pytest.raises(DataError, match=r"empty\.tar: is empty"):
        extract(tmp_path / "empty.tar", tmp_path / "out")
    (tmp_path / "page.tar.gz").write_text("<html>are you a robot?</html>")
    with pytest.raises(DataError, match=r"page\.tar\.gz: is a damaged"):
        extract(tmp_path / "page.tar.gz", tmp_path / "out")
    with pytest.raises(DataError, match="without any file"):
        extract(write_tar(tmp_path / "none.tar.gz", []), tmp_path / "out")


def test_bombs_stop_at_the_limit(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar.gz", [tarfile.TarInfo("big")], b"\0" * 100_000)
    with pytest.raises(DataError, match="more than 50000 bytes"):
        extract(path, tmp_path / "out", limit=50_000)
    assert not list(tmp_path.glob("out*/"))


def test_an_unwritable_target_is_not_blamed_on_the_archive(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(ARCHIVES["zip"])
    with zipfile.ZipFile(tmp_path / "a.zip", "a") as z:
        z.writestr("folder/file0.bin/below", "a file where a folder is needed")
    with pytest.raises(DataError, match="cannot be extracted to"):
        extract(tmp_path / "a.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert os.listdir(tmp_path).count("out") == 0


def test_the_limit_follows_the_size_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompress, "ROOM", 1000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("zeros", bytes(1 << 20))
    with pytest.raises(DataError, match=r"bomb\.zip: unpacks to more than"):
        extract(tmp_path / "bomb.zip", tmp_path / "out")


@pytest.mark.parametrize("mode", [0o120777, 0o020666], ids=["symlink", "device"])
def test_links_and_devices_in_a_zip_are_refused(tmp_path: Path, mode: int) -> None:
    info = zipfile.ZipInfo("special")
    info.external_attr = mode << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as z:
        z.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="'special' is a link or a device"):
        extract(tmp_path / "a.zip", tmp_path / "out")


def test_a_tar_of_the_folder_itself(tmp_path: Path) -> None:
    """`tar c .` names the folder "." and its files "./file"."""
    top = tarfile.TarInfo(".")
    top.type = tarfile.DIRTYPE
    path = write_tar(tmp_path / "a.tar.gz", [top, tarfile.TarInfo("./inside/file")])
    assert (extract(path, tmp_path / "out") / "inside" / "file").read_bytes() == b"data"


def test_a_header_that_claims_absurd_sizes(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1 << 60
    (tmp_path / "a.tar").write_bytes(header.tobuf(format=tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(DataError, match=r"a\.tar: has a header of 1152921504606846976 bytes"):
        extract(tmp_path / "a.tar", tmp_path / "out")


def test_a_target_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(ARCHIVES["zip"])
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file/out: cannot be written \("):
        extract(tmp_path / "a.zip", tmp_path / "file" / "out")
