"""Work that grows with a size, counted or measured so that neither other processes nor the processor decide."""

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

FACTOR = 64
"""Of two sizes: linear time grows 64 times, quadratic time 4,096 times."""
MOST = 512
"""The mean of both: a machine that works eight times as fast or as slow between two measurements decides nothing."""


def assert_linear(make: Callable[[int], T], work: Callable[[T], object], size: int = 1_000) -> None:
    """Check that time grows in proportion to a size, in processor time of this thread.

    Args:
        make: makes the input of a size.
        work: done with the input.
    """

    def took_s(size: int) -> float:
        given = make(size)
        started = time.thread_time()
        work(given)
        return time.thread_time() - started

    alone = min(took_s(size) for _ in range(5))
    for _ in range(3):
        many = took_s(FACTOR * size)
        if many < MOST * alone:
            return
    raise AssertionError(f"{FACTOR} times the size takes {many / alone:.0f} times as long")


def lines_run(work: Callable[[], object]) -> int:
    """Count the lines of Python that some work runs."""
    return _count(work, sys.gettrace, sys.settrace, "line")


def calls_made(work: Callable[[], object]) -> int:
    """Count the calls of some work, those of functions in C included."""
    return _count(work, sys.getprofile, sys.setprofile, "c_call", "call")


def _count(work: Callable[[], object], get: Callable[[], Any], put: Callable[[Any], None], *counted: str) -> int:
    count = 0

    def note(_: FrameType, event: str, __: object) -> Any:
        nonlocal count
        count += event in counted
        return note

    before = get()
    put(note)
    try:
        work()
    finally:
        put(before)
    return count
