"""Errors of models, which take lists of texts, for requests of one text."""

from collections.abc import Iterator
from contextlib import contextmanager

from jumok_proto.errors import InvalidArgumentError

NAMES = {"contents[0]": "content", "target_prefixes[0]": "target_prefix"}


@contextmanager
def naming_one_text() -> Iterator[None]:
    """Say of an InvalidArgumentError what the fields of the only text are called."""
    try:
        yield
    except InvalidArgumentError as error:
        if error.field not in NAMES:
            raise
        name = NAMES[error.field]
        raise InvalidArgumentError(str(error).replace(error.field, name), field=name) from error
