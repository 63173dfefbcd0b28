"""A server that speaks the HTTP API of the Hugging Face Hub, with its faults."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_right"
LARGE = (".safetensors", ".bin", ".spm", ".model")
"""Endings of files that the hub keeps by their SHA-256 (Git LFS)."""


@dataclass
class Hub:
    """Models of a hub, and its faults.

    Attributes:
        models: folder of each model by name; its files are those of the one commit.
        gated: names of models that need the token.
        drop_after: bytes of a large file's content after which the first connection is dropped; None: never.
        damaged: name of a file whose content differs from its hash; None: none.
        sizes: sizes that the hub states, by file name, beside the real ones.
        requests: method, path and range of the requests so far.
    """

    models: dict[str, Path]
    gated: set[str] = field(default_factory=set)
    drop_after: int | None = None
    damaged: str | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    endpoint: str = ""

    def commit(self, name: str) -> str:
        """Return the commit of a model's files."""
        content = b"".join(file.read_bytes() for file in sorted(self.models[name].iterdir()))
        return hashlib.sha1(content, usedforsecurity=False).hexdigest()

    def environment(self, home: Path) -> dict[str, str]:
        """Return variables for a process that uses this hub and a cache folder."""
        return {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}


@contextmanager
def serve_hub(models: dict[str, Path]) -> Iterator[Hub]:
    """Serve folders as models, by name, until the block ends."""
    hub = Hub(models)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path, self.headers.get("Range")))
            found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path)
            if found is not None:
                self._describe(*found.groups())
                return
            found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            if found is not None:
                self._resolve(*found.groups(), body=body)
                return
            self._refuse(404, "EntryNotFound")

        def _describe(self, name: str, kind: str | None, revision: str | None) -> None:
            if not self._is_known(name, revision):
                return
            files = sorted(hub.models[name].iterdir())
            if kind == "tree":
                self._json([_entry(hub, file) for file in files])
            else:
                siblings = [_sibling(hub, file) for file in files]
                gated = "manual" if name in hub.gated else False
                self._json({"id": name, "sha": hub.commit(name), "siblings": siblings, "gated": gated, "tags": []})

        def _resolve(self, name: str, revision: str, filename: str, *, body: bool) -> None:
            if not self._is_known(name, revision):
                return
            if name in hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._refuse(401, "GatedRepo")
                return
            file = hub.models[name] / filename
            if not file.is_file():
                self._refuse(404, "EntryNotFound")
                return
            self._send(file, name, body=body)

        def _send(self, file: Path, name: str, *, body: bool) -> None:
            content = file.read_bytes()
            if file.name == hub.damaged:
                content = bytes([content[0] ^ 1]) + content[1:]
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("X-Repo-Commit", hub.commit(name))
            self.send_header("ETag", f'"{_blob(file)}"')
            self.end_headers()
            if not body:
                return
            if hub.drop_after is not None and file.name.endswith(LARGE):
                self.wfile.write(content[start : start + hub.drop_after])
                self.wfile.flush()
                self.close_connection = True
                hub.drop_after = None
                return
            self.wfile.write(content[start:])

        def _is_known(self, name: str, revision: str | None) -> bool:
            if name not in hub.models:
                self._refuse(401, "RepoNotFound")
                return False
            if revision not in {None, "main", "v1", hub.commit(name)}:
                self._refuse(404, "RevisionNotFound")
                return False
            return True

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _json(self, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _blob(file: Path) -> str:
    """Hash of a file's content: SHA-256 of large ones, Git's of others."""
    content = file.read_bytes()
    if file.name.endswith(LARGE):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _size(hub: Hub, file: Path) -> int:
    return hub.sizes.get(file.name, file.stat().st_size)


def _sibling(hub: Hub, file: Path) -> dict[str, Any]:
    size = _size(hub, file)
    lfs = {"sha256": _blob(file), "size": size, "pointerSize": 130} if file.name.endswith(LARGE) else None
    blob = hashlib.sha1(file.name.encode(), usedforsecurity=False).hexdigest() if lfs else _blob(file)
    described = {"rfilename": file.name, "size": size, "blobId": blob}
    return described | ({"lfs": lfs} if lfs else {})


def _entry(hub: Hub, file: Path) -> dict[str, Any]:
    size = _size(hub, file)
    entry = {"type": "file", "path": file.name, "size": size, "oid": _blob(file)}
    large = {"oid": _blob(file), "size": size, "pointerSize": 130}
    return entry | ({"lfs": large} if file.name.endswith(LARGE) else {})
