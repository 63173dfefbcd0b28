"""Reading of HTTP requests: bodies within bounds, then fields of JSON, form or query."""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError, ResourceExhaustedError
from jumok_serve.service.address import peer_name
from jumok_serve.service.rpc.byte_budget import ByteBudget
from jumok_serve.service.rpc.request_reader import Intake

Fields: TypeAlias = dict[str, Any]

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MAX_FORM_FIELDS = 4096
_STRINGS = re.compile(rb'"[^"]*+"?')
"""Strings of JSON without escapes; the last one may lack its end."""


class ClientDisconnectedError(Exception):
    """The client has left."""


class Body:
    """Body of one request; its bytes are held within the budget that gRPC requests share.

    Args:
        caller: key of the sender's share of the budget.
    """

    def __init__(self, headers: Headers, receive: Receive, intake: Intake, caller: str) -> None:
        self._declared = _declared_bytes(headers, intake.max_bytes)
        self._receive = receive
        self._intake = intake
        self._budget: ByteBudget = intake.budget
        self._caller = caller
        self._held = 0

    async def read(self) -> bytes:
        """Read all bytes.

        Raises:
            ResourceExhaustedError: too many bytes.
            DeadlineExceededError: the body does not arrive in time.
            ClientDisconnectedError: the client has left.
        """
        try:
            async with asyncio.timeout(self._intake.upload_s):
                if self._declared:
                    await self._budget.take(self._caller, self._declared)
                    self._held = self._declared
                content = await self._read(self._intake.max_bytes)
        except TimeoutError as error:
            raise DeadlineExceededError(f"the request did not arrive within {self._intake.upload_s:g} s") from error
        self._give_back(self._declared - len(content))
        return content

    async def _read(self, most: int) -> bytes:
        """Read at most ``most`` bytes; as many again are thrown away, so that the client sees the refusal."""
        content = bytearray()
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            chunk = message.get("body", b"")
            size += len(chunk)
            if size <= most:
                content += chunk
            else:
                content.clear()
            more = message.get("more_body", False)
            if size > most and (not more or size > 2 * most):
                raise ResourceExhaustedError(f"a request takes at most {most} bytes here: send several")
            if not more:
                return bytes(content)

    def close(self) -> None:
        """Give back the bytes."""
        self._give_back(self._held)

    def _give_back(self, size: int) -> None:
        if size:
            self._held -= size
            self._budget.give_back(self._caller, size)


def _declared_bytes(headers: Headers, most: int) -> int:
    """Return the length of a body if it is known, else the most that it may have."""
    if "transfer-encoding" in headers:
        return most
    return min(int(headers.get("content-length", "0")), most)


def parse_fields(headers: Headers, query: bytes, body: bytes, most: int) -> Fields:
    """Read the fields of a JSON object, or of query string and form; a field that comes twice is a list.

    Args:
        most: values of a JSON object, at all depths.

    Raises:
        InvalidArgumentError: neither of them, or not UTF-8.
    """
    kind = headers.get("content-type", JSON if body else FORM).partition(";")[0].strip().lower()
    if kind == JSON and body:
        return parse_object(body, most)
    if kind not in {FORM, JSON} and body:
        raise InvalidArgumentError(f"the request has the content type {kind!r}; send {JSON} or {FORM}", field="request")
    fields: dict[str, Any] = {}
    for source in (query, body):
        for name, values in _parse_form(source).items():
            fields[name] = values[0] if len(values) == 1 else values
    return fields


def parse_object(body: bytes, most: int) -> Fields:
    """Read a JSON object of at most ``most`` values, which are counted before objects are made of them.

    Raises:
        InvalidArgumentError: another kind of value, too many values, or no JSON.
    """
    if _values(body) > most and _has_more_values(body, most):
        raise InvalidArgumentError(f"the request has more than {most} values; send several requests", field="request")
    try:
        value = json.loads(body)
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


def _parse_form(source: bytes) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(
            source.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FORM_FIELDS
        )
    except ValueError as error:
        raise InvalidArgumentError(
            f"the request is no form of at most {MAX_FORM_FIELDS} fields in UTF-8", field="request"
        ) from error
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


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
        raise InvalidArgumentError(f"{name} must be a number from 0 to {most}, got {value!r:.40}", field=name)
    return value


def _checked_text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} must be a string, got {_kind(value)}", field=name)
    if not _is_unicode(value):
        raise InvalidArgumentError(f"{name} has half of a surrogate pair, which is no character", field=name)
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


def peer_of(scope: Scope) -> str:
    """Return the sender's address in gRPC's notation, so that a caller has one account in all protocols."""
    if scope.get("client") is None:
        return "unix:"
    return peer_name(*scope["client"])
