"""Parts of a text that are copied into the translation: placeholders of programs, addresses, names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.tasks.terms import TermMatch

KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "double_braces": r"\{\{[^{}\n]{1,100}\}\}",  # {{ variable }}
        "braces": r"\$?\{[^{}\s]{0,100}\}",  # {name}, {0}, ${name}
        "percent": r"%(?:\([^()\s]{1,100}\))?[-+ #0]{0,3}\d{0,9}(?:\$[-+ #0]{0,3}\d{0,9})?(?:\.\d{1,9})?"
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
"""Most characters of a part that is copied: those of a long address."""


class Placeholders:
    """Kinds of placeholders, and patterns.

    A pattern is a text that matches itself; `*` in it stands for one or more letters, digits or `_`.

    Raises:
        InvalidArgumentError: an unknown kind, too many patterns, or an empty or too long one.
    """

    def __init__(self, kinds: Sequence[str] = (), patterns: Sequence[str] = ()) -> None:
        for kind in kinds:
            if kind not in KINDS:
                raise _refused(f"unknown kind {kind!r}: choose of {', '.join(KINDS)}")
        if len(patterns) > MAX_PATTERNS:
            raise _refused(f"at most {MAX_PATTERNS} patterns are possible, got {len(patterns)}")
        parts = [_expression(pattern) for pattern in patterns]
        parts += [KINDS[kind] for kind in KINDS if kind in kinds]
        self._pattern = re.compile("|".join(f"(?:{part})" for part in parts)) if parts else None

    def find(self, text: str) -> Iterator[TermMatch]:
        """Yield the parts of a text to copy, in their order; parts of more than `MAX_MATCH` characters are left out."""
        for found in self._pattern.finditer(text) if self._pattern else ():
            if found.end() - found.start() <= MAX_MATCH:
                yield TermMatch(*found.span(), (found[0],), once=True)


def _expression(pattern: object) -> str:
    if not isinstance(pattern, str):
        raise _refused(f"a pattern must be a string, got {type(pattern).__name__}")
    if not pattern.strip("* \t\r\n"):
        raise _refused(f"the pattern {pattern!r} matches any word: write more than *")
    if len(pattern) > MAX_CHARACTERS:
        raise _refused(f"a pattern has at most {MAX_CHARACTERS} characters, got {len(pattern)}")
    literal, *others = re.split(r"\*+", pattern)
    parts = [re.escape(literal), *(r"\w++" + re.escape(other) for other in others)]  # possessive: linear time
    before = r"(?<!\w)" if re.match(r"[\w*]", pattern) else ""
    after = r"(?!\w)" if re.search(r"[\w*]\Z", pattern) else ""
    return before + "".join(parts) + after


def _refused(message: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"do_not_translate: {message}", field="do_not_translate")
