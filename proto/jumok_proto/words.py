"""Words of sub-word pieces, found by how tokenizers spell the pieces."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_WITHOUT_SPACES = re.compile(
    "["
    "\u0e00-\u0fff"  # Thai, Lao, Tibetan
    "\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf"  # Burmese, Khmer, Tai
    "\u2e80-\u312f\u31a0-\u31ff\u3400-\u9fff\uff00-\uff9f"  # Chinese and Japanese, their punctuation and wide letters
    "\ua9e0-\ua9ff\uaa60-\uaadf\uf900-\ufaff\U00020000-\U0003ffff"  # further characters of these scripts
    "]"
)
"""Characters of scripts that write no spaces between words."""
_ENDS_NO_WORD = frozenset({"Ps", "Pi"})
_BEGINS_NO_WORD = frozenset({"Pe", "Pf", "Po", "Mn", "Mc", "Me", "Lm"})
"""Categories of Unicode: closing punctuation, marks, and modifiers such as the long vowel of Katakana."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """The mark of word boundaries in pieces; without a mark, each piece is a word."""

    mark: str = ""
    at_end: bool = False
    """True if the mark ends pieces, False if it begins them."""
    inside: bool = False
    """True if the mark stands inside of words, False if it stands between words."""

    def marks(self, piece: str) -> bool:
        """True if the piece has the mark."""
        return bool(self.mark) and (piece.endswith(self.mark) if self.at_end else piece.startswith(self.mark))

    def continues(self, piece: str, before: str) -> bool:
        """True if the piece continues the word of the piece before it."""
        return bool(self.mark) and self.marks(before if self.at_end else piece) == self.inside

    def bare(self, piece: str) -> str:
        """Remove the mark of a piece."""
        return piece.removesuffix(self.mark) if self.at_end else piece.removeprefix(self.mark)


BYTE_LEVEL = Spelling("Ġ")
"""The spelling of GPT-2, which maps each byte of UTF-8 to a character."""
SPELLINGS = (
    Spelling("▁"),  # SentencePiece, and the Metaspace of Hugging Face's tokenizers
    BYTE_LEVEL,
    Spelling("##", inside=True),  # WordPiece
    Spelling("</w>", at_end=True),  # byte pair encoding as GPT's, CLIP's and others'
    Spelling("@@", at_end=True, inside=True),  # subword-nmt
    Spelling("▁", at_end=True),  # SentencePiece with white space as suffix
)
"""Spellings, in the order of search: pieces of one spelling may contain the mark of a later one."""


def spelling(pieces: Iterable[str]) -> Spelling:
    """Find the spelling of pieces; without marks, each piece is a word."""
    listed = tuple(pieces)
    return next((kind for kind in SPELLINGS if any(map(kind.marks, listed))), Spelling())


def words(pieces: Sequence[str], special: Sequence[bool], kind: Spelling) -> list[tuple[str, range]]:
    """Join pieces to words, which spaces separate; punctuation belongs to its word.

    Beside a character of a script without spaces, each piece is a word, unless a character has several pieces.

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
    found: list[tuple[str, range]] = []
    for joined in ranges:
        if special[joined.start]:
            found.append((pieces[joined.start], joined))
            continue
        contents = [_content(pieces[index], kind) for index in joined]
        for part in _without_spaces(contents):
            text = _text(contents[part.start : part.stop])
            found.append((text.strip() if kind == BYTE_LEVEL else text, joined[part.start : part.stop]))
    return found


def _without_spaces(contents: Sequence[bytes]) -> Iterator[range]:
    """Split the pieces of a word between characters of scripts without spaces."""
    start = 0
    for end in range(1, len(contents)):
        before, after = _text(contents[start:end]), _text(contents[end:])
        if before and after and not _continues_character(contents[end]) and _splits(before[-1], after[0]):
            yield range(start, end)
            start = end
    if contents:
        yield range(start, len(contents))


def _splits(before: str, after: str) -> bool:
    """True if a word may end between two characters."""
    if unicodedata.category(before) in _ENDS_NO_WORD or unicodedata.category(after) in _BEGINS_NO_WORD:
        return False
    return bool(_WITHOUT_SPACES.match(before) or _WITHOUT_SPACES.match(after))


def _continues_character(content: bytes) -> bool:
    """True if bytes begin inside a character of UTF-8."""
    return content[:1] != b"" and content[0] & 0xC0 == 0x80


def _content(piece: str, kind: Spelling) -> bytes:
    """Encode a piece in UTF-8, without its mark."""
    bare = kind.bare(piece)
    if kind == BYTE_LEVEL:  # other characters than those that stand for bytes stay
        table = _byte_characters()
        return b"".join(bytes([table[one]]) if one in table else one.encode() for one in bare)
    # SentencePiece can spell an unknown character as its bytes.
    byte = _BYTE.fullmatch(piece)
    return bytes.fromhex(byte[1]) if byte else bare.encode()


def _text(contents: Iterable[bytes]) -> str:
    return b"".join(contents).decode("utf-8", errors="replace")


@cache
def _byte_characters() -> dict[str, int]:
    """Map GPT-2's characters to bytes: printable Latin-1 to itself, others from U+0100.

    See ``bytes_to_unicode`` of https://github.com/openai/gpt-2/blob/master/src/encoder.py.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
