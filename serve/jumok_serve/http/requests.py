"""Fields of HTTP requests: JSON, form or query."""

import json
import re
import reprlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers

from jumok_proto.errors import InvalidArgumentError

Fields: TypeAlias = dict[str, Any]

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MAX_FORM_FIELDS = 4096
_UNQUOTED_AT_ONCE = 2**16
"""Bytes of a form that are unquoted at once: each escape takes some 100 bytes of memory meanwhile."""
_SURROGATES = (rb"\ud", rb"\uD")
"""Beginnings of escapes for surrogates; Hangul has them too."""
_STRINGS = re.compile(rb'"[^"]*+"?')
"""Strings of JSON without escapes; the last one may lack its end."""


def parse_fields(headers: Headers, query: bytes, body: bytes, most: int, default: str = JSON) -> Fields:
    """Read the fields of a JSON object, or of query string and form; a field that comes twice is a list.

    Args:
        most: values of a JSON object, at all depths.
        default: content type of a body without one; empty: it is refused.

    Raises:
        InvalidArgumentError: neither of them, or not UTF-8.
    """
    kind = headers.get("content-type", default).partition(";")[0].strip().lower()
    if body and kind == JSON:
        return parse_object(body, most)
    if body and kind != FORM:
        raise InvalidArgumentError(f"the request has the content type {kind!r}; send {JSON} or {FORM}", field="request")
    fields: dict[str, Any] = {}
    for source in (query, body):
        for name, values in parse_form(source).items():
            fields[name] = values[0] if len(values) == 1 else values
    return fields


def parse_object(body: bytes, most: int) -> Fields:
    """Read a JSON object of at most ``most`` values, which are counted before objects are made of them.

    Raises:
        InvalidArgumentError: another kind of value, too many values, no JSON, or a text that is not Unicode.
    """
    if _values(body) > most and _has_more_values(body, most):
        raise InvalidArgumentError(f"the request has more than {most} values; send several requests", field="request")
    try:
        value = json.loads(body.decode())
        halved = any(escape in body for escape in _SURROGATES) and not _is_unicode(
            json.dumps(value, ensure_ascii=False)
        )
    except (ValueError, RecursionError):
        value = halved = None
    if halved:
        raise InvalidArgumentError(
            "the request has half of a surrogate pair, which is no character: send the pair", field="request"
        )
    if not isinstance(value, dict):
        raise InvalidArgumentError("the request is no JSON object in UTF-8", field="request")
    return value


def _values(body: bytes) -> int:
    """Count the values of JSON, roughly; strings count for what looks like values in them."""
    return sum(map(body.count, (b",", b"[", b"{")))


def _has_more_values(body: bytes, most: int) -> bool:
    """True if JSON has more values than that, those within strings left out."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    return plain.count(b'"') > 4 * most or _values(_STRINGS.sub(b"", plain)) > most  # each value may have a name


def parse_form(source: bytes) -> dict[str, list[str]]:
    """Read the fields of a form or query string, each with its values.

    Raises:
        InvalidArgumentError: too many fields, or not UTF-8.
    """
    fields: dict[str, list[str]] = {}
    if source.count(b"&") < MAX_FORM_FIELDS and source.isascii():
        with suppress(UnicodeDecodeError):
            for pair in filter(None, source.split(b"&")):
                name, _, value = pair.partition(b"=")
                fields.setdefault(_unquoted(name), []).append(_unquoted(value))
            return fields
    raise InvalidArgumentError(f"the request is no form of at most {MAX_FORM_FIELDS} fields in UTF-8", field="request")


def _unquoted(source: bytes) -> str:
    """Replace the escapes of a form."""
    parts, start = list[bytes](), 0
    while start < len(source):
        end = start + _UNQUOTED_AT_ONCE
        cut = source.rfind(b"%", end - 2, end)  # no escape is divided
        end = end if cut < 0 else cut
        parts.append(unquote_to_bytes(source[start:end].replace(b"+", b" ")))
        start = end
    return b"".join(parts).decode()


def text_field(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a field that is a string; without a default it is required.

    Raises:
        InvalidArgumentError: another type, or none.
    """
    value = fields.get(name)
    if value is None:
        if default is None:
            raise InvalidArgumentError(f"the field {name} is missing", field=name)
        return default
    return _checked_text(value, name)


def texts_field(fields: Mapping[str, Any], name: str) -> list[str]:
    """Return a field that is a string or a list of strings, as a list.

    Raises:
        InvalidArgumentError: another type, or none.
    """
    value = fields.get(name)
    if not isinstance(value, list):
        return [text_field(fields, name)]
    return [_checked_text(item, f"{name}[{index}]") for index, item in enumerate(value)]


def number_field(fields: Mapping[str, Any], name: str, most: int) -> int:
    """Return a field that is a number from 0 to ``most``; 0 if it is missing.

    Raises:
        InvalidArgumentError: another value.
    """
    value = fields.get(name)
    if value is None or value == "":
        return 0
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidArgumentError(f"{name} must be a number from 0 to {most}, got {reprlib.repr(value)}", field=name)
    return value


def _checked_text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} must be a string, got {_kind(value)}", field=name)
    return value


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
