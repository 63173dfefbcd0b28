"""Ends of long work before it is done: its deadline passes, or its caller leaves."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from contextvars import ContextVar

from jumok_proto.errors import DeadlineExceededError

_has_left: ContextVar[Callable[[], bool] | None] = ContextVar("has_left", default=None)


@contextmanager
def interruptible(has_left: Callable[[], bool]) -> Iterator[None]:
    """Let `check` ask, within this context, if the caller has left."""
    token = _has_left.set(has_left)
    try:
        yield
    finally:
        _has_left.reset(token)


def check(deadline: float | None, doing: str) -> None:
    """Raise if the caller has left or the deadline has passed; long work calls it between its parts.

    Args:
        deadline: moment of ``time.monotonic()``; None: no limit.
        doing: the present part of the work, for the message.

    Raises:
        CancelledError: of ``concurrent.futures``, the caller has left.
        DeadlineExceededError: the deadline has passed.
    """
    has_left = _has_left.get()
    if has_left is not None and has_left():
        raise CancelledError
    if deadline is not None and time.monotonic() > deadline:
        raise DeadlineExceededError(f"the deadline passed while {doing}")
