"""ICU messages: plural and select arguments, whose branches are texts of their own."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from jumok_serve.tasks.stand_ins import Hole

MAX_MESSAGE: Final = 2**18
"""Most characters of a message; longer texts are taken as plain ones."""


class Branch(NamedTuple):
    """A text of a message: the whole one, or a branch of a plural or select argument.

    Attributes:
        first, after: its place in the message.
        selector: `one`, `=0`, `female` and so on; empty for the whole message.
        holes: arguments, `#` and quoted text in it, at places in the message. A plural or select argument is one hole
            of kind `icu`.
        numbered: True if `#` stands for a number in it.
    """

    first: int
    after: int
    selector: str
    holes: list[Hole]
    numbered: bool


class Message(NamedTuple):
    """A message with plural or select arguments.

    Attributes:
        text: the message.
        branches: the whole message, then all branches in the order in which they begin.
    """

    text: str
    branches: Sequence[Branch]

    def written(self, parts: Sequence[Sequence[str | Hole]]) -> str:
        """Return the message with other texts.

        Args:
            parts: texts without escapes, and holes, by branch, [branches].
        """
        firsts = [branch.first for branch in self.branches]
        doubled = "''" in self.text
        output = list[str]()
        left = [*reversed(self._spelled(0, parts[0], doubled))]
        while left:
            part = left.pop()
            if isinstance(part, str):
                output.append(part)
            elif part.kind != "icu":
                output.append(self.text[part.first : part.after])
            else:
                pieces, position = list[str | Hole](), part.first
                number = bisect_right(firsts, position)
                while number < len(firsts) and firsts[number] < part.after:
                    branch = self.branches[number]
                    pieces += self.text[position : branch.first], *self._spelled(number, parts[number], doubled)
                    position = branch.after
                    number = bisect_left(firsts, position, number + 1)
                left += self.text[position : part.after], *reversed(pieces)
        return "".join(output)

    def _spelled(self, number: int, parts: Sequence[str | Hole], doubled: bool) -> list[str | Hole]:
        """Return the parts of a branch with escapes; what is as in the message is spelled as there."""
        branch = self.branches[number]
        texts = (self.text[first:after] for first, after in gaps(branch.holes, branch.first, branch.after))
        known = {unescaped(text): text for text in texts}
        special = _ANY_APOSTROPHE if doubled else _APOSTROPHE
        marks = r"[{}#]++" if branch.numbered else r"[{}]++"
        return [
            part if isinstance(part, Hole) else known.get(part) or re.sub(marks, r"'\g<0>'", special.sub("''", part))
            for part in parts
        ]


def gaps(places: Iterable[Sequence[Any]], first: int, after: int) -> Iterator[tuple[int, int]]:
    """Yield what is before, between and after holes or places of a part of a text."""
    edges = [first, *(edge for place in places for edge in place[:2]), after]
    return zip(edges[::2], edges[1::2], strict=True)


def unescaped(text: str) -> str:
    """Return a text between holes as it is read."""
    return text.replace("''", "'")


_ANY_APOSTROPHE: Final = re.compile("'")
_APOSTROPHE: Final = re.compile(r"'(?=['{}#]|\Z)")
_ANY_BRANCHES: Final = re.compile(r"\{\s{0,9}+[\w.-]{1,100}+\s{0,9}+,\s{0,9}+(?:plural|select|selectordinal)\s*+,")
_BRANCHES: Final = {"plural": True, "selectordinal": True, "select": False}
_SPECIAL: Final = re.compile(r"''|'[{}#][^']*+(?:''[^']*+)*(?:'|\Z)|\{\{[^{}]++\}\}|[{}#]")
_ARGUMENT: Final = re.compile(r"\{\s*+[\w.-]++\s*+(?:,\s*+(\w++)\s*+)?([,}])")
_STYLE: Final = re.compile(r"(?:[^{}']++|'[^']*+'|\{[^{}]*+\})*\}")
_OFFSET: Final = re.compile(r"\s*+(?:offset\s*+:\s*+\d++)?")
_SELECTOR: Final = re.compile(r"\s*+(?:(=\d++|[^\s{}=,'#]++)\s*+\{|\})")


def parse_message(text: str) -> Message | None:
    """Parse a message of ICU's MessageFormat; None if it has no plural or select argument, an error, or is too long.

    Interpolations in two braces, which Angular allows in branches, are holes.
    """
    if len(text) > MAX_MESSAGE or not _ANY_BRANCHES.search(text):
        return None
    try:
        branches = _Parser(text).branches
    except _SyntaxError:
        return None
    return Message(text, branches) if len(branches) > 1 else None


class _SyntaxError(Exception):
    """A text is no message."""


def _matched(found: re.Match[str] | None) -> re.Match[str]:
    if found is None:
        raise _SyntaxError
    return found


class _Parser:
    """Parser with a stack of its own: messages may be nested deeply.

    Attributes:
        branches: those that have begun.
    """

    def __init__(self, text: str) -> None:
        self._text, self._position = text, 0
        self.branches = [Branch(0, len(text), "", [], numbered=False)]
        self._open = [(0, 0)]  # numbers of branches without an end yet, and the places of their arguments
        while special := _SPECIAL.search(text, self._position):
            self._position = special.end()
            self._read(special)
        if len(self._open) > 1:
            raise _SyntaxError

    def _read(self, special: re.Match[str]) -> None:
        mark, (number, argument) = special[0], self._open[-1]
        current = self.branches[number]
        if mark == "{":
            self._argument(special.start())
        elif mark == "}":
            if len(self._open) == 1:
                raise _SyntaxError
            self._open.pop()
            self.branches[number] = current._replace(after=special.start())
            self._select(argument, current.numbered)
        elif mark.startswith("'#") and not current.numbered:
            self._position = special.start() + 1
        elif mark != "''" and (mark != "#" or current.numbered):
            kind = {"'": "quote", "#": "number", "{": "double_braces"}[mark[0]]
            self._add(Hole(*special.span(), kind))

    def _argument(self, first: int) -> None:
        argument = _matched(_ARGUMENT.match(self._text, first))
        self._position = argument.end()
        kind, has_style = argument[1], argument[2] == ","
        if (has_style and not kind) or (kind in _BRANCHES and not has_style):
            raise _SyntaxError
        if kind in _BRANCHES:
            numbered = _BRANCHES[kind]
            if numbered:
                self._position = _matched(_OFFSET.match(self._text, self._position)).end()
            self._select(first, numbered, first_branch=True)
        else:
            if has_style:
                self._position = _matched(_STYLE.match(self._text, self._position)).end()
            self._add(Hole(first, self._position, "braces"))

    def _select(self, argument: int, numbered: bool, *, first_branch: bool = False) -> None:
        """Open the next branch of an argument, or read the argument's end."""
        selector = _matched(_SELECTOR.match(self._text, self._position))
        self._position = selector.end()
        if selector[1] is not None:
            self._open.append((len(self.branches), argument))
            self.branches.append(Branch(self._position, -1, selector[1], [], numbered))
        elif first_branch:
            raise _SyntaxError
        else:
            self._add(Hole(argument, self._position, "icu"))

    def _add(self, hole: Hole) -> None:
        self.branches[self._open[-1][0]].holes.append(hole)
