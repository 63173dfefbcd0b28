"""What an engine counts: plain numbers that one thread writes and any may read, whoever publishes them."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Self

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
REFUSAL_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
TOKEN_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
RATIOS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Histogram:
    """How many values lie up to each bound.

    Args:
        bounds: ascending; values beyond the last are counted too.

    Attributes:
        bounds: the same.
        counts: values up to each bound and above the one before, and then those beyond the last.
        total: of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Self) -> None:
        """Count what another has, which has the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class Stage(StrEnum):
    """Where a text was when it was given up."""

    QUEUE = "queue"
    DECODE = "decode"


class Cause(StrEnum):
    """Why a text was given up."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"


class EngineCounters:
    """What one thread of an engine has done; a sum of several is what the engine has done.

    Attributes:
        queue_s: seconds that texts waited, of those that were admitted.
        first_token_s: seconds from a text's arrival to the end of its first decoder step.
        token_s: seconds of decoding a token of its best hypothesis takes, of finished texts.
        step_rows: rows of each decoder step, but for those that no sentence has.
        step_padding: share of padding among the source positions of each step's sentences.
        source_tokens: of texts that were admitted.
        output_tokens: of the best hypotheses of finished texts.
        finished: texts that were translated.
        failed: texts that were lost because the model failed.
        given_up: texts that nobody waited for any more.
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
        self.failed = 0
        self.given_up: Counter[tuple[Stage, Cause]] = Counter()

    @classmethod
    def sum(cls, parts: "Iterable[EngineCounters]") -> "EngineCounters":
        """What several threads have done."""
        together = cls()
        for part in parts:
            for name in ("queue_s", "first_token_s", "token_s", "step_rows", "step_padding"):
                getattr(together, name).add(getattr(part, name))
            for name in ("source_tokens", "output_tokens", "finished", "failed"):
                setattr(together, name, getattr(together, name) + getattr(part, name))
            together.given_up.update(part.given_up.copy())
        return together
