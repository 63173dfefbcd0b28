"""Fonts for given texts: the default font, and others for characters that it lacks."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from matplotlib.font_manager import FontProperties, findfont, fontManager
from matplotlib.ft2font import FT2Font

DEFAULT = "DejaVu Sans"
"""The font that comes with matplotlib."""
BOXES = "Last Resort"
"""Fonts with a box for every character, and no letters."""

COLOURED = frozenset({b"CBDT", b"COLR", b"SVG ", b"sbix"})
"""Tables of coloured glyphs, which matplotlib cannot draw, or draws empty."""


def families_for(texts: Iterable[str]) -> tuple[list[str], set[str]]:
    """Choose fonts for texts, and return the characters that no installed font has.

    Each added font has most of the characters that are still missing. Of equal fonts the first by name counts.
    """
    left = {character for text in texts for character in text} - _characters(findfont(FontProperties(family=[DEFAULT])))
    families = [DEFAULT]
    others = sorted({(font.name, font.fname) for font in fontManager.ttflist if not font.name.startswith(BOXES)})
    while left:
        name, file = max(others, key=lambda font: len(left & _characters(font[1])), default=("", ""))
        if not file or not left & _characters(file):
            break
        families.append(name)
        left -= _characters(findfont(FontProperties(family=[name])))
        others.remove((name, file))
    return families, left


@cache
def _characters(file: str) -> frozenset[str]:
    """Give the characters of a font; none if it cannot be read or its glyphs are coloured pictures."""
    if not Path(file).is_file() or _tables(file) & COLOURED:
        return frozenset()
    try:
        return frozenset(map(chr, FT2Font(file).get_charmap()))
    except RuntimeError:
        return frozenset()


def _tables(file: str) -> frozenset[bytes]:
    """Give the names of a font's tables; none if it is no TrueType or OpenType font."""
    with open(file, "rb") as stream:
        head = stream.read(16)
        if head[:4] == b"ttcf":  # a collection begins with the places of its fonts
            stream.seek(int.from_bytes(head[12:16], "big"))
            head = stream.read(12)
        else:
            stream.seek(12)
        records = stream.read(16 * int.from_bytes(head[4:6], "big"))
    return frozenset(records[start : start + 4] for start in range(0, len(records), 16))
