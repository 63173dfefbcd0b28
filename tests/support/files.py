"""Files that are read and written without a model."""

import os
from collections.abc import Callable

from hypothesis import settings

from jumok_serve.text.files.document import FileDocument, Text, known_formats

THOROUGH = bool(os.environ.get("JUMOK_TEST_THOROUGH"))

made = settings(max_examples=10_000 if THOROUGH else 60, deadline=None)
"""Number of files that Hypothesis makes."""


def read_file(
    data: bytes | bytearray, name: str = "", file_format: str = "", *, properties: bool = False
) -> FileDocument:
    """Read a file in all its steps; a bytearray is emptied."""
    content = data if isinstance(data, bytearray) else bytearray(data)
    steps = FileDocument.read(content, name, file_format, properties=properties)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: FileDocument = end.value
            return found


def written(document: FileDocument, translate: Callable[[str], str] = str) -> bytes:
    """The bytes of a file with translated texts; by default with the texts themselves."""
    writer, out = document.writer(), bytearray()
    for piece in document.pieces():
        out += writer.add(piece.write(translate(piece.content)) if isinstance(piece, Text) else piece)
    return bytes(out + writer.finish())


def texts(content: str, name: str) -> list[Text]:
    """The texts of a file."""
    return [piece for piece in known_formats()[name].pieces(content) if isinstance(piece, Text)]


def rewritten(content: str, name: str, translate: Callable[[str], str] = str) -> str:
    """The file with translated texts; by default with the texts themselves."""
    return "".join(
        piece if isinstance(piece, str) else piece.write(translate(piece.content))
        for piece in known_formats()[name].pieces(content)
    )
