"""Whom a queue refuses: those for whom it has no room, or who cannot be done in time."""

from collections.abc import Callable, Sequence

from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError, OverloadedError
from jumok_serve.engine.batch import Sentence
from jumok_serve.engine.limits import EngineLimits
from jumok_serve.engine.request_queue import Waiting

RETRY_AFTER_S = 1.0
"""What a refused caller is told to wait."""

LEAST_ROOM = 32
"""What part of a queue's room has to be free, as a divisor, if requests are to be read at all: in an overload of small
requests the last places are free most of the time, and too few for the next."""


def is_full(waiting: Waiting, limits: EngineLimits) -> bool:
    """Whether there is no room worth looking at what is to wait: none, or less than `LEAST_ROOM` of the whole."""
    return _is_full(len(waiting), limits.max_queue_requests) or _is_full(waiting.tokens, limits.max_queue_tokens)


def check_room(waiting: Waiting, limits: EngineLimits, sentences: int, tokens: int) -> None:
    """Refuse so many sentences and tokens that they do not fit.

    Raises:
        InvalidArgumentError: they would not if nobody waited.
        OverloadedError: they do not now.
    """
    for what, present, more, bound in (
        ("sentences", len(waiting), sentences, limits.max_queue_requests),
        ("tokens", waiting.tokens, tokens, limits.max_queue_tokens),
    ):
        if more > bound:
            raise InvalidArgumentError(
                f"a request takes at most {bound} {what} here, got {more}: send several", field="contents"
            )
        if present + more > bound:
            raise OverloadedError(
                f"the queue holds {present} of at most {bound} {what}: no room for {more} more",
                retry_after_s=RETRY_AFTER_S,
            )


def check_deadlines(sentences: Sequence[Sentence], least_wait_s: Callable[[], float], now: float) -> None:
    """Refuse sentences one of which would be late even if the queue emptied faster than it ever has.

    Args:
        sentences: of one request.
        least_wait_s: the seconds that takes.
        now: in `time.monotonic()` seconds.

    Raises:
        DeadlineExceededError: one would be.
    """
    deadline = min((one.deadline for one in sentences if one.deadline is not None), default=None)
    if deadline is None:
        return
    left_s = deadline - now
    if left_s <= 0:
        raise DeadlineExceededError("the deadline had passed when the request arrived")
    wait_s = least_wait_s()
    if left_s < wait_s:
        raise DeadlineExceededError(
            f"the queue takes {wait_s:.1f} s at least, and the deadline passes in {left_s:.1f} s: give more "
            "time, or come back later"
        )


def _is_full(present: int, bound: int) -> bool:
    return present + max(1, bound // LEAST_ROOM) > bound
