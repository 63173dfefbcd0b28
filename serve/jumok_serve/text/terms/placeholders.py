"""Parts of a text that are copied into the translation: placeholders of programs, addresses, names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.tasks.terms import TermMatch
from jumok_serve.text.terms.patterns import Patterns

KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "double_braces": r"\{\{[^{}\n]{1,100}\}\}",  # {{ variable }}
        "braces": r"\$?\{[^{}\s]{0,100}\}",  # {name}, {0}, ${name}
        "percent": r"%(?:\([^()\s]{1,100}+\))?[-+ #0]{0,3}+\d{0,9}+(?:\$[-+ #0]{0,3}+\d{0,9}+)?(?:\.\d{1,9}+)?"
        r"(?:hh|h|ll|l|L|z|j|t)?[diouxXeEfFgGcrsaAp@](?!\w)",  # %s, %(count)d, %1$s, %.2f
        "url": r"(?:https?|ftp)://[^\s<>\"'{}|\\^`]{0,2000}[^\s<>\"'{}|\\^`.,;:!?()\[\]]|"
        r"www\.[^\s<>\"'{}|\\^`]{0,2000}[^\s<>\"'{}|\\^`.,;:!?()\[\]]",
        "email": r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",
        "mention": r"(?<![\w@.])@\w{1,64}",
    }
)
"""Regular expressions by kind, in the order in which they are tried at each place."""
MAX_PATTERNS: Final = 64
MAX_CHARACTERS: Final = 256
MAX_MATCH: Final = 2048
"""Most characters of a part that is copied: those of a long address. No kind looks further."""
_PIECE: Final = 2**14
"""Characters at which kinds may begin in one search: some milliseconds at worst."""


class Placeholders:
    """Kinds of placeholders, and patterns.

    A pattern is a text that matches itself; `*` in it stands for one or more letters, digits or `_`.

    Attributes:
        num_bytes: memory that they take, about.

    Raises:
        InvalidArgumentError: an unknown kind, too many patterns, or an empty or too long one.
    """

    def __init__(self, kinds: Sequence[str] = (), patterns: Sequence[str] = ()) -> None:
        for kind in kinds:
            if kind not in KINDS:
                raise _refused(f"unknown kind {kind!r}: choose of {', '.join(KINDS)}")
        if len(patterns) > MAX_PATTERNS:
            raise _refused(f"at most {MAX_PATTERNS} patterns are possible, got {len(patterns)}")
        for pattern in patterns:
            _check_pattern(pattern)
        self._patterns = Patterns(patterns) if patterns else None
        parts = [f"(?:{expression})" for kind, expression in KINDS.items() if kind in kinds]
        self._kinds = re.compile("|".join(parts)) if parts else None
        self.num_bytes = 0 if self._patterns is None else self._patterns.num_bytes

    def find(self, text: str) -> Iterator[TermMatch]:
        """Yield the parts of a text to copy, in their order; parts of more than `MAX_MATCH` characters are left out."""
        for first, after in self._places(text):
            if after - first <= MAX_MATCH:
                yield TermMatch(first, after, (text[first:after],), once=True)

    def _places(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield places that share no character: the first to begin counts, and of those of one place a pattern."""
        position, kind = 0, self._next_kind(text, 0)
        for first, after in self._patterns.find(text) if self._patterns else ():
            while kind is not None and kind[0] < first:
                if kind[0] >= position:
                    yield kind
                    position = kind[1]
                kind = self._next_kind(text, position)
            if first >= position:
                yield first, after
                position = after
        while kind is not None:
            if kind[0] >= position:
                yield kind
                position = kind[1]
            kind = self._next_kind(text, position)

    def _next_kind(self, text: str, position: int) -> tuple[int, int] | None:
        """Return the next place of a kind; looks at a piece of a text at a time, as a search holds Python's lock."""
        while self._kinds is not None and position < len(text):
            after = position + _PIECE
            found = self._kinds.search(text, position, after + MAX_MATCH)
            if found is not None and found.start() < after:
                return found.span()
            position = after
        return None


def _check_pattern(pattern: object) -> None:
    if not isinstance(pattern, str):
        raise _refused(f"a pattern must be a string, got {type(pattern).__name__}")
    if not pattern.strip("* \t\r\n"):
        raise _refused(f"the pattern {pattern!r} matches any word: write more than *")
    if len(pattern) > MAX_CHARACTERS:
        raise _refused(f"a pattern has at most {MAX_CHARACTERS} characters, got {len(pattern)}")


def _refused(message: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"do_not_translate: {message}", field="do_not_translate")
