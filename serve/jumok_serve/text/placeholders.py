"""Placeholders of a text: what the model reads in their place, and their way into the translation.

The model reads a placeholder itself if it has few tokens, and else a short stand-in that it can copy. Copies in the
translation are replaced by the placeholder; surplus ones are left out, and missing ones are placed by alignment.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from jumok_serve.tasks.stand_ins import Hole, HoleFinder, StandIns
from jumok_serve.tasks.word_alignment import Place
from jumok_serve.text.holes import BIDI
from jumok_serve.text.messages import Branch, Message, parse_message, unescaped

MARK: Final = "\u200e"
"""Read in place of marks of direction: no token of usual tokenizers."""
_DIRECTION: Final = re.compile(f"[{BIDI}]+")
_COVER: Final = "\ufffc"
"""Object replacement character, in place of the placeholders of a message while others are looked for."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A placeholder of a text.

    Attributes:
        start, end: place of what the model reads.
        content: what the translation has.
        holes: its parts in the text as given; neighbours without a character between them are one placeholder.
        spliced: True if the model reads a stand-in.
    """

    start: int
    end: int
    content: str
    holes: tuple[Hole, ...]
    spliced: bool

    @property
    def place(self) -> Place:
        """Place of what the model reads."""
        return self.start, self.end

    def moved(self, characters: int) -> "Placeholder":
        """Return the placeholder that many characters further on."""
        return replace(self, start=self.start + characters, end=self.end + characters)


@dataclass(frozen=True, slots=True)
class ReadText:
    """A text as the model reads it.

    Attributes:
        text: the text with stand-ins.
        given: the text as given.
        placeholders: in their order.
        message: the message that the text is, whose other branches are texts of their own.
        branches: those texts.
    """

    text: str
    given: str = ""
    placeholders: tuple[Placeholder, ...] = ()
    message: Message | None = None
    branches: "tuple[ReadText, ...]" = ()

    def within(self, first: int, after: int) -> tuple[Placeholder, ...]:
        """Return the placeholders of a part, with places in it."""
        lo = bisect_left(self.placeholders, first, key=lambda one: one.start)
        hi = bisect_left(self.placeholders, after, key=lambda one: one.start)
        return tuple(one.moved(-first) for one in self.placeholders[lo:hi])

    def given_place(self, index: int) -> int:
        """Return the place in the text as given of one that is not inside of a placeholder."""
        number = bisect_right(self.placeholders, index, key=lambda one: one.end)
        if not number:
            return index
        last = self.placeholders[number - 1]
        return last.holes[-1].after + index - last.end

    def place(self, given: int) -> int:
        """Return the place of one in the text as given that is not inside of a placeholder."""
        number = bisect_right(self.placeholders, given, key=lambda one: one.holes[0].first)
        if not number:
            return given
        last = self.placeholders[number - 1]
        return last.start if given == last.holes[0].first else last.end + given - last.holes[-1].after

    def given_part(self, first: int, after: int) -> str:
        """Return a part of the text as given."""
        if not self.given:
            return self.text[first:after]
        return self.given[self.given_place(first) : self.given_place(after)]


@dataclass(frozen=True, slots=True)
class PlaceholderReader:
    """Reads texts with placeholders for a model.

    Attributes:
        finder: finds them; None: only those that a format knows are placeholders.
    """

    finder: HoleFinder | None
    stand_ins: StandIns

    def find(self, text: str) -> Sequence[Hole]:
        """Find the placeholders of a text."""
        return () if self.finder is None else self.finder.find(text)

    def read(self, text: str) -> ReadText:
        """Read a plain text."""
        holes = self.find(text)
        if not holes:
            return ReadText(text)
        message = parse_message(text) if any(hole.kind == "icu" for hole in holes) else None
        if message is None:
            return self.with_holes(text, holes)
        whole, *branches = (
            self.with_holes(text, self._of_branch(text, branch), branch[:2]) for branch in message.branches
        )
        return replace(whole, message=message, branches=tuple(branches))

    def _of_branch(self, text: str, branch: Branch) -> list[Hole]:
        """Return the placeholders of a message's branch: those of the message, and those in the texts between."""
        parts, position = list[str](), branch.first
        for hole in branch.holes:
            parts += (text[position : hole.first], _COVER * (hole.after - hole.first))
            position = hole.after
        between = "".join((*parts, text[position : branch.after]))
        found = (one for one in self.find(between) if _COVER not in between[one.first : one.after])
        moved = (one._replace(first=branch.first + one.first, after=branch.first + one.after) for one in found)
        return sorted([*branch.holes, *moved])

    def with_holes(
        self, text: str, holes: Sequence[Hole], branch: Place | None = None, edges: Collection[int] = ()
    ) -> ReadText:
        """Read a text with placeholders at known places.

        Args:
            branch: place of the branch of a message to read.
            edges: places that separate neighbours.
        """
        first, after = branch or (0, len(text))
        spelled = str if branch is None else unescaped
        parts, length, position, found = list[str](), 0, first, list[Placeholder]()
        stand_in = self.stand_ins.of(text)
        for group in _neighbours(holes, edges):
            parts.append(spelled(text[position : group[0].first]))
            length += len(parts[-1])
            position = group[-1].after
            content = group[0].content or text[group[0].first : position]
            spliced = bool(group[0].content) or not self.stand_ins.reads(content)
            read = MARK if _DIRECTION.fullmatch(content) else stand_in(group[0].first) if spliced else content
            parts.append(read)
            found.append(Placeholder(length, length + len(read), content, group, spliced))
            length += len(read)
        parts.append(spelled(text[position:after]))
        return ReadText("".join(parts), text if branch is None else "", tuple(found))


def joined_holes(holes: Sequence[Hole]) -> list[Hole]:
    """Return holes in their order; those that share a character are one."""
    joined = list[Hole]()
    for hole in sorted(holes, key=lambda one: (one.first, -one.after)):
        if joined and hole.first < joined[-1].after:
            joined[-1] = joined[-1]._replace(after=max(joined[-1].after, hole.after))
        else:
            joined.append(hole)
    return joined


def _neighbours(holes: Sequence[Hole], edges: Collection[int]) -> Iterator[tuple[Hole, ...]]:
    """Yield holes, together if there is no character between them."""
    group = list[Hole]()
    for hole in holes:
        if group and (group[-1].after < hole.first or hole.first in edges or group[-1].content or hole.content):
            yield tuple(group)
            group.clear()
        group.append(hole)
    if group:
        yield tuple(group)
