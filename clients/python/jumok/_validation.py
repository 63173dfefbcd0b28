"""Checks of arguments before a request is sent.

Each raises InvalidArgumentError with the parameter's name.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, SupportsFloat, SupportsIndex, cast

from google.protobuf.descriptor import FieldDescriptor

from jumok_proto.attention import ATTENTION_KINDS, AttentionKind
from jumok_proto.conversion import PLACEHOLDER_KINDS, markup_to_proto, rules_to_proto
from jumok_proto.errors import Details, FieldViolation, InvalidArgumentError, parameter_name
from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_proto.options import Options, check_names
from jumok_proto.v1 import translation_pb2
from jumok_proto.v1.decoding_pb2 import DecodingOptions

LONGEST_TIMEOUT_S = 365.0 * 24 * 3600
"""Longer timeouts, infinity included, overflow gRPC's clock and then have passed already."""


def invalid_field(field: str, problem: str) -> InvalidArgumentError:
    """Make the error for a field, with the parameter's name in the message.

    The attribute ``field`` is the path in the request.
    """
    violation = FieldViolation(field=field, description=problem)
    details = Details(reason=InvalidArgumentError.reason, field_violations=(violation,))
    return InvalidArgumentError(f"{parameter_name(field)}: {problem}", details=details)


def check_text(field: str, text: object) -> str:
    """Check that a text is a str that UTF-8 can encode."""
    if not isinstance(text, str):
        raise invalid_field(field, f"must be a str, got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise invalid_field(
            field, f"holds a lone surrogate (U+{ord(text[error.start]):04X} at {error.start}), which is no character"
        ) from error
    return text


def check_texts(field: str, texts: str | Sequence[str]) -> list[str]:
    """Check one text, or several in a sequence, which has an order."""
    if isinstance(texts, str):
        return [check_text(f"{field}[0]", texts)]
    if isinstance(texts, Mapping) or not hasattr(texts, "__getitem__"):
        raise invalid_field(field, f"must be a str, or a sequence of them for several texts, got {texts!r}")
    return [check_text(f"{field}[{index}]", text) for index, text in enumerate(texts)]


def check_optional_texts(field: str, values: object, count: int) -> list[str]:
    """Check ``count`` optional texts; None becomes an empty text.

    If ``values`` is None, no texts are sent.
    """
    if values is None:
        return []
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise invalid_field(field, "must be a str for one text, and a sequence of them for several")
    texts = ["" if value is None else check_text(f"{field}[{index}]", value) for index, value in enumerate(values)]
    return check_length(field, texts, count)


def check_length(field: str, values: list[str], count: int) -> list[str]:
    """Check for one value per text."""
    if len(values) != count:
        raise invalid_field(field, f"must be one for each of {count} texts, got {len(values)}")
    return values


def check_lines(lines: object) -> None:
    """Check the texts of ``translate_iter``: no str, and a definite order."""
    if isinstance(lines, str | bytes | Mapping | Set):
        raise invalid_field("lines", f"must be an iterable of texts in order, got a {type(lines).__name__}")


def check_kinds(kinds: Sequence[AttentionKind]) -> Sequence[AttentionKind]:
    """Check the kinds of attention."""
    usable = isinstance(kinds, Sequence) and not isinstance(kinds, str)
    if not usable or not kinds or any(kind not in ATTENTION_KINDS for kind in kinds):
        raise invalid_field("kinds", f"must be a sequence of some of {', '.join(ATTENTION_KINDS)}, got {kinds!r}")
    return kinds


def check_markup(markup: MarkupKind) -> translation_pb2.Markup.ValueType:
    """Convert the markup of texts to the message's value."""
    try:
        return markup_to_proto(markup)
    except (TypeError, ValueError) as error:
        raise invalid_field("markup", str(error)) from error


def check_rules(rules: MarkupRules) -> translation_pb2.MarkupRules:
    """Convert rules for elements to the message."""
    if not isinstance(rules, MarkupRules):
        raise invalid_field("markup_rules", f"must be MarkupRules, got {rules!r}")
    for name in ("ignore_tags", "non_splitting_tags", "splitting_tags"):
        tags = getattr(rules, name)
        if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
            raise invalid_field(f"markup_rules.{name}", f"must be a sequence of names, got {tags!r}")
    return rules_to_proto(rules)


def check_options(options: Options) -> Options:
    """Convert decoding options to the message's types.

    Raises:
        TypeError: an unknown option.
    """
    check_names(options)
    checked: dict[str, object] = {}
    for name, value in options.items():
        if value is not None:
            kind = DecodingOptions.DESCRIPTOR.fields_by_name[name].type
            checked[name] = _OPTION_CHECKS[kind](f"options.{name}", value)
    return cast("Options", checked)


def check_flag(field: str, value: object) -> bool:
    """Check a bool; other values would count as True."""
    if not isinstance(value, bool):
        raise invalid_field(field, f"must be True or False, got {value!r}")
    return value


def check_integer(field: str, value: SupportsIndex | None, *, bits: int = 32) -> int | None:
    """Check an integer, of any type, that fits the message's field."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise invalid_field(field, f"must be an integer, got {value!r}")
    number = value.__index__()
    bound = 2 ** (bits - 1)
    if not -bound <= number < bound:
        raise invalid_field(field, f"must lie between {-bound} and {bound - 1}, got {number}")
    return number


def check_number(field: str, value: SupportsFloat | None) -> float | None:
    """Check a number of any type."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise invalid_field(field, f"must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError as error:
        raise invalid_field(field, "must be a finite number, got an integer that exceeds every float") from error


def check_count(field: str, value: object, *, least: int, most: int | None = None) -> int:
    """Check an integer between bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"from {least} on" if most is None else f"from {least} to {most}"
        raise invalid_field(field, f"must be a whole number {bounds}, got {value!r}")
    return value


def check_timeout(timeout_s: float) -> float:
    """Check a timeout in seconds and bound it."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise invalid_field("timeout_s", f"must be a number of seconds above 0, got {timeout_s!r}")
    return float(min(timeout_s, LONGEST_TIMEOUT_S))


def _token_ids(field: str, values: object) -> list[int]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise invalid_field(field, f"must be a sequence of token ids, got {values!r}")
    ids = [check_integer(field, value) for value in values]
    if None in ids:
        raise invalid_field(field, "must be a sequence of token ids, got None among them")
    return [token for token in ids if token is not None]


def _early_stopping(field: str, value: object) -> object:
    if not isinstance(value, bool) and value != "never":
        raise invalid_field(field, f"must be False, True or 'never', got {value!r}")
    return value


_OPTION_CHECKS: Mapping[int, Callable[[str, Any], object]] = {
    FieldDescriptor.TYPE_BOOL: check_flag,
    FieldDescriptor.TYPE_DOUBLE: check_number,
    FieldDescriptor.TYPE_ENUM: _early_stopping,
    FieldDescriptor.TYPE_INT32: check_integer,
    FieldDescriptor.TYPE_INT64: partial(check_integer, bits=64),
    FieldDescriptor.TYPE_MESSAGE: _token_ids,
}
"""Checks of decoding options, by the types of their fields in messages."""


def check_glossary(glossary: object) -> dict[str, list[str]]:
    """Check a mapping from source terms to a target term, or a sequence of them."""
    if not isinstance(glossary, Mapping):
        raise invalid_field("glossary", f"must map source terms to target terms, got {type(glossary).__name__}")
    entries = {}
    for source, targets in glossary.items():
        check_text("glossary", source)
        if not isinstance(targets, str | Sequence) or isinstance(targets, bytes):
            raise invalid_field("glossary", f"{source!r} needs a target term, or a sequence of them, got {targets!r}")
        entries[source] = [
            check_text("glossary", target) for target in ([targets] if isinstance(targets, str) else targets)
        ]
    return entries


def check_placeholders(kinds: object) -> list[translation_pb2.PlaceholderKind.ValueType]:
    """Convert kinds of placeholders to the message's values."""
    if isinstance(kinds, str) or not isinstance(kinds, Sequence):
        raise invalid_field("placeholders", f"must be True, False or a sequence of kinds, got {kinds!r}")
    for kind in kinds:
        if kind not in PLACEHOLDER_KINDS:
            raise invalid_field("placeholders", f"unknown kind {kind!r}; choose of {', '.join(PLACEHOLDER_KINDS)}")
    return [PLACEHOLDER_KINDS[kind] for kind in kinds]
