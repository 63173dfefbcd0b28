"""Fonts that can draw given texts: the default one, and others that have what it lacks."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from matplotlib.font_manager import FontProperties, findfont, fontManager
from matplotlib.ft2font import FT2Font

DEFAULT = "DejaVu Sans"
"""matplotlib's own font, which comes with it."""
BOXES = "Last Resort"
"""Fonts that have a box for every character there is, and no letter."""


def families_for(texts: Iterable[str]) -> tuple[list[str], set[str]]:
    """The fonts to draw texts with, the first of which has most; and the characters that no installed font has.

    Of several fonts that have the same number of the characters that are left, the first by name is taken.
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
    """What a font has glyphs for; nothing if it cannot be read."""
    if not Path(file).is_file():
        return frozenset()
    try:
        return frozenset(map(chr, FT2Font(file).get_charmap()))
    except RuntimeError:
        return frozenset()
