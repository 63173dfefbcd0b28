"""Memory of Python's objects."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def traced() -> Iterator[Callable[[], tuple[int, int]]]:
    """Trace memory; yield a function that returns the bytes taken at present, and the most at any time."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()
