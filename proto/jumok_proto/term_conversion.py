"""Conversion of terms between messages and Python."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from jumok_proto.results import AppliedTerm, TextSpan
from jumok_proto.v1 import translation_pb2

PLACEHOLDER_KINDS: Final[Mapping[str, translation_pb2.PlaceholderKind.ValueType]] = MappingProxyType(
    {
        "braces": translation_pb2.PLACEHOLDER_KIND_BRACES,
        "double_braces": translation_pb2.PLACEHOLDER_KIND_DOUBLE_BRACES,
        "percent": translation_pb2.PLACEHOLDER_KIND_PERCENT,
        "url": translation_pb2.PLACEHOLDER_KIND_URL,
        "email": translation_pb2.PLACEHOLDER_KIND_EMAIL,
        "mention": translation_pb2.PLACEHOLDER_KIND_MENTION,
    }
)
"""Kinds of placeholders by name."""


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
    names: dict[int, str] = {number: name for name, number in PLACEHOLDER_KINDS.items()}
    found = []
    for kind in kinds:
        if kind not in names:
            raise ValueError(f"do_not_translate: unknown kind of placeholders {kind}; leave it out")
        found.append(names[kind])
    return found


def applied_to_proto(term: AppliedTerm) -> translation_pb2.AppliedTerm:
    """Make the message of a term."""
    return translation_pb2.AppliedTerm(
        source=term.source,
        targets=term.targets,
        source_span=None if term.source_span is None else _span_to_proto(term.source_span),
        satisfied=term.satisfied,
        target_span=None if term.target_span is None else _span_to_proto(term.target_span),
    )


def applied_from_proto(message: translation_pb2.AppliedTerm) -> AppliedTerm:
    """Read a term."""
    return AppliedTerm(
        source=message.source,
        targets=tuple(message.targets),
        source_span=_span_from_proto(message.source_span) if message.HasField("source_span") else None,
        satisfied=message.satisfied,
        target_span=_span_from_proto(message.target_span) if message.HasField("target_span") else None,
    )


def _span_to_proto(span: TextSpan) -> translation_pb2.TextSpan:
    return translation_pb2.TextSpan(first=span.first, after=span.after)


def _span_from_proto(message: translation_pb2.TextSpan) -> TextSpan:
    return TextSpan(message.first, message.after)
