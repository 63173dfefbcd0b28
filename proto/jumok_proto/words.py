"""Words of sub-word pieces, found by how tokenizers spell the pieces."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class Spelling:
    """The mark of word boundaries in pieces; at most one field is set."""

    initial: str = ""
    """Begins the first piece of a word, as SentencePiece's ``▁`` does."""
    inner: str = ""
    """Begins each piece of a word but the first, as WordPiece's ``##`` does."""
    final: str = ""
    """Ends the last piece of a word, as ``</w>`` does."""
    unfinished: str = ""
    """Ends each piece of a word but the last, as subword-nmt's ``@@`` does."""

    @property
    def mark(self) -> str:
        """The mark, or empty."""
        return self.initial or self.inner or self.final or self.unfinished

    def marks(self, piece: str) -> bool:
        """True if the piece has the mark."""
        if self.initial or self.inner:
            return piece.startswith(self.mark)
        return bool(self.mark) and piece.endswith(self.mark)

    def continues(self, piece: str, before: str) -> bool:
        """True if the piece continues the word of the piece before it."""
        if self.initial:
            return not self.marks(piece)
        if self.inner:
            return self.marks(piece)
        if self.final:
            return not self.marks(before)
        return bool(self.unfinished) and self.marks(before)

    def bare(self, piece: str) -> str:
        """Remove the mark of a piece."""
        if not self.marks(piece):
            return piece
        return piece.removeprefix(self.mark) if self.initial or self.inner else piece.removesuffix(self.mark)


BYTE_LEVEL = Spelling(initial="Ġ")
"""The spelling of GPT-2, which maps each byte of UTF-8 to a character."""
SPELLINGS = (
    Spelling(initial="▁"),  # SentencePiece, and the Metaspace of Hugging Face's tokenizers
    BYTE_LEVEL,
    Spelling(inner="##"),  # WordPiece
    Spelling(final="</w>"),  # byte pair encoding as GPT's, CLIP's and others'
    Spelling(unfinished="@@"),  # subword-nmt
    Spelling(final="▁"),  # SentencePiece with white space as suffix
)
"""Spellings, in the order of search: pieces of one spelling may contain the mark of a later one."""


def spelling(pieces: Iterable[str]) -> Spelling:
    """Find the spelling of pieces; without marks, each piece is a word."""
    listed = tuple(pieces)
    return next((kind for kind in SPELLINGS if any(map(kind.marks, listed))), Spelling())


def words(pieces: Sequence[str], special: Sequence[bool], kind: Spelling) -> list[tuple[str, range]]:
    """Join pieces to words, which spaces separate; punctuation belongs to its word.

    Args:
        pieces: pieces in the order of the text.
        special: True for each piece that is a special token, which is always a separate word.
        kind: spelling of the pieces.

    Returns:
        Each word with the range of its pieces.
    """
    ranges: list[range] = []
    for index, piece in enumerate(pieces):
        alone = index == 0 or special[index] or special[index - 1]
        if alone or not kind.continues(piece, pieces[index - 1]):
            ranges.append(range(index, index + 1))
        else:
            ranges[-1] = range(ranges[-1].start, index + 1)
    return [
        (pieces[one.start] if special[one.start] else _join((pieces[index] for index in one), kind), one)
        for one in ranges
    ]


def _join(pieces: Iterable[str], kind: Spelling) -> str:
    if kind == BYTE_LEVEL:
        return _from_bytes("".join(pieces)).strip()
    # SentencePiece can spell an unknown character as its bytes.
    content = b"".join(
        bytes.fromhex(byte[1]) if (byte := _BYTE.fullmatch(piece)) else kind.bare(piece).encode() for piece in pieces
    )
    return content.decode("utf-8", errors="replace")


def _from_bytes(spelled: str) -> str:
    """Decode characters that each stand for a byte; other characters stay."""
    table = _byte_characters()
    content = b"".join(bytes([table[character]]) if character in table else character.encode() for character in spelled)
    return content.decode("utf-8", errors="replace")


@cache
def _byte_characters() -> dict[str, int]:
    """Map GPT-2's characters to bytes: printable Latin-1 to itself, others from U+0100.

    See ``bytes_to_unicode`` of https://github.com/openai/gpt-2/blob/master/src/encoder.py.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
