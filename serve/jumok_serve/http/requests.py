"""Requests over HTTP: bodies within bounds, and their fields."""

import json
import re
import reprlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import Receive

from jumok_proto.errors import InvalidArgumentError, OverloadedError, ResourceExhaustedError
from jumok_serve.service.rpc.request_reader import Arrival, ByteBudget, Intake, arriving_in_time
from jumok_serve.share import RETRY_AFTER_S


class ClientDisconnectedError(Exception):
    """The client has left."""


class Body:
    """Body of one request, which holds bytes of a budget as they arrive.

    Attributes:
        received: number of bytes that have arrived.
    """

    def __init__(self, receive: Receive, intake: Intake) -> None:
        self._receive = receive
        self._intake = intake
        self._budget = intake.budget
        self._caller = ""
        self._held = 0
        self._content = b""
        self.received = 0

    async def read(self, headers: Headers, budget: ByteBudget, caller: str) -> None:
        """Read all bytes.

        Args:
            budget: bytes of the requests that are in memory.
            caller: key of the sender's share of the budget.

        Raises:
            ResourceExhaustedError: too many bytes.
            DeadlineExceededError: the body does not arrive in time.
            OverloadedError: it arrives so slowly that others had to wait for its room.
            ClientDisconnectedError: the client has left.
        """
        self._check_size(int(headers.get("content-length", "0")))
        self._budget, self._caller = budget, caller
        async with arriving_in_time(budget, caller, self._intake.upload_s) as arrival:
            self._content = await self._read(arrival)

    def take(self) -> bytes:
        """Return the bytes, which are kept no longer."""
        content, self._content = self._content, b""
        return content

    async def _read(self, arrival: Arrival) -> bytes:
        content = bytearray()
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            chunk = message.get("body", b"")
            more = message.get("more_body", False)
            arrival.received += len(chunk)
            self.received = arrival.received
            self._check_size(arrival.received)
            await self._budget.take(self._caller, len(chunk), arrival)
            self._held += len(chunk)
            content += chunk
        return bytes(content)

    def _check_size(self, size: int) -> None:
        if size > self._intake.max_bytes:
            raise ResourceExhaustedError(
                f"a request takes at most {self._intake.max_bytes} bytes here: send several, or a file through gRPC"
            )

    def move(self, budget: ByteBudget, caller: str) -> None:
        """Hold bytes of another budget from now on.

        Raises:
            OverloadedError: there is no room.
        """
        size = self._held
        self.close()
        if not budget.take_now(caller, size):
            raise OverloadedError("too many bytes of this caller are in memory", retry_after_s=RETRY_AFTER_S)
        self._budget, self._caller, self._held = budget, caller, size

    def close(self) -> None:
        """Give back the bytes."""
        if self._held:
            self._budget.give_back(self._caller, self._held)
            self._held = 0


Fields: TypeAlias = dict[str, Any]
Meaning = TypeVar("Meaning")

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
    if body and content_type(headers, default, JSON, FORM) == JSON:
        return parse_object(body, most)
    fields: dict[str, Any] = {}
    for source in (query, body):
        for name, values in parse_form(source).items():
            fields[name] = values[0] if len(values) == 1 else values
    return fields


def content_type(headers: Headers, default: str, *known: str) -> str:
    """Return the content type of a body.

    Raises:
        InvalidArgumentError: an unknown one.
    """
    kind = headers.get("content-type", default).partition(";")[0].strip().lower()
    if kind not in known:
        raise InvalidArgumentError(
            f"the request has the content type {kind!r}; send {' or '.join(known)}", field="request"
        )
    return kind


def parse_object(body: bytes, most: int) -> Fields:
    """Read a JSON object of at most ``most`` values, which are counted before objects are made of them.

    Raises:
        InvalidArgumentError: another kind of value, too many values, no JSON, or a text that is not Unicode.
    """
    if _values(body) > most and _has_more_values(body, most):
        raise InvalidArgumentError(f"the request has more than {most} values; send several requests", field="request")
    try:
        value = json.loads(body.decode())
        if any(escape in body for escape in _SURROGATES):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            "the request has half of a surrogate pair, which is no character: send the pair", field="request"
        ) from None
    except (ValueError, RecursionError):
        value = None
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
    if source.count(b"&") < MAX_FORM_FIELDS:
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


def meaning(value: object, name: str, choices: Mapping[str | int, Meaning]) -> Meaning:
    """Return the meaning of a field with few values; strings but the empty one are named in the error.

    Raises:
        InvalidArgumentError: another value.
    """
    if not isinstance(value, str | int) or value not in choices:
        listed = " or ".join(choice for choice in choices if choice and isinstance(choice, str))
        raise InvalidArgumentError(f"{name} must be {listed}, got {reprlib.repr(value)}", field=name)
    return choices[value]


def _checked_text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} must be a string, got {_kind(value)}", field=name)
    return value


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
