"""Forms with files: ``multipart/form-data``, as browsers and clients send it."""

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

from starlette.datastructures import Headers

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.http.requests import Fields, parse_fields

MULTIPART: Final = "multipart/form-data"
MAX_PARTS: Final = 100
MAX_FORM_BYTES: Final = 2**16
"""Bytes of a form beside its file."""
_BOUNDARY: Final = re.compile(r";\s*boundary\s*=\s*(?:\"([^\"]{1,70})\"|([^\s;\"]{1,70}))", re.IGNORECASE)
_NAME: Final = re.compile(r";\s*(filename\*|filename|name)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;\"]+))", re.IGNORECASE)
_ESCAPED: Final = re.compile(r"\\([\"\\])|%(22|0[AaDd])")


class Upload(NamedTuple):
    """A file of a form."""

    name: str
    content: bytes


def parse_upload(headers: Headers, query: bytes, body: bytes, most: int) -> Fields:
    """Read the fields of a form with files, or of another request.

    Raises:
        InvalidArgumentError: no such form.
    """
    kind = headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != MULTIPART:
        return parse_fields(headers, query, body, most)
    fields = parse_fields(Headers(), query, b"", most)
    found = _BOUNDARY.search(kind)
    mark = b"--" + (found[1] or found[2]).encode("latin-1") if found else b""
    parts = body.removeprefix(mark).split(b"\r\n" + mark, MAX_PARTS) if mark and body.startswith(mark) else [b""]
    if not parts[-1].startswith(b"--") or len(parts) > MAX_PARTS:
        raise InvalidArgumentError(f"the request is no whole form of less than {MAX_PARTS} fields", field="request")
    for part in parts[:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        names = _names(head)
        if names.get("filename") is not None:
            fields[names.get("name", "")] = Upload(names["filename"], content)
        else:
            fields[names.get("name", "")] = _text(content)
    return fields


def _names(head: bytes) -> dict[str, str]:
    """Return the names of a part and of its file."""
    lines = (line.partition(b":") for line in head.split(b"\r\n"))
    value = next((_text(value) for name, _, value in lines if name.strip().lower() == b"content-disposition"), "")
    found = {}
    for name, quoted, plain in _NAME.findall(value):
        key = name.lower()
        if key == "filename*":
            found["filename"] = unquote((plain or quoted).rpartition("'")[2])  # it says its encoding, UTF-8
        else:
            found.setdefault(key, _ESCAPED.sub(lambda one: one[1] or chr(int(one[2], 16)), quoted) or plain)
    return found


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidArgumentError("the form is no UTF-8", field="request") from None
