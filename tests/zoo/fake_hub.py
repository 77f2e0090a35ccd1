"""A hub on this computer: the few requests of huggingface_hub that uploads and downloads make."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeHub(ThreadingHTTPServer):
    """``commits``: the files of every commit of every repository, by repository and commit."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.commits: dict[str, dict[str, dict[str, bytes]]] = {}
        self.heads: dict[str, str] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, repository: str, files: dict[str, bytes]) -> str:
        """A new commit on main with ``files`` on top of those before."""
        before = self.commits.setdefault(repository, {}).get(self.heads.get(repository, ""), {})
        number = hashlib.sha1(f"{repository}{len(self.commits[repository])}".encode()).hexdigest()
        self.commits[repository][number] = {**before, **files}
        self.heads[repository] = number
        return number


class Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        """Says nothing."""

    def answer(self, content: bytes, kind: str = "application/json", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def json(self, content: Any) -> None:
        self.answer(json.dumps(content).encode())

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if parts := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repository, revision, name = parts.groups()
            commit = self.server.heads.get(repository, "") if revision == "main" else revision
            files = self.server.commits.get(repository, {}).get(commit)
            if files is None:
                return self.answer(b"", status=404, X_Error_Code="RepoNotFound")
            if name not in files:
                return self.answer(b"", status=404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            tag = f'"{hashlib.sha1(files[name]).hexdigest()}"'
            return self.answer(files[name], "application/octet-stream", ETag=tag, X_Repo_Commit=commit)
        if parts := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/.*)?", path):
            commit = self.server.heads.get(parts[1], "")
            names = [{"rfilename": name} for name in self.server.commits.get(parts[1], {}).get(commit, {})]
            return self.json({"id": parts[1], "modelId": parts[1], "sha": commit, "siblings": names})
        return self.json({})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length")
        body = self.rfile.read(int(length)) if length else self.chunks()
        if self.path.startswith("/api/repos/create"):
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'owner'}/{asked['name']}"
            self.server.commits.setdefault(name, {})
            return self.json({"url": f"{self.server.endpoint}/{name}", "name": name})
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            return self.json(
                {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
            )
        if parts := re.match(r"/api/models/([^/]+/[^/]+)/commit/", self.path):
            rows = [json.loads(line) for line in body.splitlines() if line.strip()]
            files = {r["value"]["path"]: base64.b64decode(r["value"]["content"]) for r in rows if r["key"] == "file"}
            number = self.server.commit(parts[1], files)
            url = f"{self.server.endpoint}/{parts[1]}/commit/{number}"
            return self.json({"success": True, "commitOid": number, "commitUrl": url, "hookOutput": ""})
        return self.json({})

    def chunks(self) -> bytes:
        """A body that comes in pieces."""
        body = b""
        while size := int(self.rfile.readline().strip() or b"0", 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body
