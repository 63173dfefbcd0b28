"""HTML: blocks of text with their inline tags are translated; all else stays."""

import re
from collections.abc import Iterator
from typing import Final

from jumok_proto.markup import MarkupRules
from jumok_serve.text.files.document import TAGS, FileFormat, Piece, has_letters, in_steps, refuse, text_within
from jumok_serve.text.markup.scanner import Kind, scan
from jumok_serve.text.markup.structure import find_structure, separate_parents

_CHARSET: Final = re.compile(r"(?i)<meta\s(?:[^>]*text/html;)?\s*charset\s*=\s*[\"']?(?!utf-?(?:8|16))([\w.:-]+)")
"""Charset of a page that is not Unicode, in the first 1,024 characters, where browsers look; XML says its own."""


def html_pieces(content: str) -> Iterator[Piece]:
    """Yield the pieces of a document; a tag without a partner separates texts.

    Raises:
        InvalidArgumentError: it declares a charset that is not Unicode.
    """
    if (declared := _CHARSET.search(content, 0, 1024)) and not content.startswith("<?xml"):
        refuse(content.count("\n", 0, declared.start(1)) + 1, f"convert it from {declared[1]} to UTF-8")
    tokens = yield from in_steps(scan(content, html=True))
    structure = find_structure(tokens, "html", MarkupRules())
    known = bytearray(len(tokens))  # tags with a partner, and tokens that are not translated
    for start, end in structure.ends.items():
        known[start] = known[end] = True
    for start, end in structure.ignored.items():
        known[start : end + 1] = b"\1" * (end + 1 - start)
    for index, token in enumerate(tokens):
        if token.kind in {Kind.START, Kind.END} and not known[index]:
            structure.separate[index] = True
    separate_parents(structure)
    run, letters, line, first_line = list[str](), False, 1, 1
    index = 0
    while index < len(tokens):
        token, first = tokens[index], index
        index = structure.ignored.get(index, index) + 1
        written = "".join(one.written for one in tokens[first:index])
        if any(structure.separate[first:index]):
            yield from text_within("".join(run), first_line, letters)
            yield written
            run, letters = [], False
        else:
            first_line = first_line if run else line
            run.append(written)
            letters = letters or (token.kind is Kind.TEXT and has_letters(written))
        line += written.count("\n")
    yield from text_within("".join(run), first_line, letters)


FORMATS: Final = {"html": FileFormat(html_pieces, "html", parts=TAGS)}
