"""Errors of parts of a request, named by the texts of the request."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from jumok_proto.errors import InvalidArgumentError


@contextmanager
def blamed_texts(index_of: Callable[[int], int]) -> Iterator[None]:
    """Give errors of a part the field of its text.

    Args:
        index_of: returns the index of a part's text.
    """
    try:
        yield
    except InvalidArgumentError as error:
        blamed = re.fullmatch(r"(contents|target_prefixes)\[(\d+)\]", error.field)
        if blamed is None:
            raise
        field = f"{blamed[1]}[{index_of(int(blamed[2]))}]"
        raise InvalidArgumentError(str(error).replace(error.field, field), field=field) from error


def text_of_part(counts: Sequence[int], part: int) -> int:
    """Return the index of a part's text, from the number of parts of each text."""
    return bisect_right(list(accumulate(counts)), part)
