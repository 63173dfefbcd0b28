"""Conversion of results to messages and back, field by field."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, get_args, get_origin

from google.protobuf.message import Message

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

Value = TypeVar("Value")
Sent = TypeVar("Sent", bound=Message)
Name = TypeVar("Name", bound=str)
Number = TypeVar("Number", bound=int)

_SENT_NAMES = {
    "language": "language_code",
    "source": "source_language_code",
    "source_language": "source_language_code",
    "source_languages": "source_language_codes",
    "source_confidence": "source_language_confidence",
    "target": "target_language_code",
    "target_language": "target_language_code",
    "target_languages": "target_language_codes",
    "default_pair": "default_language_pair",
    "queue_s": "queue_duration",
    "encode_s": "encode_duration",
    "decode_s": "decode_duration",
    "total_s": "total_duration",
    "created": "create_time",
    "type": "resource_type",
    "name": "resource_name",
}
"""Fields of messages without a field of the same name, by the results' names."""


class Form(NamedTuple):
    """How messages hold a value."""

    to_proto: Callable[[Any], Any]
    from_proto: Callable[[Any], Any]


AnyForm: TypeAlias = "Form | Conversion[Any, Any] | Enumeration[Any, Any]"


def each(form: "AnyForm") -> Form:
    """Give the form of a repeated field, with the form of its items."""
    return Form(lambda values: map(form.to_proto, values), lambda messages: tuple(map(form.from_proto, messages)))


class Conversion(Generic[Value, Sent]):
    """Conversion of a type of results.

    Args:
        kind: dataclass or named tuple.
        message: message with a field for each field of ``kind``.
        fields: fields to convert; all by default.
        form: form of all fields without another one.
        forms: forms of fields that messages hold in another way.
    """

    def __init__(
        self,
        kind: type[Value],
        message: type[Sent],
        *,
        fields: Iterable[str] | None = None,
        form: Form | None = None,
        **forms: "AnyForm",
    ) -> None:
        self._kind: Callable[..., Value] = kind
        self._message = message
        known = message.DESCRIPTOR.fields_by_name
        self._writers: list[tuple[str, Callable[[Value], Any]]] = []
        self._readers: list[tuple[str, Callable[[Sent], Any]]] = []
        for name in kind.__annotations__ if fields is None else fields:
            field, annotation = known[name if name in known else _SENT_NAMES[name]], kind.__annotations__[name]
            origin: Any = get_origin(annotation)
            chosen = forms.get(name, form) or (Form(tuple, tuple) if origin is tuple else None)
            optional = NoneType in get_args(annotation)
            self._writers.append((field.name, _writer(name, chosen)))
            self._readers.append(
                (name, _reader(field.name, chosen, optional=optional, has_presence=field.has_presence))
            )

    def to_proto(self, result: Value, **others: object) -> Sent:
        """Make the message of a result, with values of its other fields."""
        return self._message(**{name: write(result) for name, write in self._writers}, **others)

    def from_proto(self, message: Sent, **others: object) -> Value:
        """Read a message into a result, with values of its other fields."""
        return self._kind(**self.read(message), **others)

    def read(self, message: Sent) -> dict[str, Any]:
        """Read the fields of a message."""
        return {name: read(message) for name, read in self._readers}


def _writer(name: str, form: "AnyForm | None") -> Callable[[Any], Any]:
    """Make a function that gives the value of a message's field from a result; None leaves it out."""
    get = attrgetter(name)
    if form is None:
        return get
    return lambda result: None if (value := get(result)) is None else form.to_proto(value)


def _reader(name: str, form: "AnyForm | None", *, optional: bool, has_presence: bool) -> Callable[[Any], Any]:
    """Make a function that gives the value of a result's field from a message.

    Args:
        optional: True for None if the message lacks the field, or if it has the default of a field without presence.
        has_presence: True if messages tell a field that is not set from one with the default.
    """
    get: Callable[[Any], Any] = attrgetter(name)
    read: Callable[[Any], Any] = get if form is None else lambda message: form.from_proto(get(message))
    if not optional:
        return read
    if has_presence:
        return lambda message: read(message) if message.HasField(name) else None
    return lambda message: read(message) or None


class Enumeration(Generic[Name, Number]):
    """Conversion of the names of an enum's values, in small letters and without prefix.

    Args:
        prefix: beginning of the values' names.
        refusal: message of the ValueError for an unknown number, with ``{}`` for the number.
        default: name for an unknown number, instead of an error.
    """

    def __init__(
        self,
        names: Iterable[Name],
        enum: "_EnumTypeWrapper[Number]",
        prefix: str,
        *,
        refusal: str = "",
        default: Name | None = None,
    ) -> None:
        self.numbers = {name: enum.Value(f"{prefix}_{name.upper()}") for name in names}
        self._names: dict[int, Name | None] = {number: name for name, number in self.numbers.items()}
        self._refusal, self._default = refusal, default

    def to_proto(self, name: Name) -> Number:
        """Give the number of a name."""
        return self.numbers[name]

    def from_proto(self, number: int) -> Name:
        """Give the name of a number."""
        if (name := self._names.get(number, self._default)) is None:
            raise ValueError(self._refusal.format(number))
        return name
