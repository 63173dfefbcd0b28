"""Ratios to the fastest peer by rounds, goals, and tables."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.common.progress import progress

T = TypeVar("T")
NO_FIGURES = (
    "With a tiny random model: this shows that the benchmark runs; its figures say nothing, so no ratio is shown"
)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Speed as a multiple of a peer's, by rounds: median and range."""

    median: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.lowest:.2f} to {self.highest:.2f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The ratio of the seconds of each round."""
    each = [their / our for our, their in zip(ours, theirs, strict=True)]
    return Ratio(median=statistics.median(each), lowest=min(each), highest=max(each))


def turns(contenders: Iterable[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield the contenders in rotating order, with the number of the round.

    Round 0 warms up.
    """
    each = [*contenders]
    for number in range(1 + rounds):
        start = number % len(each)
        yield from ((number, contender) for contender in (*each[start:], *each[:start]))
        progress(f"round {number} of {rounds}")


def fastest(seconds: Mapping[str, Sequence[float]]) -> str:
    """The name with the lowest median."""
    return min(seconds, key=lambda name: statistics.median(seconds[name]))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Format a table; columns from the third on are right-aligned.

    The first row is the head.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            value.ljust(width) if column < 2 else value.rjust(width)
            for column, (value, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def markdown(rows: Sequence[Sequence[object]]) -> str:
    """Format a table in Markdown.

    The first row is the head.
    """
    head, *others = rows
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *others))


def against(value: float, wanted: float | None, *, at_least: bool = True) -> str:
    """Format a goal, and if a value meets it."""
    if wanted is None:
        return "-"
    reached = value >= wanted if at_least else value <= wanted
    return f"{wanted:.2f} {'met' if reached else 'missed'}"


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the nearest-rank percentile: at least `percent` percent of the values are not above it."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
