"""Conversion of terms between messages and Python."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from jumok_proto.fields import Conversion, Enumeration
from jumok_proto.results import AppliedTerm, TextSpan
from jumok_proto.v1 import translation_pb2

_PLACEHOLDERS = Enumeration(
    ("braces", "double_braces", "percent", "url", "email", "mention"),
    translation_pb2.PlaceholderKind,
    "PLACEHOLDER_KIND",
    refusal="do_not_translate: unknown kind of placeholders {}; leave it out",
)
PLACEHOLDER_KINDS: Final[Mapping[str, translation_pb2.PlaceholderKind.ValueType]] = MappingProxyType(
    _PLACEHOLDERS.numbers
)
"""Kinds of placeholders by name."""

_SPAN = Conversion(TextSpan, translation_pb2.TextSpan)
APPLIED = Conversion(AppliedTerm, translation_pb2.AppliedTerm, source_span=_SPAN, target_span=_SPAN)


def glossary_to_proto(entries: Mapping[str, Sequence[str]], stored: str = "") -> translation_pb2.Glossary:
    """Make the message of a glossary; ``stored``: id or name of a stored one."""
    return translation_pb2.Glossary(
        entries=[translation_pb2.GlossaryEntry(source=source, targets=targets) for source, targets in entries.items()],
        stored=stored,
    )


def do_not_translate_to_proto(patterns: Sequence[str], kinds: Sequence[str]) -> translation_pb2.DoNotTranslate:
    """Make the message of parts that are copied.

    Raises:
        ValueError: a kind does not exist.
    """
    for kind in kinds:
        if kind not in PLACEHOLDER_KINDS:
            raise ValueError(f"placeholders: unknown kind {kind!r}; choose of {', '.join(PLACEHOLDER_KINDS)}")
    return translation_pb2.DoNotTranslate(patterns=patterns, kinds=[PLACEHOLDER_KINDS[kind] for kind in kinds])


def kinds_from_proto(kinds: Iterable[int]) -> list[str]:
    """Read kinds of placeholders.

    Raises:
        ValueError: a kind does not exist.
    """
    return list(map(_PLACEHOLDERS.from_proto, kinds))
