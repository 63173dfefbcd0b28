"""Plain text: each line is a text."""

from collections.abc import Iterator

from jumok_serve.text.files.pieces import FileFormat, Piece, Text, has_letters, separate


def plain_pieces(content: str) -> Iterator[Piece]:
    """Yield the lines of a text, without white space at their ends, and all else."""
    for number, line in enumerate(content.split("\n"), start=1):
        if number > 1:
            yield "\n"
        before, text, after = separate(line)
        yield before
        if has_letters(text):
            yield Text(text, text, number, str)
        else:
            yield text
        yield after


PLAIN = FileFormat(plain_pieces)
