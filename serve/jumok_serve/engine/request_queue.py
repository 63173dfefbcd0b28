"""Queue of sentences that callers share by work, with its totals."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from jumok_serve.engine.sentence import Sentence

QUANTUM = 2048
"""Work that a caller may take from the queue per round, in row steps: ten sentences of 17 tokens at beam size 4."""

MAX_CREDIT = 8 * QUANTUM
"""Most credit of a caller that comes back, in row steps: four sentences of 17 tokens at beam size 64."""

REMEMBERED_CALLERS = 1024
"""Most callers that have left the queue and may come back with more credit than a new one."""


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
    work; the rest of the credit is kept while the caller has more ("Efficient fair queuing using deficit round robin",
    Shreedhar and Varghese, 1996). So the work that callers take differs by at most one round and one sentence, whatever
    the number and the size of their sentences, and each waits at most one round for its next credit.

    A caller misses rounds while all its sentences are being decoded. When the next ones arrive, its credit grows by the
    work that each of the others has taken meanwhile, to `MAX_CREDIT` at most.

    Attributes:
        tokens: source tokens of all sentences.
        rows: rows that they will have.
        positions: sum of source tokens times rows.
        work: estimated work of all sentences, in row steps.
        bytes: memory that they take, estimated.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Sentence]] = {}  # by caller, in the order of the round; none is empty
        self._credits: dict[str, int] = {}
        self._totals_of: dict[str, Totals] = {}
        self._taken = 0  # work of all sentences that have left in rounds
        self._left: dict[str, tuple[int, int]] = {}  # credit and `_taken` as a caller left; the latest last
        self._length = self.tokens = self.rows = self.positions = self.work = self.bytes = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sentence]:
        for waiting in self._waiting.values():
            yield from waiting

    @property
    def totals(self) -> Totals:
        """Sums that the queue's bounds apply to."""
        return Totals(self._length, self.tokens, self.bytes, self.work)

    @property
    def first(self) -> Sentence:
        """The sentence that leaves next; the same until it leaves, unless its caller is the only one."""
        while True:
            caller, waiting = next(iter(self._waiting.items()))
            if len(self._waiting) == 1 or waiting[0].work <= self._credits[caller]:
                return waiting[0]
            self._credits[caller] += QUANTUM
            self._waiting[caller] = self._waiting.pop(caller)  # to the end of the round

    def totals_of(self, caller: str) -> Totals:
        """Return the sums of a caller's sentences."""
        return self._totals_of.get(caller, NOTHING)

    def work_of(self, caller: str) -> int:
        """Return the work of a caller's sentences."""
        return self.totals_of(caller).work

    def callers_with(self, caller: str) -> int:
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
        """Remove the first sentence."""
        sentence = self.first
        caller = sentence.caller
        self._credits[caller] = max(0, self._credits[caller] - sentence.work)
        self._taken += sentence.work
        self._pop_of(caller)

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
        self._left[caller] = self._credits.pop(caller), self._taken
        if len(self._left) > REMEMBERED_CALLERS:
            del self._left[next(iter(self._left))]
        del self._waiting[caller], self._totals_of[caller]

    def _first_credit(self, caller: str) -> int:
        """Return the credit of a caller whose first sentence arrives."""
        credit, taken = self._left.pop(caller, (0, self._taken))
        missed = (self._taken - taken) // max(1, len(self._waiting))
        return min(MAX_CREDIT, max(QUANTUM, credit + missed))

    def _count(self, sentence: Sentence, sign: int) -> None:
        tokens, rows, work, size = len(sentence.source_ids), sentence.rows, sentence.work, sentence.waiting_bytes
        self._length += sign
        self.tokens += sign * tokens
        self.rows += sign * rows
        self.positions += sign * tokens * rows
        self.work += sign * work
        self.bytes += sign * size
        own = self.totals_of(sentence.caller)
        self._totals_of[sentence.caller] = Totals(
            own.sentences + sign, own.tokens + sign * tokens, own.bytes + sign * size, own.work + sign * work
        )
