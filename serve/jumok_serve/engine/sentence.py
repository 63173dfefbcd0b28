"""A sentence on its way through the engine, its outcome, and the future of that."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from jumok_proto.errors import DeadlineExceededError, JumokError
from jumok_serve.engine.statistics import Cause, EngineCounters, Progress, Stage
from jumok_serve.runtime.graphs import Integers
from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.search import FinishedHypothesis, Search

T = TypeVar("T")

logger = logging.getLogger(__name__)

_LOCK = threading.Lock()
"""Held for moments while any future changes. Nothing is allocated or called meanwhile: garbage collection may close an
object that cancels a future."""


class Future(Generic[T]):
    """A result or error that may still be missing; thread-safe.

    It works like a ``concurrent.futures.Future`` that never starts to run, except that a late result is ignored. The
    library's class has a lock and a condition in each object, which cost memory and time. The library's functions,
    such as ``wait``, do not accept this class.
    """

    __slots__ = ("_callbacks", "_cancel_callbacks", "_cancelled", "_done", "_error", "_result")

    def __init__(self) -> None:
        self._done = self._cancelled = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._callbacks: tuple[Callable[[Future[T]], object], ...] = ()
        self._cancel_callbacks: tuple[Callable[[], object], ...] = ()

    def done(self) -> bool:
        """True if it has a result or an error, or was cancelled."""
        return self._done

    def cancelled(self) -> bool:
        """True if it was cancelled."""
        return self._cancelled

    def cancel(self) -> bool:
        """Cancel it unless it is done; True if it is cancelled."""
        self._settle(None, None, True)
        return self._cancelled

    def set_result(self, result: T) -> bool:
        """Complete it unless it is done; True if it was not."""
        return self._settle(result, None, False)

    def set_exception(self, error: BaseException) -> bool:
        """Fail it unless it is done; True if it was not."""
        return self._settle(None, error, False)

    def _settle(self, result: T | None, error: BaseException | None, cancelled: bool) -> bool:
        with _LOCK:
            if self._done:
                return False
            self._result, self._error, self._cancelled = result, error, cancelled
            self._done = True
            callbacks, self._callbacks = self._callbacks, ()
            cancel_callbacks, self._cancel_callbacks = self._cancel_callbacks, ()  # they may refer to the future
        for cancel_callback in cancel_callbacks if cancelled else ():
            cancel_callback()
        for callback in callbacks:
            self._call(callback)
        return True

    def add_done_callback(self, callback: Callable[["Future[T]"], object]) -> None:
        """Call `callback` with this future when done; at once if it is.

        The callback runs in the thread that completes the future.
        """
        while not self._done:
            before = self._callbacks
            after = (*before, callback)
            with _LOCK:
                if self._callbacks is before and not self._done:
                    self._callbacks = after
                    return
        self._call(callback)

    def _call(self, callback: Callable[["Future[T]"], object]) -> None:
        try:
            callback(self)
        except Exception:  # must not reach the thread that completes the future
            logger.exception("a callback of a future failed")

    def add_cancel_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback` on cancellation, before done callbacks; at once if cancelled.

        A cancellation at the same time may call it twice. It must neither fail nor block. Callers in several threads
        must take turns.
        """
        self._cancel_callbacks += (callback,)
        if self._done:
            self._cancel_callbacks = ()
            if self._cancelled:
                callback()

    def result(self, timeout: float | None = None) -> T:
        """Return the result; waits at most `timeout` seconds, or without bound.

        Raises:
            TimeoutError: it is not done in time.
            CancelledError: of ``concurrent.futures``, it was cancelled.
            BaseException: the error that it failed with.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._result  # type: ignore[return-value]  # set if there is no error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None; waits and raises as `result` does."""
        if not self._done:
            over = threading.Event()
            self.add_done_callback(lambda _: over.set())
            if not over.wait(timeout):
                raise TimeoutError(f"the result was not ready within {timeout} s")
        if self._cancelled:
            raise CancelledError
        return self._error


DEADLINE_SLACK_S = 0.05
"""A sentence given up this close to its deadline counts as late, not as cancelled by its caller."""

SENTENCE_BYTES, TOKEN_BYTES = 1536, 48
"""Memory of a waiting sentence, and of each of its tokens, rounded up."""

_DEADLINE_PASSED = {
    Stage.QUEUE: "the deadline passed while the text waited in the queue",
    Stage.DECODE: "the deadline passed while the text was being translated",
}


Lane: TypeAlias = tuple[int, bool]
"""Key of a replica's batches: beam size, and True for the light sentences."""


class Decoded(NamedTuple):
    """The outcome of a sentence.

    Attributes:
        hypotheses: best first, or in the order they were drawn.
        queue_s: seconds from arrival to admission, without the encoder run.
        encode_s: seconds of the encoder run.
        decode_s: seconds from admission to the last step.
    """

    hypotheses: tuple[FinishedHypothesis, ...]
    queue_s: float
    encode_s: float
    decode_s: float


@dataclass(slots=True, kw_only=True, eq=False)
class Sentence:
    """One sentence in the engine. Times are in `time.monotonic()` seconds.

    Attributes:
        source_ids: token ids, end token included.
        plan: its search, which begins when the sentence is admitted.
        caller: key of the caller; callers share the engine by work.
        work: estimated work, in row steps.
        light: True if it is decoded apart from the sentences of callers with much work.
        allowed_tokens: tokens that may be written, ascending; None: all. Used only with a shortlist.
        deadline: time by which it must be done, or None.
        future: gets the outcome; cancelling it takes the sentence out before the next step.
        arrived: time of its submission.
        admitted: time at which it got a slot, encoded.
        encode_s: seconds of its encoder run.
        failure: reason why it cannot be decoded, or None.
        progress: gets the stable tokens after each step, or None.
        counts_as_text: True for one sentence of each text.
    """

    source_ids: Sequence[int]
    plan: SearchPlan
    allowed_tokens: Integers | None = None
    deadline: float | None = None
    future: Future[Decoded] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    admitted: float = 0.0
    encode_s: float = 0.0
    failure: JumokError | None = None
    progress: Progress | None = None
    caller: str = ""
    light: bool = False
    work: int = field(init=False)
    counts_as_text: bool = True
    _search: Search | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.work = self.plan.step_work * self.plan.expected_steps(len(self.source_ids))

    @property
    def lane(self) -> Lane:
        """The batch that it belongs to."""
        return self.plan.rows, self.light

    @property
    def rows(self) -> int:
        """Rows of every step."""
        return self.plan.rows

    @property
    def search(self) -> Search:
        """The search; begins at the first use, because it takes memory for every row."""
        if self._search is None:
            self._search = self.plan.begin()
        return self._search

    @property
    def used_work(self) -> int:
        """Work of its steps so far, in row steps; a few of the last may be missing while it is decoded."""
        return 0 if self._search is None else self.plan.step_work * self._search.position

    @property
    def waiting_bytes(self) -> int:
        """Estimated memory that it takes while it waits, with its future and the request's share."""
        listed = 0 if self.allowed_tokens is None else self.allowed_tokens.nbytes
        return SENTENCE_BYTES + TOKEN_BYTES * (len(self.source_ids) + len(self.plan.prefix)) + listed

    def abandoned(self, now: float) -> bool:
        """True if it was cancelled, or its deadline has passed."""
        return self.future.cancelled() or (self.deadline is not None and now > self.deadline)

    def abandon_if_due(self, stage: Stage, counters: EngineCounters, now: float) -> bool:
        """Abandon the sentence if it was cancelled or is late, and return if so."""
        if not self.abandoned(now):
            return False
        self.abandon(stage, counters, now)
        return True

    def abandon(self, stage: Stage, counters: EngineCounters, now: float) -> None:
        """Count an abandoned sentence, and fail its future unless that was cancelled."""
        late = self.deadline is not None and now > self.deadline - DEADLINE_SLACK_S
        counters.given_up[stage, Cause.DEADLINE if late else Cause.CANCELLED] += 1
        self.fail(DeadlineExceededError(_DEADLINE_PASSED[stage]))

    def decoded(self) -> Decoded | None:
        """Return the outcome after the last step; None if the model failed."""
        if self.failure is not None:
            return None
        return Decoded(
            hypotheses=tuple(self.search.hypotheses()),
            queue_s=self.queue_s,
            encode_s=self.encode_s,
            decode_s=time.monotonic() - self.admitted,
        )

    @property
    def queue_s(self) -> float:
        """Seconds from arrival to admission, without the encoder run."""
        return self.admitted - self.arrived - self.encode_s

    def deliver(self, outcome: Decoded | None) -> None:
        """Complete the future with a result or failure, unless done."""
        if outcome is None:
            assert self.failure is not None
            self.fail(self.failure)
            return
        self.future.set_result(outcome)

    def fail(self, error: Exception) -> None:
        """Fail the future, unless it is done."""
        self.future.set_exception(error)


class CancellationWatch:
    """Notes cancellations, and the first deadline.

    Futures keep this object alive. It keeps nothing else alive, so futures keep neither batches nor queues.
    """

    def __init__(self) -> None:
        self._cancelled = False
        self._first_deadline = math.inf

    def watch(self, sentences: Iterable[Sentence]) -> None:
        """Watch more sentences."""
        for one in sentences:
            one.future.add_cancel_callback(self._note)
            if one.deadline is not None:
                self._first_deadline = min(self._first_deadline, one.deadline)

    def triggered(self, now: float) -> bool:
        """True after a cancellation since `reset`, or after the first deadline."""
        return self._cancelled or now > self._first_deadline

    def reset(self, sentences: Iterable[Sentence], now: float) -> None:
        """Reset before a scan of all work; later cancellations trigger again."""
        self._cancelled = False
        deadlines = (one.deadline for one in sentences if one.deadline is not None and one.deadline >= now)
        self._first_deadline = min(deadlines, default=math.inf)

    def _note(self) -> None:
        self._cancelled = True
