"""The readers that are fuzzed, with good files made by hand, and the run over all of them.

`torture(scale, seed)` returns one `Tally` per reader. `python -m torture.readers --count 120000` runs this part alone.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import lz4.frame
import numpy as np
import zstandard
from tests.data.samples import aedat4_bytes, recording

from steadyspike.data.archive import extract
from steadyspike.data.clip_cache import cached_clips
from steadyspike.data.events import Events
from steadyspike.data.formats import aedat2, aedat4, aedat31, atis, cifar_batch, idx, plain_pickle
from steadyspike.data.images import open_rgb, random_resized_crop, resize_and_centre
from steadyspike.data.sets import cifar, dvs_gesture
from steadyspike.disk.checksum import file_sha256
from torture.fuzz import Reader, fuzz
from torture.hostile import aedat4_packed, aedat4_packet, zstd_plain
from torture.limits import MIB
from torture.tally import Tally
from torture.workers import shared_out

IMAGES = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")


def check_events(value: object) -> None:
    assert isinstance(value, Events) and len(value) > 0
    assert value.x.max() < value.size[1] and value.y.max() < value.size[0]
    assert value.p.max() <= 1 and len(value.x) == len(value.y) == len(value.t) == len(value.p)


def check_images(value: object) -> None:
    assert isinstance(value, tuple)
    images, labels = value
    assert images.shape == (4, 3, 32, 32) and images.dtype == np.uint8
    assert labels.min() >= 0 and labels.max() < 10


def event_readers() -> Iterator[Reader]:
    small, large = recording(40, (34, 34)), recording(60)
    yield Reader("atis", (atis.encode(small),), atis.read, check_events)
    yield Reader("aedat2", (aedat2.encode(large),), aedat2.read, check_events)
    yield Reader("aedat31", (aedat31.encode(large, packet=16),), aedat31.read, check_events)
    yield Reader("aedat4", (aedat4_bytes(recording(40)),), aedat4.read, check_events)
    plain = zstd_plain(aedat4_packet(20))
    for name, number, pack in (("zstd", 3, zstandard.compress), ("lz4", 1, lz4.frame.compress)):
        packets = [pack(aedat4_packet(20)), plain if name == "zstd" else pack(aedat4_packet(20))]
        yield Reader(f"aedat4-{name}", (aedat4_packed(packets, number),), aedat4.read, check_events, memory=128 * MIB)


def image_set_readers() -> Iterator[Reader]:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (4, 3072)).astype(np.uint8)
    binary = np.concatenate([np.arange(4, dtype=np.uint8)[:, None], pixels], axis=1).tobytes()
    yield Reader("cifar-binary", (binary,), lambda p: cifar_batch.read_binary(p, 1, 10, 4), check_images)
    batches = tuple(pickle.dumps({b"data": pixels, b"labels": [0, 1, 2, 9]}, protocol) for protocol in (2, 4))
    yield Reader("cifar-pickle", batches, lambda p: cifar_batch.read_pickle(p, "labels", 10, 4), check_images, share=2)
    # Without the pixels almost every damage hits the program instead of them.
    program = tuple(
        pickle.dumps({"data": pixels[:1, :3], "labels": [5], "x": ("a", 2.5, None)}, protocol) for protocol in (0, 2, 4)
    )
    yield Reader("pickle-program", program, lambda p: plain_pickle.load(p.read_bytes(), p), share=2)
    names = b"\n".join(name.encode() for name in cifar.CIFAR10_NAMES) + b"\n"
    yield Reader("cifar-names", (names,), lambda p: _names(p), suffix=".txt", share=0.25)
    raw = idx.encode(np.arange(60, dtype=np.uint8).reshape(5, 4, 3))
    yield Reader("idx", (raw,), idx.read)
    yield Reader("idx-gz", (gzip.compress(raw), raw), idx.read, pack=gzip.compress)


def _names(path: Path) -> object:
    target = path.with_name("batches.meta.txt")
    shutil.copyfile(path, target)
    return cifar.class_names(path.parent, cifar.CIFAR10, binary=True)


def image_readers() -> Iterator[Reader]:
    import torch
    from PIL import Image

    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (12, 18, 3)).astype(np.uint8))

    def decode(path: Path) -> object:
        image = open_rgb(path)
        return random_resized_crop(image, 16, torch.Generator().manual_seed(0)), resize_and_centre(image, 18, 16)

    def check(value: object) -> None:
        assert isinstance(value, tuple) and all(x.shape == (3, 16, 16) for x in value)

    for kind in IMAGES:
        out = io.BytesIO()
        picture.save(out, kind)
        grey = io.BytesIO()
        picture.convert("L").save(grey, kind)
        good = (out.getvalue(), grey.getvalue())
        yield Reader(f"image-{kind.lower()}", good, decode, check, memory=900 * MIB, seconds=20, share=0.6)


def archive_readers() -> Iterator[Reader]:
    plain = _tar()
    bundle = io.BytesIO()
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as out:
        for number in range(3):
            out.writestr(f"folder/file{number}.bin", bytes(range(256)) * 2)
    packers: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    yield Reader("tar", (plain, _tar(tarfile.PAX_FORMAT)), _extracted, _inside)
    for name, pack in packers.items():
        yield Reader(f"tar-{name}", (pack(plain), plain), _extracted, _inside, pack, share=0.5, memory=160 * MIB)
    yield Reader("zip", (bundle.getvalue(),), _extracted, _inside)


def _tar(form: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as out:
        for name in ("folder/a.bin", "folder/" + "long" * 40 + ".bin", "b.bin"):
            info = tarfile.TarInfo(name)
            info.size = 700
            out.addfile(info, io.BytesIO(bytes(range(100)) * 7))
    return buffer.getvalue()


def _extracted(path: Path) -> object:
    """Extracts to a new folder next to the archive; files outside of it must not change."""
    target = path.parent / "below" / "out"
    shutil.rmtree(target.parent, ignore_errors=True)
    before = sorted(os.listdir(path.parent))
    try:
        return extract(path, target)
    finally:
        made = sorted(name for name in os.listdir(path.parent) if name != "below")
        assert made == before, f"extraction made {set(made) - set(before)}"
        left = [p.name for p in target.parent.glob("*.partial-*")]
        assert not left, f"extraction left {left}"


def _inside(value: object) -> None:
    assert isinstance(value, Path)
    files = [p for p in value.rglob("*") if not p.is_dir()]
    assert files and all(p.is_file() and not p.is_symlink() for p in files)


def other_readers() -> Iterator[Reader]:
    yield Reader("gesture-list", (b"class,startTime_usec,endTime_usec\n1,10,20\n11,30,4000\n",), _gestures)
    yield Reader("clip-cache", _cache_files(), _clips, share=0.5)


def _gestures(path: Path) -> object:
    shutil.copyfile(path, path.with_name("file_labels.csv"))
    return dvs_gesture.gesture_list(path)


CLIPS = np.arange(3 * 2 * 2 * 4 * 4).reshape(3, 2, 2, 4, 4) % 7


def _made() -> Iterator[tuple[int, np.ndarray]]:
    return iter(enumerate(CLIPS))


def _cache_files() -> tuple[bytes, ...]:
    """A cache entry's two files as one: damage hits either."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        cached_clips(Path(folder), "x", {}, 3, _made, shape=(2, 2, 4, 4))
        (entry,) = (p for p in Path(folder).iterdir() if p.is_dir())
        array, meta = (entry / "clips.npy").read_bytes(), (entry / "meta.json").read_bytes()
        # A forged entry: the checksum fits whatever the array became.
        return (len(array).to_bytes(4, "big") + array + meta, b"\xff" * 4 + array)


def _clips(path: Path) -> object:
    """Writes the damaged entry, opens it, and expects the clips: read or made again, but never others."""
    raw, root = path.read_bytes(), path.parent / "cache"
    shutil.rmtree(root, ignore_errors=True)
    cached_clips(root, "x", {}, 3, _made, shape=(2, 2, 4, 4))
    (entry,) = (p for p in root.iterdir() if p.is_dir())
    forged = raw[:4] == b"\xff" * 4
    length = len(raw) - 4 if forged else min(int.from_bytes(raw[:4], "big"), len(raw))
    (entry / "clips.npy").write_bytes(raw[4 : 4 + length])
    if forged:
        (entry / "meta.json").write_text(json.dumps({"sha256": file_sha256(entry / "clips.npy"), "settings": {}}))
    else:
        (entry / "meta.json").write_bytes(raw[4 + length :])
    actual = cached_clips(root, "x", {}, 3, _made, shape=(2, 2, 4, 4))
    assert actual.shape == CLIPS.shape and actual.dtype.kind in "uf"
    assert forged or np.array_equal(actual, CLIPS), "other clips than were written"
    return actual


def readers() -> tuple[Reader, ...]:
    """All readers of the data layer."""
    return (*event_readers(), *image_set_readers(), *image_readers(), *archive_readers(), *other_readers())


def run(count: int = 110_000, seed: int = 0, keep: Path | None = None, processes: int | None = None) -> list[Tally]:
    """Reads about `count` damaged files, shared out over all readers; prints the seed and a line per reader."""
    print(f"fuzzed readers: seed {seed}, {count} files", flush=True)
    chosen = readers()
    unit = count / sum(reader.share for reader in chosen)
    jobs = [(reader.name, 1 + int(unit * reader.share), seed, keep) for reader in chosen]
    tallies = []
    for tally in shared_out(_fuzzed, jobs, processes):
        tallies.append(tally)
        print(
            f"  {tally.kind:<16} {tally.tries:>7} files {tally.refused:>7} refused {tally.accepted:>7} read "
            f"{len(tally.failures):>3} failed",
            flush=True,
        )
    return tallies


def torture(scale: float, seed: int) -> list[Tally]:
    """The full number of damaged files times `scale`."""
    return run(round(110_000 * scale), seed)


def _fuzzed(job: tuple[str, int, int, Path | None]) -> Tally:
    name, count, seed, keep = job
    (reader,) = (reader for reader in readers() if reader.name == name)
    return fuzz(reader, count, seed, keep)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=110_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the files that made a reader fail")
    options = parser.parse_args()
    failures = [text for tally in run(options.count, options.seed, options.keep) for text in tally.failures]
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
