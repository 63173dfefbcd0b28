"""Count of fields in serialized messages, compared with the fields of the parsed messages."""

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.v1 import translation_pb2 as pb
from jumok_proto.v1.decoding_pb2 import DecodingOptions, TokenIds
from jumok_serve.service.rpc.request_reader import check_fields, fields_of

UNKNOWN = b"\xf8\x7f\x01" + b"\xfa\x7f\x02ab" + b"\xfd\x7f1234" + b"\xf9\x7f12345678" + b"\xfb\x7f\xfc\x7f"
"""Six fields that no message has: a number, bytes, 32 bits, 64 bits, and both ends of a group."""


def number_of_fields(message: Message) -> int:
    """Count fields by parsing; a packed list counts as itself and its numbers, which are below 128 here."""
    total = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        repeated = not hasattr(value, "ListFields") and not isinstance(value, bool | int | float | str)
        if field.message_type is not None:
            parts = value if repeated else [value]
            total += sum(1 + number_of_fields(part) for part in parts)
        elif repeated and field.cpp_type != field.CPPTYPE_STRING:
            total += 1 + len(value)
        else:
            total += len(value) if repeated else 1
    return total


def descriptor(message: Message) -> Any:
    return message.DESCRIPTOR


def messages() -> list[Message]:
    draw = random.Random(5)

    def text() -> str:
        return "wörd " * draw.randrange(60)

    options = DecodingOptions(
        beam_size=3, length_penalty=0.5, suppress_tokens=TokenIds(ids=[draw.randrange(1, 128) for _ in range(90)])
    )
    return [
        pb.TranslateTextRequest(contents=[text() for _ in range(40)], target_prefixes=["", "a"], options=options),
        pb.TranslateTextRequest(contents=[""] * 30, model="m" * 300),
        pb.ScoreTextRequest(contents=[text() for _ in range(9)], targets=[text()], length_penalty=1.0),
        pb.TranslateCorpusRequest(
            settings=pb.CorpusSettings(options=options, window=9),
            items=[pb.CorpusItem(id=number, content=text()) for number in range(20)],
        ),
    ]


@pytest.mark.parametrize("message", messages(), ids=lambda message: type(message).__name__)
def test_as_many_fields_are_counted_as_the_message_has(message: Message) -> None:
    fields, data = fields_of(descriptor(message)), message.SerializeToString()
    number = number_of_fields(message)
    assert number < len(data)
    check_fields(data, fields, number)
    with pytest.raises(InvalidArgumentError, match=f"more than {number - 1} fields"):
        check_fields(data, fields, number - 1)


def test_unknown_fields_are_counted() -> None:
    message = pb.TranslateTextRequest(contents=["a" * 100])
    check_fields(message.SerializeToString() + 3 * UNKNOWN, fields_of(descriptor(message)), 1 + 18)
    with pytest.raises(InvalidArgumentError, match="more than 18 fields"):
        check_fields(message.SerializeToString() + 3 * UNKNOWN, fields_of(descriptor(message)), 18)


@pytest.mark.parametrize("message", messages(), ids=lambda message: type(message).__name__)
def test_bytes_that_are_no_message_are_refused_and_nothing_else_happens(message: Message) -> None:
    """Whatever protobuf takes has been counted; whatever is not counted is refused."""
    draw = random.Random(7)
    fields, data = fields_of(descriptor(message)), message.SerializeToString()
    refused = 0
    for _ in range(300):
        changed = bytearray(data[: draw.randrange(20, len(data) + 1)])
        for _ in range(draw.randrange(4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            check_fields(bytes(changed), fields, 10)
        except InvalidArgumentError:
            refused += 1
            continue
        try:
            parsed = type(message).FromString(bytes(changed))
        except DecodeError:
            continue
        assert number_of_fields(parsed) <= 10
    assert refused > 100


def test_the_count_ends_at_the_limit() -> None:
    """Of bytes after the limit nothing is looked at: these are no message."""
    with pytest.raises(InvalidArgumentError, match="more than 5 fields"):
        check_fields(b"\x0a\x00" * 6 + b"\xff" * 100, fields_of(descriptor(pb.TranslateTextRequest())), 5)
