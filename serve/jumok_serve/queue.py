"""The queue that an engine's replicas share: who waits, what each replica decodes, and who takes what next."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from jumok_serve.batch import Sentence
from jumok_serve.counters import Cause, EngineCounters, Stage
from jumok_serve.departures import Departures
from jumok_serve.drain import DrainRate
from jumok_serve.engine_limits import EngineLimits
from jumok_serve.errors import DeadlineExceeded, EngineFailed, InvalidRequest, Overloaded, Unavailable
from jumok_serve.occupancy import Elsewhere, Load, Occupancy
from jumok_serve.outcome import fail

RETRY_AFTER_S = 1.0
"""What a refused caller is told to wait."""

SWEEP_INTERVAL_S = 0.05
"""How often the whole queue is searched for sentences that nobody waits for any more."""

LEAST_ROOM = 32
"""What part of a queue's room has to be free, as a divisor, if requests are to be read at all: in an overload of small
requests the last places are free most of the time, and too few for the next."""

LEAST_RETRY_AFTER_S = 0.1
"""The same where it is about to be able to answer."""

ENGINE_FAILED = "the engine of the model has failed, and is being started anew"

DEADLINE_SLACK_S = 0.05
"""How close to its deadline a sentence is given up because of it, and not by its caller's own will."""

MAX_JOINING_TOKENS = 512
"""Source tokens that a replica encodes at most between two steps, so that those it decodes are not held up for long."""

JOINING_SHARE = 8
"""What part of its room a replica waits for, as a divisor, while more wait than it has room for: to encode few
sentences takes hardly less than to encode several. With a model of 6 MiB that made 1,000 sentences 6 % faster with beam
size 1, and 10 % with 4."""


class SentenceQueue:
    """Sentences in the order of their arrival, for one replica or several; calls may come from any thread.

    Nobody is passed: the first sentence goes to the first replica that has room for it. While there are few rows,
    waiting and decoded, they all go to the replica that decodes most, as far as it has room. A replica takes up to its
    share of more, which is all rows divided by the replicas, so that those who are idle divide what comes; beyond that
    only the one with the fewest rows takes any, so nobody waits for ever. One that decodes takes no more than
    `MAX_JOINING_TOKENS` at a time, or one sentence; while more wait than it has room for, not a few at a time either.

    A replica that has failed stands aside until it has come back. Sentences wait for it, where there is no other, as
    long as it does not give up.

    Args:
        limits: bounds of queue and batches.
        replicas: how many threads take from it.
    """

    def __init__(self, limits: EngineLimits, replicas: int) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._waiting: deque[Sentence] = deque()
        self._tokens = 0  # source tokens of those that wait
        self._rows = 0  # rows that they will have
        self._work = 0  # source tokens times beam size
        self._drain = DrainRate(limits.max_batch_tokens)
        self.counters = EngineCounters()
        """What became of those that were not waited for; written by whoever holds the lock."""
        self.tell_ready: Callable[[], None] = lambda: None
        """For replicas to call when `ready` may have changed."""
        self._occupied = [Occupancy() for _ in range(replicas)]
        self._aside: set[int] = set()
        self._gave_up: dict[int, float] = {}  # of those, when each tries again, in `time.monotonic()` seconds
        self._closing = False
        self._closed = threading.Event()
        self._aborting = False
        self._departures = Departures()
        self._next_sweep = 0.0

    def add(self, sentences: Sequence[Sentence]) -> None:
        """Lets sentences wait, all or none.

        Raises:
            InvalidRequest: they would not fit if nobody waited.
            Overloaded: they do not fit now.
            DeadlineExceeded: a deadline has passed, or would pass even if the queue emptied faster than it ever has.
            EngineFailed: all replicas have given up for a while.
            Unavailable: the queue is closed.
        """
        tokens = sum(len(sentence.source_ids) for sentence in sentences)
        with self._changed:
            self._check_room(len(sentences), tokens)
            self._check_deadlines(sentences)
            self._waiting.extend(sentences)
            self._departures.watch(sentences)
            self._tokens += tokens
            self._rows += sum(sentence.search.beam_size for sentence in sentences)
            self._work += _work(sentences)
            self._changed.notify()  # one replica; it wakes the next if it leaves any

    def check_room(self, sentences: int) -> None:
        """Refuses so many sentences, of which nothing else is known yet, where `add` would; see there."""
        with self._changed:
            self._check_room(sentences, 0)

    @property
    def full(self) -> bool:
        """Whether there is no room worth looking at what is to wait: none, or less than `LEAST_ROOM` of the whole.

        Takes no lock, which replicas would have to wait for.
        """
        full = _is_full(len(self._waiting), self._limits.max_queue_requests)
        full = full or _is_full(self._tokens, self._limits.max_queue_tokens)
        return full and not self._closing and self._ready()

    def _check_room(self, sentences: int, tokens: int) -> None:
        if self._closing:
            raise Unavailable("the model is being stopped", retry_after_s=RETRY_AFTER_S)
        if not self._ready():
            wait_s = min(self._gave_up.values()) - time.monotonic()
            raise EngineFailed(ENGINE_FAILED, retry_after_s=max(LEAST_RETRY_AFTER_S, wait_s))
        for what, present, more, bound in (
            ("sentences", len(self._waiting), sentences, self._limits.max_queue_requests),
            ("tokens", self._tokens, tokens, self._limits.max_queue_tokens),
        ):
            if more > bound:
                raise InvalidRequest(
                    f"a request takes at most {bound} {what} here, got {more}: send several", field="contents"
                )
            if present + more > bound:
                raise Overloaded(
                    f"the queue holds {present} of at most {bound} {what}: no room for {more} more",
                    retry_after_s=RETRY_AFTER_S,
                )

    def take(self, replica: int, occupied: Occupancy) -> list[Sentence] | None:
        """Gives a replica what it is to admit now; blocks while it has nothing to do.

        Args:
            replica: its number, from 0.
            occupied: what it decodes; the queue counts in what it gives.

        Returns:
            Sentences in the order of their arrival; none where it has something to decode, but nothing to admit.
            None: the queue is closed, and nothing is left to do.

        Raises:
            Unavailable: what is decoded is to be given up.
        """
        with self._changed:
            self._occupied[replica] = occupied
            decoding = occupied.rows > 0
            taken = self._take(occupied)
            while not (taken or decoding or (self._closing and not self._waiting)):
                self._changed.wait()
                taken = self._take(occupied)
            if self._waiting:
                self._changed.notify()  # an idle replica may have room
            elif self._closing:
                self._changed.notify_all()
            if decoding and self._aborting:
                raise Unavailable("the model was stopped", retry_after_s=RETRY_AFTER_S)
            return taken if taken or decoding else None

    def alone(self, replica: int) -> bool:
        """Whether no other replica decodes anything."""
        with self._changed:
            return not any(other.rows for number, other in enumerate(self._occupied) if number != replica)

    def load(self) -> Load:
        """What waits and what is decoded now."""
        with self._changed:
            return Load(
                queued_requests=len(self._waiting),
                queued_tokens=self._tokens,
                running_sentences=sum(occupied.sentences for occupied in self._occupied),
                rows=sum(occupied.rows for occupied in self._occupied),
            )

    @property
    def ready(self) -> bool:
        """Whether sentences that wait are going to be decoded: some replica has not given up."""
        with self._changed:
            return self._ready()

    def step_aside(self, replica: int) -> None:
        """Has the others take what a replica would."""
        with self._changed:
            self._aside.add(replica)
            self._occupied[replica] = Occupancy()
            self._changed.notify_all()

    def give_up(self, replica: int, wait_s: float) -> list[Sentence]:
        """Learns that a replica that stands aside will not be back within so many seconds.

        Returns:
            Those who are not waited for any more: all who wait, if no other replica can take them.
        """
        with self._changed:
            self._gave_up[replica] = time.monotonic() + wait_s
            return [] if self._ready() else self._empty()

    def come_back(self, replica: int) -> None:
        """Lets a replica that stood aside take part again."""
        with self._changed:
            self._aside.discard(replica)
            self._gave_up.pop(replica, None)

    def wait_for_close(self, timeout_s: float) -> bool:
        """Waits; whether the queue was closed before the time was over."""
        return self._closed.wait(timeout_s)

    def _ready(self) -> bool:
        return len(self._gave_up) < len(self._occupied)

    def _empty(self) -> list[Sentence]:
        """Takes out all who wait."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self._tokens = self._rows = self._work = 0
        return waiting

    def close(self, *, drain: bool) -> list[Sentence]:
        """Lets nobody in any more; returns those who are not waited for (without `drain`: all who wait)."""
        with self._changed:
            self._closing = True
            self._closed.set()
            self._changed.notify_all()
            if drain:
                return []
            self._aborting = True
            return self._empty()

    def _take(self, occupied: Occupancy) -> list[Sentence]:
        """Takes in order what the replica has room for."""
        work = self._work
        self._sweep()
        if not self._waiting and work == self._work:
            return []
        room = MAX_JOINING_TOKENS if occupied.rows else self._limits.max_queue_tokens
        others = [
            other for number, other in enumerate(self._occupied) if other is not occupied and number not in self._aside
        ]
        elsewhere = Elsewhere(others)
        rows = occupied.rows + elsewhere.rows + self._rows
        few = rows <= self._limits.max_alone_rows
        share = rows if few else rows / (1 + len(others))
        taken: list[Sentence] = []
        held = self._is_nearly_full(occupied)
        while self._waiting and not held:
            sentence = self._waiting[0]
            if not self._drop_abandoned(sentence):
                enough = occupied.rows > elsewhere.fewest_rows and occupied.rows + sentence.search.beam_size > share
                enough = enough or (few and self._has_a_busier_replica(sentence, occupied))
                room -= len(sentence.source_ids)
                if enough or (taken and room < 0) or not self._fits(sentence, occupied, elsewhere):
                    break
                occupied.add(sentence)
                taken.append(sentence)
            self._waiting.popleft()
            self._tokens -= len(sentence.source_ids)
            self._rows -= sentence.search.beam_size
            self._work -= len(sentence.source_ids) * sentence.search.beam_size
        if work > self._work:
            self._drain.leaves(work - self._work, time.monotonic(), waiting=bool(self._waiting))
        return taken

    def _check_deadlines(self, sentences: Sequence[Sentence]) -> None:
        deadline = min((one.deadline for one in sentences if one.deadline is not None), default=None)
        if deadline is None:
            return
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded("the deadline had passed when the request arrived")
        wait_s = self._drain.least_wait_s(self._work)
        if left_s < wait_s:
            raise DeadlineExceeded(
                f"the queue takes {wait_s:.1f} s at least, and the deadline passes in {left_s:.1f} s: give more "
                "time, or come back later"
            )

    def _has_a_busier_replica(self, sentence: Sentence, occupied: Occupancy) -> bool:
        """Whether a replica that decodes more has room for the sentence."""
        return any(
            busier.rows > occupied.rows
            and not self._is_nearly_full(busier)
            and self._fits(sentence, busier, Elsewhere(other for other in self._occupied if other is not busier))
            for busier in self._occupied
        )

    def _fits(self, sentence: Sentence, occupied: Occupancy, elsewhere: Elsewhere) -> bool:
        """Whether replica and engine stay within their bounds with one more sentence, or decode nothing else."""
        parts = len(self._occupied)
        for wanted, others_have, bound in (
            (occupied.rows + sentence.search.beam_size, elsewhere.rows, self._limits.max_batch_rows),
            (occupied.tokens_with(sentence), elsewhere.tokens, self._limits.max_batch_tokens),
        ):
            if bound is None:
                continue
            if wanted > bound // parts and occupied.rows:
                return False
            if wanted + others_have > bound and (occupied.rows or elsewhere.rows):
                return False
        return True

    def _is_nearly_full(self, occupied: Occupancy) -> bool:
        """Whether a replica has little room, and less than those who wait need, without their sources' padding."""
        parts = len(self._occupied)
        for present, waiting, bound in (
            (occupied.tokens, self._work, self._limits.max_batch_tokens),
            (occupied.rows, self._rows, self._limits.max_batch_rows),
        ):
            if bound is not None:
                free = bound // parts - present
                if waiting > free and JOINING_SHARE * free < bound // parts:
                    return True
        return False

    def _sweep(self) -> None:
        """Drops abandoned sentences wherever they wait; not every time, because it looks at them all."""
        now = time.monotonic()
        if now < self._next_sweep or not self._departures.possible(now):
            return
        self._next_sweep = now + SWEEP_INTERVAL_S
        self._departures.look(self._waiting, now)
        self._waiting = deque(sentence for sentence in self._waiting if not self._drop_abandoned(sentence))
        self._tokens = sum(len(sentence.source_ids) for sentence in self._waiting)
        self._rows = sum(sentence.search.beam_size for sentence in self._waiting)
        self._work = _work(self._waiting)

    def _drop_abandoned(self, sentence: Sentence) -> bool:
        """Whether nobody waits for the sentence any more; then its caller, if still there, is told why."""
        now = time.monotonic()
        abandoned = sentence.abandoned(now)
        if abandoned:
            self.counters.given_up[Stage.QUEUE, given_up_by(sentence, now)] += 1
            fail(sentence, DeadlineExceeded("the deadline passed while the text waited in the queue"))
        return abandoned


def _is_full(present: int, bound: int) -> bool:
    return present + max(1, bound // LEAST_ROOM) > bound


def given_up_by(sentence: Sentence, now: float) -> Cause:
    """Why nobody waits for an abandoned sentence any more."""
    late = sentence.deadline is not None and now > sentence.deadline - DEADLINE_SLACK_S
    return Cause.DEADLINE if late else Cause.CANCELLED


def _work(sentences: Iterable[Sentence]) -> int:
    """Source tokens times beam size."""
    return sum(len(sentence.source_ids) * sentence.search.beam_size for sentence in sentences)
