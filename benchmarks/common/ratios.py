"""What times are made into: ratios to the fastest peer round by round, goals, and tables."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

MEMORY_GOAL = 1.2
"""How many times CTranslate2's memory, and its model's size, ours may be."""
MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is translated at once.

    Attributes:
        model: whose sentences.
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
    """How many times as fast one is as another, round by round: the median, and the range."""

    median: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.lowest:.2f} to {self.highest:.2f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """From the seconds of each round."""
    each = [their / our for our, their in zip(ours, theirs, strict=True)]
    return Ratio(median=statistics.median(each), lowest=min(each), highest=max(each))


def fastest(seconds: Mapping[str, Sequence[float]]) -> str:
    """The name with the lowest median."""
    return min(seconds, key=lambda name: statistics.median(seconds[name]))


@dataclass(frozen=True, kw_only=True)
class Played:
    """The rounds of a cell in one precision.

    Attributes:
        cell: what was translated.
        precision: "fp32" or "int8".
        ours: seconds, of every round.
        peers: likewise, by setting.
        heat: seconds of all settings before the rounds.
        generate: likewise, of ``generate`` in fp32; none where it does not take part.
        same: share of the sentences that the fastest peer translated into the same tokens.
        bleu: ours and the fastest peer's, where there are references.
        goal: for the ratio to the fastest peer, where there is one.
        generate_goal: for that to ``generate``, likewise.
    """

    cell: Cell
    precision: str
    ours: list[float]
    peers: dict[str, list[float]]
    heat: dict[str, float]
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
        """To the fastest setting."""
        return ratio(self.ours, self.peers[self.peer])

    @property
    def to_generate(self) -> Ratio | None:
        """To ``generate``, if it has played."""
        return ratio(self.ours, self.generate) if self.generate else None


def with_goals(played: Played) -> Played:
    """A cell with how many times as fast as CTranslate2's best setting, and as ``generate``, it shall be."""
    if played.precision == "int8":
        return replace(played, goal=1.8 if played.cell.batch == 1 else 1.5, generate_goal=6.0)
    return replace(played, goal=1.0 if played.cell.batch == 1 else 1.15)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting of CTranslate2's that was tried.

    Attributes:
        cell: what was translated.
        precision: "fp32" or "int8".
        threads: workers x threads of each.
        environment: the variables that were set, as in a shell.
        seconds: it took.
    """

    cell: Cell
    precision: str
    threads: str
    environment: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What it takes to translate all cells.

    Attributes:
        model: that translates.
        name: of the contender.
        precision: "fp32" or "int8".
        peak: bytes of its process at most.
        size: bytes of its model on disk.
    """

    model: str
    name: str
    precision: str
    peak: int
    size: int


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table, the first row its head, all columns but the first two aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            value.ljust(width) if column < 2 else value.rjust(width)
            for column, (value, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def ratio_table(played: Sequence[Played]) -> str:
    """All cells: milliseconds of both, their ratio and its goal, the same of ``generate``, and how alike they are."""
    head = "model|cell|precision|jumok ms|CTranslate2 ms|its best setting|ratio (range)|goal|generate ms|ratio (range)"
    rows = [[*head.split("|"), "goal", "same"]]
    for each in played:
        generate = each.to_generate
        rows.append(
            [
                each.cell.model,
                str(each.cell),
                each.precision,
                _milliseconds(each.ours),
                _milliseconds(each.peers[each.peer]),
                each.peer,
                str(each.to_peer),
                _against(each.to_peer.median, each.goal, at_least=True),
                _milliseconds(each.generate),
                "-" if generate is None else str(generate),
                "-" if generate is None else _against(generate.median, each.generate_goal, at_least=True),
                f"{each.same:.0%}" + ("" if each.bleu is None else " BLEU {:.2f} / {:.2f}".format(*each.bleu)),
            ]
        )
    return aligned(rows)


def memory_table(memories: Sequence[Memory], goal: float | None = MEMORY_GOAL) -> str:
    """Peak memory and size of ours and of the peers, with ours as a multiple of each peer's, and what that may be."""
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
                _against(of_peak, goal, at_least=False),
                f"{of_size:.2f}",
                _against(of_size, goal, at_least=False),
            ]
        )
        peak, size = f"{each.peak / MEBIBYTE:.0f}", f"{each.size / MEBIBYTE:.0f}"
        rows.append([each.model, each.name, peak, *compared[:2], size, *compared[2:]])
    return aligned(rows)


def trial_table(trials: Sequence[Trial]) -> str:
    """Milliseconds of all settings that were tried."""
    rows = [["environment", "threads", "precision", "cell", "ms"]]
    for trial in trials:
        rows.append(
            [trial.environment or "-", trial.threads, trial.precision, str(trial.cell), f"{1e3 * trial.seconds:.0f}"]
        )
    return aligned(rows)


def _milliseconds(seconds: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.0f}" if seconds else "-"


def _against(value: float, wanted: float | None, *, at_least: bool) -> str:
    if wanted is None:
        return "-"
    reached = value >= wanted if at_least else value <= wanted
    return f"{wanted:.2f} {'met' if reached else 'missed'}"
