"""The queue that an engine's replicas share: who waits, what each replica decodes, and who takes what next."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from jumok_proto.errors import DeadlineExceededError, EngineFailedError, UnavailableError
from jumok_serve.engine.admission import RETRY_AFTER_S, check_deadlines, check_room, is_full
from jumok_serve.engine.batch import Sentence
from jumok_serve.engine.cancellation import Departures
from jumok_serve.engine.capacity import Room
from jumok_serve.engine.counters import Cause, EngineCounters, Stage
from jumok_serve.engine.drain import DrainRate
from jumok_serve.engine.limits import EngineLimits
from jumok_serve.engine.occupancy import Elsewhere, Load, Occupancy
from jumok_serve.engine.request_queue import Waiting
from jumok_serve.engine.sentence import fail

SWEEP_INTERVAL_S = 0.05
"""How often the whole queue is searched for sentences that nobody waits for any more."""

LEAST_RETRY_AFTER_S = 0.1
"""What a refused caller is told to wait at least, where all replicas are about to be started anew."""

ENGINE_FAILED = "the engine of the model has failed, and is being started anew"

DEADLINE_SLACK_S = 0.05
"""How close to its deadline a sentence is given up because of it, and not by its caller's own will."""

MAX_JOINING_TOKENS = 512
"""Source tokens that a replica encodes at most between two steps, so that those it decodes are not held up for long."""

AHEAD_SHARE = 4
"""What part of those who wait replicas encode before there is room for them at most, as a divisor: each is left to the
replica that encoded it. With a model of 6 MiB that made 1,000 sentences 5 % faster with beam size 4, of which few have
room at once, and no slower with 1."""


class SentenceQueue:
    """Sentences in the order of their arrival, for one replica or several; calls may come from any thread.

    Nobody who waits is passed: the first sentence goes to the first replica that has room for it. While there are few
    rows, waiting and decoded, they all go to the replica that decodes most, as far as it has room. A replica takes up
    to its share of more, which is all rows divided by the replicas, so that those who are idle divide what comes;
    beyond that only the one with the fewest rows takes any, so nobody waits for ever. One that decodes takes no more
    than `MAX_JOINING_TOKENS` at a time, or one sentence; while more wait than it has room for, not a few at a time
    either. What is left of these tokens may be encoded ahead, of sentences for which no replica has room: they join as
    soon as theirs has, which takes no others before.

    A replica that has failed stands aside until it has come back. Sentences wait for it, where there is no other, as
    long as it does not give up.

    Args:
        limits: bounds of queue and batches.
        replicas: how many threads take from it.
    """

    def __init__(self, limits: EngineLimits, replicas: int) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._waiting = Waiting()
        self._drain = DrainRate(limits.max_batch_tokens)
        self.counters = EngineCounters()
        """What became of those that were not waited for; written by whoever holds the lock."""
        self.tell_ready: Callable[[], None] = lambda: None
        """For replicas to call when `ready` may have changed."""
        self._room = Room(limits, replicas)
        self._occupied = [Occupancy() for _ in range(replicas)]
        self._ahead: list[Sequence[Sentence]] = [()] * replicas  # those that each has encoded ahead
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
            InvalidArgumentError: they would not fit if nobody waited.
            OverloadedError: they do not fit now.
            DeadlineExceededError: a deadline has passed, or would pass even if the queue emptied faster than it ever has.
            EngineFailedError: all replicas have given up for a while.
            UnavailableError: the queue is closed.
        """
        tokens = _tokens(sentences)
        with self._changed:
            self._check_room(len(sentences), tokens)
            least_wait_s = partial(self._drain.least_wait_s, self._waiting.work)
            check_deadlines(sentences, least_wait_s, time.monotonic())
            self._waiting.extend(sentences)
            self._departures.watch(sentences)
            self._wake_others()  # it wakes the next if it leaves any

    def check_room(self, sentences: int) -> None:
        """Refuses so many sentences, of which nothing else is known yet, where `add` would; see there."""
        with self._changed:
            self._check_room(sentences, 0)

    @property
    def full(self) -> bool:
        """Whether there is no room worth looking at what is to wait; see `is_full`.

        Takes no lock, which replicas would have to wait for.
        """
        return is_full(self._waiting, self._limits) and not self._closing and self._ready()

    def _check_room(self, sentences: int, tokens: int) -> None:
        if self._closing:
            raise UnavailableError("the model is being stopped", retry_after_s=RETRY_AFTER_S)
        if not self._ready():
            wait_s = min(self._gave_up.values()) - time.monotonic()
            raise EngineFailedError(ENGINE_FAILED, retry_after_s=max(LEAST_RETRY_AFTER_S, wait_s))
        check_room(self._waiting, self._limits, sentences, tokens)

    def take(self, replica: int, occupied: Occupancy) -> list[Sentence] | None:
        """Gives a replica that has encoded nobody ahead what it is to admit now; blocks while it has nothing to do.

        Args:
            replica: its number, from 0.
            occupied: what it decodes; the queue counts in what it gives.

        Returns:
            Sentences in the order of their arrival; none where it has something to decode, but nothing to admit.
            None: the queue is closed, and nothing is left to do.

        Raises:
            UnavailableError: what is decoded is to be given up.
        """
        with self._changed:
            self._occupied[replica], self._ahead[replica] = occupied, ()
            decoding = occupied.rows > 0
            taken = self._take(occupied)
            self._wake_others()
            while not (taken or decoding or (self._closing and not self._waiting)):
                self._changed.wait()
                taken = self._take(occupied)
                if taken or self._closing:  # otherwise idle replicas would wake each other for ever
                    self._wake_others()
            if decoding and self._aborting:
                raise UnavailableError("the model was stopped", retry_after_s=RETRY_AFTER_S)
            return taken if taken or decoding else None

    def take_ahead(self, replica: int, taken: Sequence[Sentence]) -> list[Sentence]:
        """Gives a replica more sentences for the same encoder runs, though it has no room for them yet.

        To encode few sentences takes hardly less than to encode several, and with beams there is room for few at once.

        Args:
            replica: its number.
            taken: those that it has just been given.

        Returns:
            At most its part of an `AHEAD_SHARE` of those who wait, in the order of their arrival. None where some
            replica has room for the first of these.
        """
        with self._changed:
            most = len(self._waiting) // (AHEAD_SHARE * len(self._occupied))
            ahead: list[Sentence] = []
            if not most or any(self._would_take(number, self._waiting.first) for number in range(len(self._occupied))):
                return ahead
            room, work = MAX_JOINING_TOKENS - _tokens(taken), self._waiting.work
            while self._waiting and len(ahead) < most:
                sentence = self._waiting.first
                if not self._has_left(sentence):
                    room -= len(sentence.source_ids)
                    # Who is over a replica's part waits until others decode little, and all behind it wait too.
                    if room < 0 or not self._room.is_for_one(sentence):
                        break
                    ahead.append(sentence)
                self._waiting.leave()
            self._note_drain(work)
            self._ahead[replica] = ahead
            return ahead

    def fitting(self, replica: int, occupied: Occupancy, ahead: Sequence[Sentence]) -> list[Sentence]:
        """Those of the first sentences that a replica has encoded ahead for which it has room now.

        Blocks until there are some, where it has nothing else to do.

        Args:
            replica: its number.
            occupied: what it decodes; the queue counts in those for which there is room.
            ahead: in the order of their arrival.

        Raises:
            UnavailableError: what is decoded is to be given up.
        """
        with self._changed:
            self._occupied[replica], self._ahead[replica] = occupied, ahead
            decoding = occupied.rows > 0
            work = self._waiting.work
            self._sweep()
            self._note_drain(work)
            fitting = self._fitting(occupied, ahead)
            self._wake_others()
            while not (fitting or decoding or self._aborting):
                self._changed.wait()
                fitting = self._fitting(occupied, ahead)
            self._ahead[replica] = ahead[len(fitting) :]
            if self._aborting:
                raise UnavailableError("the model was stopped", retry_after_s=RETRY_AFTER_S)
            return fitting

    def _fitting(self, occupied: Occupancy, ahead: Sequence[Sentence]) -> list[Sentence]:
        fitting: list[Sentence] = []
        elsewhere = self._elsewhere(occupied)
        if not self._has_little_room(occupied, ahead):
            for sentence in ahead:
                if not self._room.fits(sentence, occupied, elsewhere):
                    break
                occupied.add(sentence)
                fitting.append(sentence)
        return fitting

    def _wake_others(self) -> None:
        """Wakes one idle replica, which may have room; all where some may wait for what they have encoded ahead."""
        if any(self._ahead) or (self._closing and not self._waiting):
            self._changed.notify_all()
        elif self._waiting:
            self._changed.notify()

    def _elsewhere(self, occupied: Occupancy) -> Elsewhere:
        """What other replicas decode that have not failed."""
        others = enumerate(self._occupied)
        return Elsewhere(other for number, other in others if other is not occupied and number not in self._aside)

    def _would_take(self, number: int, sentence: Sentence) -> bool:
        """Whether a replica will take the first who waits when it asks for more."""
        occupied = self._occupied[number]
        return (
            number not in self._aside
            and not self._ahead[number]
            and not self._has_little_room(occupied)
            and self._room.fits(sentence, occupied, self._elsewhere(occupied))
        )

    def _claimed(self, number: int) -> Occupancy:
        """What a replica decodes; where that is nothing, the first that it has encoded ahead, which is not passed."""
        occupied = self._occupied[number]
        if occupied.rows or not self._ahead[number]:
            return occupied
        claimed = Occupancy()
        claimed.add(self._ahead[number][0])
        return claimed

    def alone(self, replica: int) -> bool:
        """Whether no other replica decodes anything, or is about to take those who wait."""
        with self._changed:
            others = [number for number in range(len(self._occupied)) if number != replica]
            if any(self._claimed(number).rows for number in others):
                return False
            rows = self._occupied[replica].rows + self._waiting.rows
            if not self._waiting:
                return True
            if rows <= self._limits.max_alone_rows and self._would_take(replica, self._waiting.first):
                return True
            return not any(self._would_take(number, self._waiting.first) for number in others)

    def load(self) -> Load:
        """What waits and what is decoded now."""
        with self._changed:
            return Load(
                queued_requests=len(self._waiting) + sum(map(len, self._ahead)),
                queued_tokens=self._waiting.tokens + sum(_tokens(ahead) for ahead in self._ahead),
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
            self._ahead[replica] = ()
            self._changed.notify_all()

    def give_up(self, replica: int, wait_s: float) -> list[Sentence]:
        """Learns that a replica that stands aside will not be back within so many seconds.

        Returns:
            Those who are not waited for any more: all who wait, if no other replica can take them.
        """
        with self._changed:
            self._gave_up[replica] = time.monotonic() + wait_s
            return [] if self._ready() else self._waiting.clear()

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

    def close(self, *, drain: bool) -> list[Sentence]:
        """Lets nobody in any more; returns those who are not waited for (without `drain`: all who wait)."""
        with self._changed:
            self._closing = True
            self._closed.set()
            self._changed.notify_all()
            if drain:
                return []
            self._aborting = True
            return self._waiting.clear()

    def _take(self, occupied: Occupancy) -> list[Sentence]:
        """Takes in order what the replica has room for."""
        work = self._waiting.work
        self._sweep()
        if not self._waiting and work == self._waiting.work:
            return []
        room = MAX_JOINING_TOKENS if occupied.rows else self._limits.max_queue_tokens
        others = [
            number for number, other in enumerate(self._occupied) if other is not occupied and number not in self._aside
        ]
        elsewhere = Elsewhere(map(self._claimed, others))
        # Who has encoded some ahead takes no others before these have joined.
        fewest_rows = min((self._occupied[other].rows for other in others if not self._ahead[other]), default=math.inf)
        rows = occupied.rows + elsewhere.rows + self._waiting.rows
        few = rows <= self._limits.max_alone_rows
        share = rows if few else rows / (1 + len(others))
        taken: list[Sentence] = []
        held = self._has_little_room(occupied)
        while self._waiting and not held:
            sentence = self._waiting.first
            if not self._has_left(sentence):
                enough = occupied.rows > fewest_rows and occupied.rows + sentence.search.beam_size > share
                enough = enough or (few and self._has_a_busier_replica(sentence, occupied))
                room -= len(sentence.source_ids)
                if enough or (taken and room < 0) or not self._room.fits(sentence, occupied, elsewhere):
                    break
                occupied.add(sentence)
                taken.append(sentence)
            self._waiting.leave()
        self._note_drain(work)
        return taken

    def _note_drain(self, work: int) -> None:
        """Takes note of how much less work waits than before."""
        if work > self._waiting.work:
            self._drain.leaves(work - self._waiting.work, time.monotonic(), waiting=bool(self._waiting))

    def _has_little_room(self, occupied: Occupancy, ahead: Sequence[Sentence] = ()) -> bool:
        """Whether a replica is to wait for more room; it has encoded some of those who wait `ahead`."""
        waiting = self._waiting
        rows = waiting.rows + sum(sentence.search.beam_size for sentence in ahead)
        work = waiting.work + sum(len(sentence.source_ids) * sentence.search.beam_size for sentence in ahead)
        return self._room.is_little(occupied, rows=rows, work=work)

    def _has_a_busier_replica(self, sentence: Sentence, occupied: Occupancy) -> bool:
        """Whether a replica that decodes more has room for the sentence."""
        return any(
            busier.rows > occupied.rows and self._would_take(number, sentence)
            for number, busier in enumerate(self._occupied)
        )

    def _sweep(self) -> None:
        """Drops abandoned sentences wherever they wait; not every time, because it looks at them all."""
        now = time.monotonic()
        if now < self._next_sweep or not self._departures.possible(now):
            return
        self._next_sweep = now + SWEEP_INTERVAL_S
        self._departures.look(self._waiting, now)
        self._waiting.drop(self._drop_abandoned)

    def _has_left(self, sentence: Sentence) -> bool:
        """The same as `_drop_abandoned`, which takes a lock, and is asked only where somebody may have left."""
        return self._departures.possible(time.monotonic()) and self._drop_abandoned(sentence)

    def _drop_abandoned(self, sentence: Sentence) -> bool:
        """Whether nobody waits for the sentence any more; then its caller, if still there, is told why."""
        now = time.monotonic()
        abandoned = sentence.abandoned(now)
        if abandoned:
            self.counters.given_up[Stage.QUEUE, given_up_by(sentence, now)] += 1
            fail(sentence, DeadlineExceededError("the deadline passed while the text waited in the queue"))
        return abandoned


def given_up_by(sentence: Sentence, now: float) -> Cause:
    """Why nobody waits for an abandoned sentence any more."""
    late = sentence.deadline is not None and now > sentence.deadline - DEADLINE_SLACK_S
    return Cause.DEADLINE if late else Cause.CANCELLED


def _tokens(sentences: Iterable[Sentence]) -> int:
    """Source tokens."""
    return sum(len(sentence.source_ids) for sentence in sentences)
