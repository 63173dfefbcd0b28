"""Files that are translated over HTTP, and their results, which are kept for a while within bounds."""

import asyncio
import hmac
import math
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote
from uuid import uuid4

from starlette.responses import Response

from jumok_proto.errors import OverloadedError
from jumok_serve.http.multipart import Upload
from jumok_serve.share import RETRY_AFTER_S

MAX_KEPT_BYTES: Final = 2**26
"""Bytes of all files that are translated, and of results; one caller may have half."""
MAX_KEPT: Final = 1024
KEPT_S: Final = 3600.0
"""Seconds for which a result is kept."""


@dataclass(eq=False, slots=True)
class Document:
    """A file that is translated, and its result.

    Attributes:
        owner: key of the sender's token; empty without tokens.
        held: bytes that it takes.
        problems: texts that stay as they are, as ``part:line: reason``.
        ended: set once it is translated, or has failed.
        error: the reason why it failed; empty: it has not.
        share: share of its texts that are translated.
    """

    name: str
    owner: str
    held: int
    id: str = field(default_factory=lambda: uuid4().hex)
    key: str = field(default_factory=lambda: uuid4().hex)
    content: bytearray = field(default_factory=bytearray)
    problems: list[str] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    error: str = ""
    share: float = 0.0
    begun_s: float = field(default_factory=time.monotonic)
    last_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> int:
        """Seconds that are left, if the rest takes as long as what is done."""
        return math.ceil((time.monotonic() - self.begun_s) * (1 / max(self.share, 0.01) - 1))

    def response(self) -> Response:
        """Return its bytes."""
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(self.name, safe='')}"}
        return Response(bytes(self.content), media_type="application/octet-stream", headers=headers)


class Documents:
    """Documents that are translated or kept, within bounds; event loop only."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Document] = OrderedDict()

    def open(self, upload: Upload, owner: str) -> Document:
        """Add a document.

        Raises:
            OverloadedError: there is no room, also without the caller's results that are kept.
        """
        document = Document(PurePosixPath(upload.name.replace("\\", "/")).name, owner, len(upload.content))
        self._make_room(document, document.held)
        self._kept[document.id] = document
        return document

    def find(self, name: str, owner: str | None, key: str | None) -> Document | None:
        """Return a document; None: there is none that the caller may have.

        Args:
            owner, key: those of the caller; None: the id, which cannot be guessed, is enough.
        """
        self._forget_old()
        found = self._kept.get(name)
        if found is None or (owner is not None and owner != found.owner):
            return None
        return found if key is None or hmac.compare_digest(key.encode(), found.key.encode()) else None

    def add(self, document: Document, content: bytes) -> None:
        """Add bytes of a result; raises as `open`."""
        self._make_room(document, len(content))
        document.held += len(content)
        document.content += content

    def end(self, document: Document, error: str = "") -> None:
        """Note that a document is translated, or has failed."""
        if error:
            document.content.clear()
        document.held, document.error, document.last_s = len(document.content), error, time.monotonic()
        document.ended.set()

    def drop(self, document: Document) -> None:
        """Forget a document."""
        self._kept.pop(document.id, None)

    def _forget_old(self) -> None:
        now = time.monotonic()
        for one in [one for one in self._kept.values() if one.ended.is_set() and now > one.last_s + KEPT_S]:
            self.drop(one)

    def _make_room(self, document: Document, size: int) -> None:
        self._forget_old()
        own = [one for one in self._kept.values() if one.owner == document.owner and one is not document]
        held = sum(one.held for one in self._kept.values())
        of_owner = sum(one.held for one in own) + (document.held if document.id in self._kept else 0)
        for one in own:
            if of_owner + size <= MAX_KEPT_BYTES // 2 and held + size <= MAX_KEPT_BYTES and len(own) < MAX_KEPT // 2:
                break
            if one.ended.is_set():
                self.drop(one)
                own = own[1:]
                of_owner, held = of_owner - one.held, held - one.held
        if of_owner + size > MAX_KEPT_BYTES // 2 or held + size > MAX_KEPT_BYTES or len(self._kept) >= MAX_KEPT:
            raise OverloadedError("too many files are translated or kept: fetch results", retry_after_s=RETRY_AFTER_S)
