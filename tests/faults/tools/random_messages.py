"""Random calls of any gRPC service, made by Hypothesis from the descriptors of its methods."""

import string
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

DEPTH = 4
"""Messages within messages."""
REQUESTS = 4
"""Of a call that streams them, at most; and values of a field that is repeated."""
UNKNOWN_FIELD = b"\xf8\xff\x3f\x2a"
"""Number 131071, with the value 42."""

_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}

_OTHERS: Mapping[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.CPPTYPE_STRING: st.one_of(st.text(max_size=50), st.text(string.printable, max_size=200)),
}


@dataclass(frozen=True)
class RandomCall:
    """A call that was made up.

    Attributes:
        method: what is called.
        messages: what it sends; more than one where it streams.
        data: the bytes of each, which may be no message any more.
    """

    method: MethodDescriptor
    messages: tuple[Message, ...]
    data: tuple[bytes, ...]

    @property
    def path(self) -> str:
        """The method as gRPC spells it."""
        return f"/{self.method.containing_service.full_name}/{self.method.name}"

    def __str__(self) -> str:
        return f"{self.path} {[str(message) for message in self.messages]} as {self.data!r}"


def each_random_call(
    services: Sequence[ServiceDescriptor],
    likely: Mapping[str, st.SearchStrategy[Any]],
    send: Callable[[RandomCall], None],
    *,
    count: int,
    seed: int,
) -> None:
    """Make calls up, and have each sent.

    Args:
        services: all their methods are called.
        likely: what a server may understand, by the names of fields, or of messages and fields (``Message.field``);
            two thirds of the values are of these.
        send: is given every call.
        count: of calls.
        seed: the same gives the same calls, with the same version of Hypothesis.
    """
    methods = [method for service in services for method in service.methods]

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(st.sampled_from(methods).flatmap(lambda method: random_calls(method, likely)))
    def each(call: RandomCall) -> None:
        send(call)

    each()


def random_calls(
    method: MethodDescriptor, likely: Mapping[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[RandomCall]:
    """Calls of one method: valid, with an unknown field, cut, or with a changed byte."""
    request = _messages(method.input_type, likely, DEPTH)
    requests = (
        st.lists(request, max_size=REQUESTS) if method.client_streaming else st.lists(request, min_size=1, max_size=1)
    )

    @st.composite
    def calls(draw: st.DrawFn) -> RandomCall:
        messages = tuple(draw(requests))
        return RandomCall(method, messages, tuple(_spoilt(draw, message.SerializeToString()) for message in messages))

    return calls()


def _spoilt(draw: st.DrawFn, data: bytes) -> bytes:
    how = draw(st.sampled_from(["as it is"] * 7 + ["unknown field", "cut", "changed"]))
    if how == "unknown field":
        return data + UNKNOWN_FIELD
    if data and how == "cut":
        return data[: draw(st.integers(0, len(data) - 1))]
    if data and how == "changed":
        at = draw(st.integers(0, len(data) - 1))
        return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    return data


def _messages(
    descriptor: Descriptor, likely: Mapping[str, st.SearchStrategy[Any]], depth: int
) -> st.SearchStrategy[Message]:
    """Messages of a type; every field may be absent, plausible or arbitrary."""
    kind = GetMessageClass(descriptor)

    @st.composite
    def messages(draw: st.DrawFn) -> Message:
        message = kind()
        for field in descriptor.fields:
            how = draw(st.sampled_from(("left out", "likely", "likely", "anything")))
            if how == "left out":
                continue
            usual = likely.get(f"{descriptor.name}.{field.name}", likely.get(field.name))
            if usual is None or how == "anything":
                usual = _values(field, likely, depth)
            _put(message, field, usual, draw)
        return message

    return messages()


def _put(message: Message, field: FieldDescriptor, value: st.SearchStrategy[Any], draw: st.DrawFn) -> None:
    """Draw a field's value, or several, and set it."""
    present = getattr(message, field.name)
    if isinstance(present, MutableSequence):
        present.extend(draw(st.lists(value, max_size=REQUESTS)))
    elif isinstance(present, Message):
        present.CopyFrom(draw(value))
        present.SetInParent()
    else:
        setattr(message, field.name, draw(value))


def _values(field: FieldDescriptor, likely: Mapping[str, st.SearchStrategy[Any]], depth: int) -> st.SearchStrategy[Any]:
    """Anything that the type of a field allows."""
    kind = field.cpp_type
    if kind in _BITS:
        least, most = _BITS[kind]
        return st.one_of(st.integers(max(-1, least), 70), st.integers(least, most))
    if field.message_type is not None:
        if depth == 0:
            return st.just(GetMessageClass(field.message_type)())
        return _messages(field.message_type, likely, depth - 1)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=50)
    return _OTHERS[kind]
