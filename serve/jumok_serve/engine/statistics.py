"""Counters, load and progress of an engine: one writer, any readers."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from jumok_serve.search.search import Search

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
REFUSAL_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
TOKEN_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
RATIOS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Histogram:
    """Counts of values by bucket.

    Args:
        bounds: upper bounds of the buckets, ascending; one more bucket follows for values above the last.

    Attributes:
        counts: number of values in each bucket, [len(bounds) + 1].
        total: sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, maybe several times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += times * value

    def add(self, other: Self) -> None:
        """Add the counts of a histogram with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class Stage(StrEnum):
    """Stage at which a sentence was given up."""

    QUEUE = "queue"
    DECODE = "decode"


class Cause(StrEnum):
    """Cause for which a sentence was given up."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"


class EngineCounters:
    """Counters of one thread of an engine, or the sum of several.

    Attributes:
        queue_s: seconds in the queue, of admitted sentences.
        first_token_s: seconds from a sentence's arrival to the end of its first decoder step.
        token_s: seconds of decoding for each token of the best hypothesis, of finished sentences.
        step_rows: rows of each decoder step, without those of empty slots.
        step_padding: share of padding among the source positions of each step.
        source_tokens: source tokens of admitted sentences.
        output_tokens: tokens of the best hypotheses of finished sentences.
        finished: sentences translated.
        texts: texts translated; one that is split has several sentences.
        failed: sentences lost because the model failed.
        given_up: sentences cancelled or late, by stage and cause.
    """

    def __init__(self) -> None:
        self.queue_s = Histogram(SECONDS)
        self.first_token_s = Histogram(SECONDS)
        self.token_s = Histogram(TOKEN_SECONDS)
        self.step_rows = Histogram(ROWS)
        self.step_padding = Histogram(RATIOS)
        self.source_tokens = 0
        self.output_tokens = 0
        self.finished = 0
        self.texts = 0
        self.failed = 0
        self.given_up: Counter[tuple[Stage, Cause]] = Counter()

    @classmethod
    def sum(cls, parts: "Iterable[EngineCounters]") -> "EngineCounters":
        """Add up the counters of several threads."""
        together = cls()
        for part in parts:
            for name, value in vars(part).items():
                if isinstance(value, Histogram):
                    getattr(together, name).add(value)
                elif isinstance(value, Counter):
                    getattr(together, name).update(value.copy())  # its thread may add a cause meanwhile
                else:
                    setattr(together, name, getattr(together, name) + value)
        return together


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Waiting and running work of an engine at one moment."""

    queued_requests: int
    queued_tokens: int
    running_sentences: int
    rows: int

    def __add__(self, other: "Load") -> "Load":
        """Add the load of another engine."""
        return Load(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


class Progress:
    """Stable tokens of a running translation; any thread may read them.

    Only the newest are kept, so a slow reader neither holds up the engine nor takes memory.

    Args:
        on_change: called in the engine's thread when tokens are added; must return soon.

    Attributes:
        token_ids: the stable tokens, without the target prefix.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.token_ids: Sequence[int] = ()
        self._on_change = on_change

    def update(self, search: Search) -> None:
        """Read the stable tokens of a search between two steps."""
        stable = search.stable_tokens()
        if len(stable) > len(self.token_ids):
            self.token_ids = stable
            self._on_change()
