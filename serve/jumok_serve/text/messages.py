"""ICU messages: plural and select arguments, whose branches are texts of their own."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple


MAX_MESSAGE: Final = 2**18
"""Most characters of a message; longer texts are taken as plain ones."""


class Hole(NamedTuple):
    """A part of a text that is not language.

    Attributes:
        first, after: its place in the text.
        kind: a kind of `holes.KINDS`; in messages also `quote` and `number`, which stands for `#`.
    """

    first: int
    after: int
    kind: str


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
    holes: tuple[Hole, ...]
    numbered: bool


class Message(NamedTuple):
    """A message with plural or select arguments.

    Attributes:
        text: the message.
        branches: the whole message, then all branches in the order in which they begin.
    """

    text: str
    branches: tuple[Branch, ...]

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
                    number = bisect_left(firsts, position)
                left += self.text[position : part.after], *reversed(pieces)
        return "".join(output)

    def _spelled(self, number: int, parts: Sequence[str | Hole], doubled: bool) -> list[str | Hole]:
        """Return the parts of a branch with escapes; what is as in the message is spelled as there."""
        branch = self.branches[number]
        known = dict[str, str]()
        position = branch.first
        for hole in (*branch.holes, Hole(branch.after, branch.after, "")):
            text = self.text[position : hole.first]
            known[unescaped(text)] = text
            position = hole.after
        special = _ANY_APOSTROPHE if doubled else _APOSTROPHE
        marks = r"[{}#]++" if branch.numbered else r"[{}]++"
        return [
            part if isinstance(part, Hole) else known.get(part) or re.sub(marks, r"'\g<0>'", special.sub("''", part))
            for part in parts
        ]


def unescaped(text: str) -> str:
    """Return a text between holes as it is read."""
    return text.replace("''", "'")


_ANY_APOSTROPHE: Final = re.compile("'")
_APOSTROPHE: Final = re.compile(r"'(?=['{}#]|\Z)")
_ANY_BRANCHES: Final = re.compile(r"\{\s{0,9}+[\w.-]{1,100}+\s{0,9}+,\s{0,9}+(?:plural|select|selectordinal)\s*+,")
_BRANCHES: Final = {"plural": True, "selectordinal": True, "select": False}
_SPECIAL: Final = re.compile(r"''|'[{}#][^']*+(?:''[^']*+)*+(?:'|\Z)|\{\{[^{}]++\}\}|[{}#]")
_ARGUMENT: Final = re.compile(r"\{\s*+[\w.-]++\s*+(?:,\s*+(\w++)\s*+)?+([,}])")
_STYLE: Final = re.compile(r"(?:[^{}']++|'[^']*+'|\{[^{}]*+\})*+\}")
_OFFSET: Final = re.compile(r"\s*+(?:offset\s*+:\s*+\d++)?+")
_SELECTOR: Final = re.compile(r"\s*+(?:(=\d++|[^\s{}=,'#]++)\s*+\{|\})")


class _Open:
    """A branch whose end is not read yet, in an argument that begins at a place."""

    def __init__(self, number: int, first: int, selector: str, argument: int, numbered: bool) -> None:
        self.number, self.first, self.selector = number, first, selector
        self.argument, self.numbered = argument, numbered
        self.holes = list[Hole]()


def parse_message(text: str) -> Message | None:
    """Parse a message of ICU's MessageFormat; None if it has no plural or select argument, an error, or is too long.

    Interpolations in two braces, which Angular allows in branches, are holes.
    """
    if len(text) > MAX_MESSAGE or not _ANY_BRANCHES.search(text):
        return None
    stack = [_Open(0, 0, "", 0, False)]
    branches = list[Branch | None]([None])
    position = 0
    while special := _SPECIAL.search(text, position):
        current, mark = stack[-1], special[0]
        first, position = special.span()
        if mark == "''" or (mark == "#" and not current.numbered):
            continue
        if mark.startswith("'#") and not current.numbered:
            position = first + 1
        elif mark not in {"{", "}"}:
            kind = {"'": "quote", "#": "number", "{": "double_braces"}[mark[0]]
            current.holes.append(Hole(first, position, kind))
        else:
            numbered = current.numbered
            argument = current.argument
            if mark == "{":
                found = _ARGUMENT.match(text, first)
                if found is None:
                    return None
                position, argument = found.end(), first
                if found[2] == "}" or found[1] not in _BRANCHES:
                    style = found if found[2] == "}" else found[1] and _STYLE.match(text, position)
                    if not style:
                        return None
                    position = style.end()
                    current.holes.append(Hole(first, position, "braces"))
                    continue
                numbered = _BRANCHES[found[1]]
                if numbered and (offset := _OFFSET.match(text, position)):
                    position = offset.end()
            elif len(stack) == 1:
                return None
            else:
                stack.pop()
                branches[current.number] = Branch(
                    current.first, first, current.selector, tuple(current.holes), numbered
                )
            selector = _SELECTOR.match(text, position)
            if selector is None or (selector[1] is None and mark == "{"):
                return None
            position = selector.end()
            if selector[1] is None:
                stack[-1].holes.append(Hole(argument, position, "icu"))
            else:
                stack.append(_Open(len(branches), position, selector[1], argument, numbered))
                branches.append(None)
    (whole,) = stack if len(stack) == 1 else (None,)
    if whole is None or len(branches) == 1:
        return None
    branches[0] = Branch(0, len(text), "", tuple(whole.holes), False)
    return Message(text, tuple(filter(None, branches)))
