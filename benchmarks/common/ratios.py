"""Ratios to the fastest peer by rounds, goals, and tables."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from benchmarks.common.progress import progress

MEMORY_GOAL = 1.2
"""Limit of jumok's memory and model size as multiples of CTranslate2's."""
MEBIBYTE = 2**20
T = TypeVar("T")
NO_FIGURES = (
    "With a tiny random model: this shows that the benchmark runs; its figures say nothing, so no ratio is shown"
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A batch that is translated at once.

    Attributes:
        model: name of the model.
        batch: number of sentences.
        beam: beam size.
    """

    model: str
    batch: int
    beam: int

    @property
    def rows(self) -> int:
        """Hypotheses that are decoded at once."""
        return self.batch * self.beam

    def __str__(self) -> str:
        return f"{self.batch} x {self.beam}"


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


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The rounds of a cell in one precision.

    Attributes:
        cell: the cell.
        precision: "fp32" or "int8".
        ours: jumok's seconds by round.
        peers: CTranslate2's seconds by setting and round.
        preselection: seconds of every setting before the rounds.
        generate: seconds of ``generate`` in fp32 by round, or empty.
        same: share of sentences with the same tokens as the fastest peer's.
        bleu: jumok's and the fastest peer's BLEU, or None.
        goal: goal of the ratio to the fastest peer, or None.
        generate_goal: goal of the ratio to ``generate``, or None.
    """

    cell: Cell
    precision: str
    ours: list[float]
    peers: dict[str, list[float]]
    preselection: dict[str, float]
    generate: list[float]
    same: float
    bleu: tuple[float, float] | None = None
    goal: float | None = None
    generate_goal: float | None = None

    @property
    def peer(self) -> str:
        """The fastest setting."""
        return fastest(self.peers)

    @property
    def to_peer(self) -> Ratio:
        """The ratio to the fastest setting."""
        return ratio(self.ours, self.peers[self.peer])

    @property
    def to_generate(self) -> Ratio | None:
        """The ratio to ``generate``, or None."""
        return ratio(self.ours, self.generate) if self.generate else None


def with_goals(result: CellResult) -> CellResult:
    """Add the goals of a cell."""
    if result.precision == "int8":
        return replace(result, goal=1.8 if result.cell.batch == 1 else 1.5, generate_goal=6.0)
    return replace(result, goal=1.0 if result.cell.batch == 1 else 1.15)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory to translate all cells.

    Attributes:
        model: name of the model.
        name: name of the contender.
        precision: "fp32" or "int8".
        peak: peak memory of its process, in bytes.
        size: size of its model on disk, in bytes.
    """

    model: str
    name: str
    precision: str
    peak: int
    size: int


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


def ratio_table(results: Sequence[CellResult], *, ratios: bool = True) -> str:
    """Table of cells: times, ratios with goals, and agreement of translations.

    Args:
        ratios: False to leave them out, if times say nothing.
    """
    head = "model|cell|precision|jumok ms|CTranslate2 ms|its best setting|ratio (range)|goal|generate ms|ratio (range)"
    rows = [[*head.split("|"), "goal", "same"]]
    for each in results:
        generate = each.to_generate
        rows.append(
            [
                each.cell.model,
                str(each.cell),
                each.precision,
                _milliseconds(each.ours),
                _milliseconds(each.peers[each.peer]),
                each.peer,
                str(each.to_peer) if ratios else "-",
                against(each.to_peer.median, each.goal, at_least=True),
                _milliseconds(each.generate),
                "-" if generate is None or not ratios else str(generate),
                "-" if generate is None else against(generate.median, each.generate_goal, at_least=True),
                f"{each.same:.0%}" + ("" if each.bleu is None else " BLEU {:.2f} / {:.2f}".format(*each.bleu)),
            ]
        )
    return aligned(rows)


def memory_table(memories: Sequence[Memory], goal: float | None = MEMORY_GOAL) -> str:
    """Table of peak memory and model sizes, with jumok's as multiples of each peer's."""
    rows = [["model", "contender", "peak MiB", "ours / it", "goal", "on disk MiB", "ours / it", "goal"]]
    for each in memories:
        [ours] = [
            memory
            for memory in memories
            if (memory.model, memory.precision) == (each.model, each.precision) and memory.name.startswith("jumok")
        ]
        of_peak, of_size = ours.peak / each.peak, ours.size / each.size
        compared = (
            ["", "", "", ""]
            if ours is each
            else [
                f"{of_peak:.2f}",
                against(of_peak, goal, at_least=False),
                f"{of_size:.2f}",
                against(of_size, goal, at_least=False),
            ]
        )
        peak, size = f"{each.peak / MEBIBYTE:.0f}", f"{each.size / MEBIBYTE:.0f}"
        rows.append([each.model, each.name, peak, *compared[:2], size, *compared[2:]])
    return aligned(rows)


def _milliseconds(seconds: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.0f}" if seconds else "-"


def against(value: float, wanted: float | None, *, at_least: bool = True) -> str:
    """Format a goal, and if a value meets it."""
    if wanted is None:
        return "-"
    reached = value >= wanted if at_least else value <= wanted
    return f"{wanted:.2f} {'met' if reached else 'missed'}"
