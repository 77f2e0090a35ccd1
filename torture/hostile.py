"""Small files that ask for large amounts of memory or time, one function per trick; each returns the file's path."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
from tests.data.samples import aedat4_bytes, recording

from torture.limits import MIB


def _doubled(depth: int) -> bytes:
    """Pickle operations for a tuple of a tuple twice, `depth` levels deep: 2^depth parts to hash or to print."""
    levels = b"".join(b"0h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(1, depth))
    return b"K\x01\x85q\x01" + levels


def nested_key(path: Path, depth: int = 40) -> Path:
    """A dict whose key is such a tuple."""
    path.write_bytes(b"\x80\x02}q\x00" + _doubled(depth) + b"K\x01s.")
    return path


def nested_value(path: Path, depth: int = 40) -> Path:
    """A dict that holds such a tuple where an array is expected: it must not be printed either."""
    path.write_bytes(b"\x80\x02}q\x00U\x04data" + _doubled(depth) + b"s.")
    return path


def encoded_again_and_again(path: Path, times: int = 20_000) -> Path:
    """A pickle that turns one text of 100 kB into bytes `times` times over: 2 GB from 200 kB."""
    text = b"X" + struct.pack("<I", 100_000) + b"a" * 100_000
    start = b"\x80\x02]q\x00c_codecs\nencode\nq\x01" + text + b"U\x06latin1\x86q\x0200("
    path.write_bytes(start + b"h\x01h\x02R" * times + b"e.")
    return path


def png(path: Path, width: int, height: int, bits: int) -> Path:
    """A grey PNG of zeros, written row by row, so that making it costs no memory."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer, row = zlib.compressobj(1), bytes(1 + width * bits // 8)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b""))
    return path


def zstd_zeros(blocks: int) -> bytes:
    """A zstd frame of `blocks` runs of 128 KiB zeros, four bytes each."""
    run = [struct.pack("<I", ((1 << 17) << 3 | 1 << 1 | (i == blocks - 1)))[:3] + b"\0" for i in range(blocks)]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(run)


def zstd_plain(raw: bytes) -> bytes:
    """A zstd frame that stores `raw` as it is (at most 128 KiB)."""
    return b"\x28\xb5\x2f\xfd\x00\x58" + struct.pack("<I", len(raw) << 3 | 1)[:3] + raw


def aedat4_packed(packets: list[bytes], compression: int, events: int = 5) -> bytes:
    """An .aedat4 file of compressed packets: the header of a plain one with another compression."""
    plain = aedat4_bytes(recording(events))
    (length,) = struct.unpack_from("<I", plain, 14)
    header = bytearray(plain[18 : 18 + length])
    (table,) = struct.unpack_from("<I", header)
    struct.pack_into("<i", header, table + 4, compression)
    body = b"".join(struct.pack("<II", 0, len(packet)) + packet for packet in packets)
    return plain[:14] + struct.pack("<I", length) + bytes(header) + body


def aedat4_packet(events: int = 5) -> bytes:
    """The bytes of one unpacked event packet."""
    plain = aedat4_bytes(recording(events))
    (length,) = struct.unpack_from("<I", plain, 14)
    return plain[18 + length + 8 :]


def aedat4_zstd_bomb(path: Path, blocks: int = 32_000) -> Path:
    path.write_bytes(aedat4_packed([zstd_zeros(blocks)], 3))
    return path


def aedat4_times(path: Path, time: int) -> Path:
    """Five events of which the last has the time `time`."""
    raw = aedat4_bytes(recording(5))
    path.write_bytes(raw[:-16] + struct.pack("<q", time) + raw[-8:])
    return path


def long_header(path: Path, kind: bytes, size: int = 256 * MIB) -> Path:
    """A .tar.gz whose first header announces `size` bytes of zeros as a file name, and has them."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(size // MIB):
            out.write(bytes(MIB))
    return path


def gz_zeros(path: Path, size: int = 600 * MIB) -> Path:
    """An idx.gz file of one image of `size` zeros."""
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(bytes([0, 0, 8, 1]) + struct.pack(">I", size))
        for _ in range(size // MIB):
            out.write(bytes(MIB))
    return path


def empty_members(path: Path, count: int = 40_000) -> Path:
    """A .tar.gz or .zip of `count` empty files."""
    if path.suffix == ".zip":
        head = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, 6, 0)
        local = [head + b"%06x" % i for i in range(count)]
        at = np.cumsum([0, *map(len, local)])
        entry = struct.pack("<4s6H3I5H", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, 6, 0, 0, 0, 0)
        central = [entry + struct.pack("<II", 0, int(at[i])) + b"%06x" % i for i in range(count)]
        directory = b"".join(central)
        # More than 65,535 members: the count wraps, and readers go by the directory's size.
        end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count & 0xFFFF, count & 0xFFFF, len(directory), int(at[-1]), 0)
        path.write_bytes(b"".join(local) + directory + end)
        return path
    block = bytearray(tarfile.TarInfo("000000").tobuf(tarfile.USTAR_FORMAT))
    base = sum(block[:148]) + sum(block[156:]) + 8 * 32 - sum(b"000000")
    with gzip.open(path, "wb", compresslevel=1) as out:
        for start in range(0, count, 1000):
            parts = []
            for i in range(start, min(start + 1000, count)):
                name = b"%06x" % i
                block[:6], block[148:156] = name, b"%06o\0 " % (base + sum(name))
                parts.append(bytes(block))
            out.write(b"".join(parts))
        out.write(bytes(1024))
    return path


def deep_folders(path: Path, members: int = 50, depth: int = 1000) -> Path:
    """Members that each lie in a thousand folders of their own."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for number in range(members):
            bundle.writestr(f"{number}/" + "a/" * depth + "file", b"x")
    return path


def xz_dictionary(path: Path) -> Path:
    """A small .tar.xz that asks for 1.5 GiB of memory to unpack it."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a"), io.BytesIO())
    # Only the decoder's dictionary is large: the encoder gets a small one, and the header is rewritten.
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 16}]
    packed = bytearray(lzma.compress(raw.getvalue(), format=lzma.FORMAT_XZ, filters=filters))
    at = packed.index(b"\x21\x01", 12) + 2
    packed[at] = 39
    size = 4 * (packed[12] + 1)
    packed[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(bytes(packed[12 : 12 + size - 4])))
    path.write_bytes(bytes(packed))
    return path


def sparse_member(path: Path) -> Path:
    """A tar whose member claims a hole of 1 TiB by a pax header."""
    info = tarfile.TarInfo("a")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO())
    return path


def old_sparse_member(path: Path) -> Path:
    """A tar with a sparse file in GNU's old way."""
    info = tarfile.TarInfo("a")
    info.type = tarfile.GNUTYPE_SPARSE
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    return path


def large_member(path: Path, size: int = 256 * MIB) -> Path:
    """A .tar.gz or .zip of one file of `size` zeros."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as b, b.open("zeros", "w") as member:
            for _ in range(size // MIB):
                member.write(bytes(MIB))
        return path
    info = tarfile.TarInfo("zeros")
    info.size = size
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(size // MIB):
            out.write(bytes(MIB))
    return path


def zip_lie(path: Path) -> Path:
    """A zip whose directory claims that a member of four bytes unpacks to 4 GiB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("a", bytes(4))
    raw = bytearray(path.read_bytes())
    struct.pack_into("<I", raw, raw.index(b"PK\1\2") + 24, 0xFFFFFFFE)
    path.write_bytes(bytes(raw))
    return path
