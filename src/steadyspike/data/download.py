"""Downloads that can be resumed: a partial file is continued, checked by its hash, and only then renamed."""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steadyspike.data.cache import lock
from steadyspike.data.decompress import DAMAGE, Unpacked, budget
from steadyspike.data.errors import DataError, brief, disk_errors
from steadyspike.data.events import regular_size

BLOCK = 1 << 20
# The largest download has 1.1 GB. With this limit, a server that never stops sending cannot fill the disk.
MOST_BYTES = 1 << 32


@dataclass(frozen=True)
class Remote:
    """A file of a public data set: its name on disk, address and md5.

    unpacked: the md5 is that of the bytes inside a compressed file. Compressing a file again changes its header, so the
    compressed bytes of two published copies may differ.
    """

    name: str
    url: str
    md5: str
    unpacked: bool = False


def md5_of(path: Path, unpacked: bool = False) -> str:
    """Returns the md5 of a file, or of its unpacked content."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with disk_errors(path, "cannot be read"), open(path, "rb") as file:
            stream = Unpacked(file, path, budget(regular_size(path))) if unpacked else file
            while block := stream.read(BLOCK):
                digest.update(block)
    except DAMAGE as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"is damaged or truncated ({brief(error)})", path) from error
    return digest.hexdigest()


def check_md5(path: Path, remote: Remote) -> None:
    """Raises DataError unless the file has the md5 that its publisher states."""
    if (digest := md5_of(path, remote.unpacked)) != remote.md5:
        raise DataError(
            f"has md5 {digest}{' unpacked' if remote.unpacked else ''}, but {remote.md5} is expected: the file is "
            "damaged, truncated or another one. It was not changed: put the published file "
            f"(from {remote.url}) in its place, or use another data folder",
            path,
        )


def fetch(remote: Remote, folder: Path, timeout: float = 30.0) -> Path:
    """Returns the file in `folder`.

    Downloads it, or continues a partial download, unless it is there with the right hash.

    If a connection breaks, the bytes received so far stay in `<name>.part`. A file with a wrong hash is never kept.
    """
    target = folder / remote.name
    with disk_errors(target), lock(folder / f".{remote.name}.lock"):
        if target.exists():
            check_md5(target, remote)
            return target
        part = folder / f"{remote.name}.part"
        continued = part.exists() and part.stat().st_size > 0
        _receive(remote, part, timeout)
        if continued and not _matches(part, remote):
            part.unlink()  # the existing partial file is damaged or belongs to another file: start again
            _receive(remote, part, timeout)
        if not _matches(part, remote):
            part.unlink()
            raise DataError(
                f"what {remote.url} answered is not the published file (wrong md5); download it by hand to {target}",
                target,
            )
        os.replace(part, target)
    return target


def _matches(part: Path, remote: Remote) -> bool:
    try:
        return md5_of(part, remote.unpacked) == remote.md5
    except DataError:
        return False


class _NoPlainRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, except those from https to an address without https."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise urllib.error.URLError(f"it redirects to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _receive(remote: Remote, part: Path, timeout: float) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(remote.url, headers={"User-Agent": "steadyspike"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.build_opener(_NoPlainRedirects).open(request, timeout=timeout) as answer:
            resumed = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            length = answer.headers.get("Content-Length")
            expected = None if length is None else int(length) + (have if resumed else 0)
            _copy(answer, part, have if resumed else 0, expected, remote.name)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # nothing left to send: the partial file is complete, or too long
            return
        raise DataError(f"{remote.url} answered {error.code} {error.reason}; download it by hand", part) from error
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
        raise DataError(
            f"download from {remote.url} failed ({reason}); run again to continue it, or put the file there by hand",
            part.with_name(remote.name),
        ) from error
    if expected is not None and part.stat().st_size < expected:
        raise DataError(
            f"the connection ended after {part.stat().st_size} of {expected} bytes; run again to continue", part
        )


def _copy(answer: Any, part: Path, start: int, total: int | None, name: str) -> None:
    show = _progress(name, start, total)
    received = start
    with open(part, "ab" if start else "wb") as sink:
        while block := answer.read(BLOCK):
            received += len(block)
            if received > MOST_BYTES:
                raise ValueError(f"it sends more than {MOST_BYTES} bytes")
            sink.write(block)
            show(len(block))
    show(-1)


def _progress(name: str, start: int, total: int | None) -> Callable[[int], None]:
    """Returns a function that is called with the size of every block (-1 at the end).

    It shows a progress bar on a terminal and does nothing otherwise.
    """
    if not sys.stderr.isatty():
        return lambda size: None
    try:
        from tqdm import tqdm
    except ImportError:
        return lambda size: None
    bar = tqdm(total=total, initial=start, unit="B", unit_scale=True, desc=name)
    return lambda size: bar.close() if size < 0 else (bar.update(size), None)[1]
