"""EPUB: chapters are translated as HTML, with the table of contents and the title; all else stays."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from jumok_serve.text import archive
from jumok_serve.text.archive import Archive, Entry
from jumok_serve.text.files.document import TAGS, FileFormat, Pieces
from jumok_serve.text.files.office import PLAIN, PROPERTIES, checked_roots, xml_pieces
from jumok_serve.text.files.web import html_pieces

_ALGORITHM: Final = re.compile(rb"EncryptionMethod\s[^<>]*?Algorithm\s*=\s*[\"']([^\"']*)")
_FONTS: Final = {b"http://www.idpf.org/2008/embedding", b"http://ns.adobe.com/pdf/enc#RC"}
"""Algorithms that hide fonts, which stay."""
_READERS: Final[dict[str, Pieces]] = {
    "html:html": html_pieces,
    "ncx:ncx": partial(xml_pieces, PLAIN),
    "opf:package": partial(xml_pieces, PLAIN),
}


def _entries(content: Archive, properties: bool = True) -> Iterator[tuple[Entry, Pieces]]:
    roots = checked_roots("epub", content)
    for entry in content.entries:
        if entry.filename == "META-INF/encryption.xml":
            hidden = set(_ALGORITHM.findall(b"".join(content.inflated(entry))))
            if hidden - _FONTS:
                archive.refuse("the book is encrypted: give a copy without protection")
    readers = _READERS | ({"opf:package": partial(xml_pieces, PROPERTIES)} if properties else {})
    for entry in content.entries:
        if (pieces := readers.get(roots.get(entry.filename, ""))) is not None:
            yield entry, pieces


FORMATS: Final = {"epub": FileFormat(html_pieces, "html", parts=TAGS, entries=_entries)}
