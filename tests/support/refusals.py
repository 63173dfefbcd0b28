"""Requests that are refused by the name of a field."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jumok_proto.errors import InvalidArgumentError


@contextmanager
def refused(field: str, message: str = "") -> Iterator[None]:
    """Expect an invalid argument in a field, with a message in which a pattern is found."""
    with pytest.raises(InvalidArgumentError) as caught:
        yield
    assert caught.value.field == field
    assert re.search(message, str(caught.value))
