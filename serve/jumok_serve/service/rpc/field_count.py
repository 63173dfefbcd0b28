"""Count of the fields of a serialized message, before objects are made of them."""

from collections.abc import Mapping
from typing import TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from jumok_proto.errors import InvalidArgumentError

Fields: TypeAlias = "Mapping[int, Fields | None]"
"""Fields that hold further fields, by number: for a message its own such fields, for packed numbers None."""

_NO_NUMBERS = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_MESSAGE)
_VARINT, _BYTES = 0, 2
"""Wire types of fields with a length of their own."""
_LENGTHS = {1: 8, 3: 0, 4: 0, 5: 4}
"""Bytes of a field of each other wire type."""
_MAX_VARINT_BITS = 70


def fields_of(message: Descriptor) -> Fields:
    """Describe the fields of a message type."""
    known: dict[str, dict[int, Fields | None]] = {}

    def describe(kind: Descriptor) -> Fields:
        if kind.full_name not in known:
            fields = known[kind.full_name] = {}
            for field in kind.fields:
                if field.message_type is not None:
                    fields[field.number] = describe(field.message_type)
                elif field.cpp_type not in _NO_NUMBERS:
                    fields[field.number] = None
        return known[kind.full_name]

    return describe(message)


def check_fields(data: bytes, fields: Fields, most: int) -> None:
    """Refuse a message with too many fields, unknown ones and packed numbers included.

    The count ends at ``most`` fields. A message of at most ``most`` bytes is not counted: each field takes a byte.

    Raises:
        InvalidArgumentError: too many fields, or no message.
    """
    if len(data) <= most:
        return
    at = count = 0
    open_messages = [(len(data), fields)]
    while open_messages:
        end, known = open_messages[-1]
        if at == end:
            open_messages.pop()
            continue
        key, at = _varint(data, at, end)
        content: Fields | None = _LEAF
        if key & 7 == _BYTES:
            content = known.get(key >> 3, _LEAF)
            length, at = _varint(data, at, end)
        else:
            length = _length(data, at, end, key & 7)
        if length > end - at:
            raise no_message()
        count += 1
        if content is None:
            count += length
        if content is None or content is _LEAF:
            at += length
        else:
            open_messages.append((at + length, content))
        if count > most:
            raise InvalidArgumentError(
                f"the request has more than {most} fields and numbers; send several requests", field="request"
            )


_LEAF: Fields = {}
"""Content of a field that holds no others."""


def _length(data: bytes, at: int, end: int, kind: int) -> int:
    """Length of a number; 0 of a mark that begins or ends a group."""
    if kind == _VARINT:
        return _varint(data, at, end)[1] - at
    if kind not in _LENGTHS:
        raise no_message()
    return _LENGTHS[kind]


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a number; returns it and the position after it."""
    value = shift = 0
    while at < end and shift < _MAX_VARINT_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise no_message()


def no_message() -> InvalidArgumentError:
    """Make the error about bytes that are no message."""
    return InvalidArgumentError("the request is no valid protobuf message; texts must be UTF-8", field="request")
