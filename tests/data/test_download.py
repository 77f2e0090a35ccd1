"""Downloads from a real (local) server: resumed, checked, never half-named."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyspike.data.download import Remote, fetch
from steadyspike.data.errors import DataError

CONTENT = bytes(range(256)) * 400
MD5 = hashlib.md5(CONTENT).hexdigest()

BROKEN = {
    "/chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\n" + CONTENT[:1000],
    "/status": b"HELLO WORLD\r\n\r\n",
    "/header": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
}


class Handler(http.server.BaseHTTPRequestHandler):
    """/file serves ranges, /plain ignores them, /short closes early, /robot answers something else, /gone is a 404."""

    log: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        expected = self.headers.get("Range")
        self.log.append((self.path, expected))
        start = int(expected.split("=")[1].rstrip("-")) if expected and self.path == "/file" else 0
        if self.path == "/gone":
            return self.send_error(404)
        if self.path in BROKEN:
            self.wfile.write(BROKEN[self.path])
            return None
        if start >= len(CONTENT):
            return self.send_error(416)
        body = b"<html>a challenge</html>" if self.path == "/robot" else CONTENT[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:1000] if self.path == "/short" else body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    Handler.log = []
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", Handler.log
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_downloads_once(tmp_path: Path, server) -> None:  # type: ignore[no-untyped-def]
    url, log = server
    remote = Remote("a.bin", f"{url}/file", MD5)
    assert fetch(remote, tmp_path).read_bytes() == CONTENT
    fetch(remote, tmp_path)
    assert len(log) == 1
    assert not (tmp_path / "a.bin.part").exists()


@pytest.mark.parametrize("path", ["/file", "/plain"])
def test_continues_a_partial_file(tmp_path: Path, server, path: str) -> None:  # type: ignore[no-untyped-def]
    """With a server that honours ranges only the rest is sent; one that ignores them is read from the start."""
    url, log = server
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:5000])
    assert fetch(Remote("a.bin", url + path, MD5), tmp_path).read_bytes() == CONTENT
    assert log == [(path, "bytes=5000-")]


def test_a_part_of_another_file_is_thrown_away(tmp_path: Path, server) -> None:  # type: ignore[no-untyped-def]
    url, log = server
    (tmp_path / "a.bin.part").write_bytes(b"x" * 5000)
    assert fetch(Remote("a.bin", f"{url}/file", MD5), tmp_path).read_bytes() == CONTENT
    assert [expected for _, expected in log] == ["bytes=5000-", None]


def test_a_complete_part_is_taken(tmp_path: Path, server) -> None:  # type: ignore[no-untyped-def]
    url, _ = server
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    assert fetch(Remote("a.bin", f"{url}/file", MD5), tmp_path).read_bytes() == CONTENT


def test_a_broken_connection_keeps_what_came(tmp_path: Path, server) -> None:  # type: ignore[no-untyped-def]
    url, _ = server
    with pytest.raises(DataError, match="run again to continue"):
        fetch(Remote("a.bin", f"{url}/short", MD5), tmp_path)
    assert (tmp_path / "a.bin.part").read_bytes() == CONTENT[:1000]
    assert not (tmp_path / "a.bin").exists()
    assert fetch(Remote("a.bin", f"{url}/file", MD5), tmp_path).read_bytes() == CONTENT


def test_wrong_content_is_not_kept(tmp_path: Path, server) -> None:  # type: ignore[no-untyped-def]
    url, _ = server
    with pytest.raises(DataError, match=r"a\.bin: what .* is not the published file.*by hand"):
        fetch(Remote("a.bin", f"{url}/robot", MD5), tmp_path)
    assert not (tmp_path / "a.bin").exists() and not (tmp_path / "a.bin.part").exists()


def test_a_file_with_another_hash_is_named_and_left_alone(tmp_path: Path, server) -> None:  # type: ignore[no-untyped-def]
    url, log = server
    (tmp_path / "a.bin").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"a\.bin: has md5 .* is expected"):
        fetch(Remote("a.bin", f"{url}/file", MD5), tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == b"mine" and log == []


def test_unreachable_and_missing(tmp_path: Path, server) -> None:  # type: ignore[no-untyped-def]
    url, _ = server
    with pytest.raises(DataError, match="404"):
        fetch(Remote("a.bin", f"{url}/gone", MD5), tmp_path)
    with pytest.raises(DataError, match="failed"):
        fetch(Remote("a.bin", "http://127.0.0.1:1/x", MD5), tmp_path)


@pytest.mark.parametrize("path", BROKEN)
def test_servers_that_break_the_protocol(tmp_path: Path, server, path: str) -> None:  # type: ignore[no-untyped-def]
    url, _ = server
    with pytest.raises(DataError, match=r"a\.bin: download from .* failed \(.+\); run again"):
        fetch(Remote("a.bin", url + path, MD5), tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file/below/a\.bin: cannot be written \("):
        fetch(Remote("a.bin", "http://127.0.0.1:1/x", MD5), tmp_path / "file" / "below")
