"""What a request says and this server does not understand."""

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from jumok_proto.errors import InvalidArgumentError


def check_known(message: Message, field: str = "") -> None:
    """Refuse a request that holds a field of a later version, at any depth.

    Ignoring what was asked for would give another answer than the caller wanted, and say nothing.

    Raises:
        InvalidArgumentError: it does; ``field`` is the path of the message that holds it, or ``request`` for the whole.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown) > 0:
        raise InvalidArgumentError(
            f"{field or 'the request'} holds the field number {unknown[0].field_number} with a value that this server "
            "does not know",
            field=field or "request",
        )
    for descriptor, value in message.ListFields():
        if isinstance(value, Message):
            check_known(value, f"{field}.{descriptor.name}".lstrip("."))
