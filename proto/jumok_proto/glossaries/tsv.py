"""Entries of a glossary as text: source term, tab, target terms in each line."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

_SHOWN: Final = 40
"""Characters of a term in a message."""
_MAX_SPLIT: Final = 64
"""Target terms that are told apart: more than a glossary takes."""


class GlossaryLine(NamedTuple):
    """An entry of a glossary, and the number of its line from 1."""

    number: int
    source: str
    targets: tuple[str, ...]


def read_tsv(text: str) -> Iterator[GlossaryLine]:
    """Read entries: source term, tab, target term; more target terms follow after tabs.

    Empty lines, and lines that begin with #, are left out.

    Raises:
        ValueError: a line has no target term, an empty term, or the source term of another line.
    """
    numbers: dict[str, int] = {}
    for number, line in enumerate(io.StringIO(text.removeprefix("\ufeff"), newline="\n"), start=1):
        if line.startswith("#") or not (line.strip() or "\t" in line):
            continue
        source, *targets = map(str.strip, line.split("\t", _MAX_SPLIT))
        if not targets:
            raise ValueError(f"line {number} needs a source term, a tab and a target term")
        if not source or not all(targets):
            raise ValueError(f"line {number} has an empty term: write it, or leave the line or the tab out")
        first = numbers.setdefault(" ".join(source.split()).casefold(), number)
        if first != number:
            raise ValueError(
                f"line {number} has the source term of line {first}, {_shown(source)}: put all target terms into one "
                "line, with tabs between them"
            )
        yield GlossaryLine(number, source, tuple(dict.fromkeys(targets)))


def write_tsv(entries: Mapping[str, str | Sequence[str]]) -> str:
    """Write entries as text that `read_tsv` reads.

    Raises:
        ValueError: a term has a tab or a line break.
    """
    lines = []
    for source, targets in entries.items():
        terms = [source, *([targets] if isinstance(targets, str) else targets)]
        for term in terms:
            if not isinstance(term, str):
                raise ValueError(f"a term of the entry {_shown(source)} must be a str, got {type(term).__name__}")
            if any(character in term for character in "\t\r\n"):
                raise ValueError(f"the term {_shown(term)} has a tab or a line break")
        comment = " " if source.startswith(("#", "\ufeff")) else ""
        lines.append(comment + "\t".join(terms) + "\n")
    return "".join(lines)


def _shown(term: object) -> str:
    text = str(term)
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
