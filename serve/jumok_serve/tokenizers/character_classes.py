"""Classes of characters for regular expressions."""

from collections.abc import Iterable
from itertools import groupby


def ranges(characters: Iterable[str]) -> str:
    """Return letters, digits or marks as ranges of a class; a search in thousands of single ones is slow."""
    codes = sorted(set(map(ord, characters)))
    runs = [list(run) for _, run in groupby(enumerate(codes), key=lambda pair: pair[1] - pair[0])]
    return "".join(f"{chr(run[0][1])}-{chr(run[-1][1])}" for run in runs)
