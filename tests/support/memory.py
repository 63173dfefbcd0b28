"""Memory of Python's objects."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TIMES = 2


@contextmanager
def traced() -> Iterator[Callable[[], tuple[int, int]]]:
    """Trace memory; yield a function that returns the bytes taken at present, and the most at any time."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


def memory_of(run: Callable[[], object]) -> tuple[int, int]:
    """Return the bytes that a call's result takes, and the most during the call: the least of several calls.

    What threads and finalizers of other tests allocate meanwhile only adds.
    """
    return tuple(map(min, zip(*(_memory_of(run) for _ in range(TIMES)), strict=True)))


def _memory_of(run: Callable[[], object]) -> tuple[int, int]:
    with traced() as memory:
        result = run()
        taken = memory()
        del result
    return taken
