"""Plain text: each line is a text."""

from collections.abc import Iterator

from jumok_serve.text.files.pieces import FileFormat, Parts, Piece, Text, has_letters, separate


def plain_pieces(content: str) -> Iterator[Piece]:
    """Yield the lines of a text, without white space at their ends, and all else."""
    start, number = 0, 1
    while True:
        end = content.find("\n", start)
        line = content[start:] if end < 0 else content[start:end]
        before, text, after = separate(line)
        del line  # it takes memory, as much as the text
        yield before
        if has_letters(text):
            yield Text(text, text, number, str)
        else:
            yield text
        yield after
        if end < 0:
            return
        yield "\n"
        start, number = end + 1, number + 1


PLAIN = FileFormat(plain_pieces, parts=Parts(name="lines", marks="", size=0, most=0), copies=3)
