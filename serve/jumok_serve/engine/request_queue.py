"""Bounds of an engine, what its replicas decode, and the queue that callers share by work, with its admission."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import add
from typing import NamedTuple

from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError, OverloadedError
from jumok_serve.engine.batch import Batch
from jumok_serve.engine.sentence import Sentence
from jumok_serve.runtime.tensors import padded_length
from jumok_serve.search.plan import HISTORY_WORK
from jumok_serve.share import RETRY_AFTER_S


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Bounds of an engine, all its replicas together.

    Attributes:
        max_batch_tokens: rows times source positions decoded at the same time, sources padded to a multiple of 8. Each
            replica has an equal part. A sentence over that part is alone in its replica; one over the whole is decoded
            alone. Without native kernels, empty slots that take part in steps (at most 1/8) are not counted. The
            default fits 128 rows of 64 positions.
        max_batch_rows: rows decoded at the same time, divided among replicas as tokens are; None: no bound.
        max_alone_rows: rows that one replica decodes with all threads instead of sharing them with others. On two cores
            32 rows took as long either way, fewer rows up to 1/3 less with one replica, and 128 less with two.
        max_queue_requests: sentences that may wait.
        max_queue_tokens: source tokens of the sentences that may wait.
        max_queue_bytes: memory that they may take, as `Sentence.waiting_bytes` estimates it.
        max_queue_work: work that they may need, as `Sentence.work` estimates it.
        max_request_work: most work of the sentences of one request, if each has the maximum length. The default admits
            2,048 sentences of 512 tokens at beam size 4 with constraints on repetition, and twice as many without.
        work_per_second: sustained work of each caller, as `Sentence.work` estimates it; None: no bound. What a
            sentence did not need is given back at its end.
        work_burst: work at once after a pause; None: that of one second. More at once needs a pause, and a longer one
            after it.

    Raises:
        ValueError: a bound is less than 1.
    """

    max_batch_tokens: int = 8192
    max_batch_rows: int | None = None
    max_alone_rows: int = 48
    max_queue_requests: int = 4096
    max_queue_tokens: int = 262_144
    max_queue_bytes: int = 64 * 2**20
    max_queue_work: int = 2**25
    max_request_work: int = 2**23
    work_per_second: int | None = None
    work_burst: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            bound = getattr(self, field.name)
            if bound is not None and bound < 1:
                raise ValueError(f"{field.name} must be at least 1, got {bound}")

    def check_work(self, most: int) -> None:
        """Refuse a request that could keep the engine too long.

        Args:
            most: row steps that all its sentences together may take.

        Raises:
            InvalidArgumentError: more than a request may take.
        """
        if most > self.max_request_work:
            raise InvalidArgumentError(
                f"the request could take {most} row steps (sentences times rows times max_length; "
                f"{1 + HISTORY_WORK} times as many with constraints on repetition), more than the "
                f"{self.max_request_work} of a request: send several, or lower beam_size or max_length",
                field="contents",
            )


class Occupancy:
    """Number and longest source of a replica's sentences, by beam size; light ones are counted apart.

    Args:
        batches: batches of the replica, one per lane.

    Attributes:
        rows: rows of all sentences.
        tokens: rows times padded source positions.
        step_work: work of a step, in row steps.
        light_sentences: light sentences.
        light_rows: their rows.
    """

    def __init__(self, batches: Iterable[Batch] = ()) -> None:
        self._parts: dict[int, tuple[int, int]] = {}
        self.step_work = self.light_sentences = self.light_rows = 0
        for batch in batches:
            if batch.light:
                self.light_sentences += batch.size
                self.light_rows += batch.rows
            else:
                self._parts[batch.beam_size] = batch.size, padded_length(batch.longest_source)
                self.step_work += batch.step_work
        self._count()

    @property
    def busy(self) -> bool:
        """True if the replica decodes any sentence."""
        return self.rows + self.light_rows > 0

    def _count(self) -> None:
        self.sentences = self.rows = self.tokens = 0
        for size, (sentences, longest) in self._parts.items():
            self.sentences += sentences
            self.rows += size * sentences
            self.tokens += size * sentences * longest

    def tokens_with(self, sentence: Sentence) -> int:
        """Return `tokens` with one more sentence."""
        size = sentence.rows
        sentences, longest = self._parts.get(size, (0, 0))
        wider = max(longest, padded_length(len(sentence.source_ids)))
        return self.tokens + size * ((sentences + 1) * wider - sentences * longest)

    def add(self, sentence: Sentence) -> None:
        """Add a sentence."""
        size = sentence.rows
        if sentence.light:
            self.light_sentences += 1
            self.light_rows += size
            return
        self.step_work += sentence.plan.step_work
        sentences, longest = self._parts.get(size, (0, 0))
        self._parts[size] = sentences + 1, max(longest, padded_length(len(sentence.source_ids)))
        self._count()


class TotalOccupancy:
    """Rows and tokens of several replicas."""

    def __init__(self, replicas: Iterable[Occupancy]) -> None:
        each = [(one.rows, one.tokens) for one in replicas]
        self.rows = sum(rows for rows, _ in each)
        self.tokens = sum(tokens for _, tokens in each)


QUANTUM = 2048
"""Work that a caller may take from the queue per round, in row steps: ten sentences of 17 tokens at beam size 4."""

MAX_TURN = 2 * QUANTUM
"""Work after which a turn ends although the caller has more credit, in row steps."""

MAX_CREDIT = 8 * QUANTUM
"""Most credit of a caller that comes back, in row steps: three sentences of 17 tokens at beam size 64."""

REMEMBERED_CALLERS = 1024
"""Most callers that have left the queue and may come back with more credit than a new one."""


MIN_FREE_SHARE = 32
"""Requests are read only while this part (1/32) of the queue is free. Under an overload of small requests the last
places are free most of the time, and too few for the next request."""

RESERVE_SHARE = 8
"""Callers with more than an equal share of the queue leave this part (1/8) to the others. Their corpora leave as much
to their single calls, because corpora can wait."""

WORK_PER_POSITION = 4
"""Estimated work of a sentence of 8 source tokens for each of its positions; longer ones have less."""

WINDOW_S = 1.0
"""Seconds over which the drain rate is measured: long enough that the intake of one batch does not look like speed."""

CAUTION = 4.0
"""The queue may drain this many times faster than ever measured: waiting work may be shorter, or be cancelled."""


class DrainRate:
    """Fastest rate at which the queue has drained under constant load.

    Work is counted in row steps.

    Args:
        at_once: work that may leave the queue in one moment.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._fastest = 0.0  # work a second
        self._window_start: float | None = None  # None while no text waits
        self._left = 0

    def record(self, work: int, now: float, *, waiting: bool) -> None:
        """Record work that left the queue at `now`, and if any waits."""
        if self._window_start is None:
            self._window_start, self._left = now, 0
        else:
            self._left += work
            elapsed = now - self._window_start
            if elapsed >= WINDOW_S:
                self._fastest = max(self._fastest, self._left / elapsed)
                self._window_start, self._left = now, 0
        if not waiting:
            self._window_start = None

    def min_wait_s(self, work: int) -> float:
        """Return the minimum seconds until `work` leaves the queue; 0 if unmeasured."""
        if not self._fastest:
            return 0.0
        return max(0, work - self._at_once) / (self._fastest * CAUTION)


class Totals(NamedTuple):
    """Sums over sentences that the queue's bounds apply to."""

    sentences: int
    tokens: int = 0
    bytes: int = 0
    work: int = 0

    @classmethod
    def of(cls, sentences: Sequence[Sentence]) -> "Totals":
        """Add up sentences: number, source tokens, estimated memory and work."""
        tokens = sum(len(sentence.source_ids) for sentence in sentences)
        size = sum(sentence.waiting_bytes for sentence in sentences)
        return cls(len(sentences), tokens, size, sum(sentence.work for sentence in sentences))


NOTHING = Totals(0)


class RequestQueue:
    """Waiting sentences: by order of arrival for one caller, by deficit round robin for several.

    In each round a caller's credit grows by `QUANTUM`, and its first sentences leave while the credit covers their
    work, until they have taken `MAX_TURN` ("Efficient fair queuing using deficit round robin", Shreedhar and Varghese,
    1996; there a turn ends only with the credit). So a turn takes less than `MAX_TURN` and one sentence, and a caller
    waits for at most one turn of each other caller until its next turn. While two callers have sentences, the work that
    they take differs by at most `QUANTUM` and one sentence of each.

    A caller without a waiting sentence misses rounds, because its sentences are being decoded or it has none. When its
    next sentences arrive, its credit has grown by its share of the work taken meanwhile, to `MAX_CREDIT` at most. The
    share is a virtual time: all work that leaves, divided by the number of callers with sentences at that moment.

    Args:
        limits: bounds of the queue.

    Attributes:
        totals: sums over all sentences; any thread may read them.
        rows: rows that they will have.
        positions: sum of source tokens times rows.
        drain_rate: rate at which sentences leave; those who take them record it.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._bounds = Totals(
            limits.max_queue_requests, limits.max_queue_tokens, limits.max_queue_bytes, limits.max_queue_work
        )
        self.drain_rate = DrainRate(WORK_PER_POSITION * limits.max_batch_tokens)
        self._waiting: dict[str, deque[Sentence]] = {}  # by caller, in the order of the round; none is empty
        self._credits: dict[str, int] = {}
        self._totals_of: dict[str, Totals] = {}
        self._spent = 0  # work of the first caller in its present turn
        self._share = 0  # virtual time: work that a caller who always has sentences has taken, about
        self._absent: dict[str, tuple[int, int]] = {}  # credit and `_share` as a caller left; the latest last
        self.totals = NOTHING
        self.rows = self.positions = 0

    def __len__(self) -> int:
        return self.totals.sentences

    def __iter__(self) -> Iterator[Sentence]:
        for waiting in self._waiting.values():
            yield from waiting

    @property
    def first(self) -> Sentence:
        """The sentence that leaves next; the same until it leaves, unless its caller is the only one."""
        while True:
            caller, waiting = next(iter(self._waiting.items()))
            if len(self._waiting) == 1 or (self._spent < MAX_TURN and waiting[0].work <= self._credits[caller]):
                return waiting[0]
            self._credits[caller] += QUANTUM
            self._waiting[caller] = self._waiting.pop(caller)  # to the end of the round
            self._spent = 0

    def totals_of(self, caller: str) -> Totals:
        """Return the sums of a caller's sentences."""
        return self._totals_of.get(caller, NOTHING)

    def _callers_with(self, caller: str) -> int:
        """Return the number of callers with sentences, if this one had some."""
        return len(self._waiting) + (caller not in self._waiting)

    def extend(self, sentences: Iterable[Sentence]) -> None:
        """Append sentences, each after those of its caller."""
        for sentence in sentences:
            waiting = self._waiting.get(sentence.caller)
            if waiting is None:
                self._credits[sentence.caller] = self._first_credit(sentence.caller)
                waiting = self._waiting[sentence.caller] = deque()
            waiting.append(sentence)
            self._count(sentence, 1)

    def pop_first(self) -> None:
        """Remove the first sentence for its work."""
        sentence = self.first
        caller = sentence.caller
        self._credits[caller] = max(0, self._credits[caller] - sentence.work)
        self._spent += sentence.work
        self._share += sentence.work // len(self._waiting)
        self._pop_of(caller)

    def drop_first(self) -> None:
        """Remove the first sentence without its work: it takes none of its caller's credit."""
        self._pop_of(self.first.caller)

    def pop_of(self, wanted: Callable[[str], bool]) -> Iterator[Sentence]:
        """Remove, beside the rounds, the sentences of the wanted callers, as far as they are read."""
        for caller in [caller for caller in self._waiting if wanted(caller)]:
            while caller in self._waiting:
                yield self._waiting[caller][0]
                self._pop_of(caller)

    def remove_if(self, unwanted: Callable[[Sentence], bool]) -> None:
        """Remove the sentences for which `unwanted` is true."""
        for caller, waiting in list(self._waiting.items()):
            kept = deque(sentence for sentence in waiting if not self._dropped(sentence, unwanted))
            if kept:
                self._waiting[caller] = kept
            else:
                self._forget(caller)

    def clear(self) -> list[Sentence]:
        """Remove and return all sentences."""
        sentences = list(self)
        self.remove_if(lambda _: True)
        return sentences

    def _dropped(self, sentence: Sentence, unwanted: Callable[[Sentence], bool]) -> bool:
        dropped = unwanted(sentence)
        if dropped:
            self._count(sentence, -1)
        return dropped

    def _pop_of(self, caller: str) -> None:
        waiting = self._waiting[caller]
        self._count(waiting.popleft(), -1)
        if not waiting:
            self._forget(caller)

    def _forget(self, caller: str) -> None:
        if caller == next(iter(self._waiting)):
            self._spent = 0
        self._absent[caller] = self._credits.pop(caller), self._share
        if len(self._absent) > REMEMBERED_CALLERS:
            del self._absent[next(iter(self._absent))]
        del self._waiting[caller], self._totals_of[caller]

    def _first_credit(self, caller: str) -> int:
        """Return the credit of a caller whose first sentence arrives."""
        credit, share = self._absent.pop(caller, (0, self._share))
        return min(MAX_CREDIT, max(QUANTUM, credit + self._share - share))

    def _count(self, sentence: Sentence, sign: int) -> None:
        tokens, rows = len(sentence.source_ids), sentence.rows
        self.rows += sign * rows
        self.positions += sign * tokens * rows
        more = sign, sign * tokens, sign * sentence.waiting_bytes, sign * sentence.work
        self.totals = Totals._make(map(add, self.totals, more))
        self._totals_of[sentence.caller] = Totals._make(map(add, self.totals_of(sentence.caller), more))

    def is_full(self, caller: str, free_share: int = MIN_FREE_SHARE) -> bool:
        """True if the queue is full for a caller; for one over its share, if less than 1 / `free_share` is free."""
        callers = self._callers_with(caller)
        for present, own, bound in zip(self.totals, self.totals_of(caller), self._bounds, strict=True):
            most = _most(bound, own, callers, caller)
            free = bound // (MIN_FREE_SHARE if most == bound else free_share)
            if present + max(1, free) > most:
                return True
        return False

    def check_room(self, more: Totals, caller: str) -> None:
        """Check that sentences of a caller, their source tokens and their memory fit into the queue.

        Raises:
            InvalidArgumentError: they do not fit into an empty queue.
            OverloadedError: they do not fit now.
        """
        units = ("sentences", "tokens", "bytes", "row steps")
        callers, waiting = self._callers_with(caller), self.totals_of(caller)
        for what, present, own, added, bound in zip(units, self.totals, waiting, more, self._bounds, strict=True):
            if added > bound:
                raise InvalidArgumentError(
                    f"a request takes at most {bound} {what} here, got {added}: send several", field="contents"
                )
            most = _most(bound, own + added, callers, caller)
            if present and present + added > most:
                kept = "" if most == bound else f", and keeps {bound - most} for callers with less"
                raise OverloadedError(
                    f"the queue holds {present} of at most {bound} {what}{kept}: no room for {added} more",
                    retry_after_s=RETRY_AFTER_S,
                )

    def check_deadlines(self, sentences: Sequence[Sentence], now: float) -> None:
        """Refuse sentences that miss their deadline even at the fastest drain.

        Raises:
            DeadlineExceededError: one sentence cannot.
        """
        deadline = min((one.deadline for one in sentences if one.deadline is not None), default=None)
        if deadline is None:
            return
        left_s = deadline - now
        if left_s <= 0:
            raise DeadlineExceededError("the deadline had passed when the request arrived")
        # Work of other callers may leave later.
        wait_s = self.drain_rate.min_wait_s(max(self.totals_of(sentence.caller).work for sentence in sentences))
        if left_s < wait_s:
            raise DeadlineExceededError(
                f"the queue takes {wait_s:.1f} s at least, and the deadline passes in {left_s:.1f} s: give more "
                "time, or come back later"
            )


def _most(bound: int, own: int, callers: int, caller: str) -> int:
    """Return the part of a bound that the queue may fill with a caller's sentences.

    Args:
        own: amount that the caller has then.
        callers: callers with waiting sentences, this one included; another may come.
        caller: key of the caller; empty in a process without others.
    """
    within_share = own * (callers + 1) <= bound
    return bound if within_share or not caller else bound - bound // RESERVE_SHARE
