"""Which sub-word pieces make which word: read off how tokenizers spell pieces."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a kind of tokenizer marks the pieces of a word; at most one mark is used."""

    initial: str = ""
    """Begins the first piece of a word, as SentencePiece's ``▁`` does."""
    inner: str = ""
    """Begins every piece of a word but the first, as WordPiece's ``##`` does."""
    final: str = ""
    """Ends the last piece of a word, as ``</w>`` does."""
    unfinished: str = ""
    """Ends every piece of a word but the last, as subword-nmt's ``@@`` does."""

    @property
    def mark(self) -> str:
        """The sign that is used."""
        return self.initial or self.inner or self.final or self.unfinished

    def marks(self, piece: str) -> bool:
        """Whether a piece has the mark."""
        if self.initial or self.inner:
            return piece.startswith(self.mark)
        return bool(self.mark) and piece.endswith(self.mark)

    def continues(self, piece: str, before: str) -> bool:
        """Whether a piece goes on with the word of the one before it."""
        if self.initial:
            return not self.marks(piece)
        if self.inner:
            return self.marks(piece)
        if self.final:
            return not self.marks(before)
        return bool(self.unfinished) and self.marks(before)

    def bare(self, piece: str) -> str:
        """A piece without its mark."""
        if not self.marks(piece):
            return piece
        return piece.removeprefix(self.mark) if self.initial or self.inner else piece.removesuffix(self.mark)


BYTE_LEVEL = Spelling(initial="Ġ")
"""GPT-2's, which spells the bytes of UTF-8 as characters of their own."""
SPELLINGS = (
    Spelling(initial="▁"),  # SentencePiece, and the Metaspace of Hugging Face's tokenizers
    BYTE_LEVEL,
    Spelling(inner="##"),  # WordPiece
    Spelling(final="</w>"),  # byte pair encoding as GPT's, CLIP's and others'
    Spelling(unfinished="@@"),  # subword-nmt
    Spelling(final="▁"),  # SentencePiece with white space as suffix
)
"""In the order in which they are looked for: text of one kind may hold the mark of one behind it."""


def spelling(pieces: Iterable[str]) -> Spelling:
    """The kind that has marked any of the pieces; where none has, every piece is a word of its own."""
    listed = tuple(pieces)
    return next((kind for kind in SPELLINGS if any(map(kind.marks, listed))), Spelling())


def words(pieces: Sequence[str], special: Sequence[bool], kind: Spelling) -> list[tuple[str, range]]:
    """The words of a text: what stands between spaces, punctuation included.

    Args:
        pieces: in the order of the text.
        special: for each whether it is none of the text; such a token is a word of its own, spelled as it is.
        kind: how they are spelled.

    Returns:
        Each word with the places of its pieces, which follow one another.
    """
    places: list[range] = []
    for index, piece in enumerate(pieces):
        alone = index == 0 or special[index] or special[index - 1]
        if alone or not kind.continues(piece, pieces[index - 1]):
            places.append(range(index, index + 1))
        else:
            places[-1] = range(places[-1].start, index + 1)
    return [
        (pieces[one.start] if special[one.start] else _join((pieces[index] for index in one), kind), one)
        for one in places
    ]


def _join(pieces: Iterable[str], kind: Spelling) -> str:
    if kind == BYTE_LEVEL:
        return _from_bytes("".join(pieces)).strip()
    # Of a character that it never saw, SentencePiece may write the bytes.
    content = b"".join(
        bytes.fromhex(byte[1]) if (byte := _BYTE.fullmatch(piece)) else kind.bare(piece).encode() for piece in pieces
    )
    return content.decode("utf-8", errors="replace")


def _from_bytes(spelled: str) -> str:
    """Text of characters that each stand for a byte; what is none of them stays."""
    table = _byte_characters()
    content = b"".join(bytes([table[character]]) if character in table else character.encode() for character in spelled)
    return content.decode("utf-8", errors="replace")


@cache
def _byte_characters() -> dict[str, int]:
    """The byte of every character of GPT-2's alphabet: printable Latin-1 is itself, other bytes follow from U+0100 on.

    See ``bytes_to_unicode`` of https://github.com/openai/gpt-2/blob/master/src/encoder.py.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
