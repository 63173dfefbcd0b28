"""A sentence on its way through the engine, and its outcome."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from jumok_proto.errors import DeadlineExceededError, JumokError
from jumok_serve.engine.future import Future
from jumok_serve.engine.statistics import Cause, EngineCounters, Progress, Stage
from jumok_serve.runtime.graphs import Integers
from jumok_serve.search import FinishedHypothesis, Search, SearchPlan

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
