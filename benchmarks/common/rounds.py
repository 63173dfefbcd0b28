"""Rounds of a benchmark: all contenders translate a cell in turns, in rotating order; then calls after rests."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from benchmarks.common.processes import Contender, Process, Program
from benchmarks.common.progress import progress
from benchmarks.common.ratios import Ratio, against, aligned, fastest, ratio
from benchmarks.contenders.worker import Task, Turn

LEAST_S = 0.5
"""Shortest turn in seconds; a longer task runs once."""
FINALISTS = 2
"""Settings of a peer in the rounds of a cell: the fastest of the preselection."""

MEMORY_GOAL = 1.2
"""Limit of jumok's memory and model size as multiples of CTranslate2's."""
MEBIBYTE = 2**20
RESTS = {0.05: 30, 0.3: 15, 1.0: 9, 10.0: 5, 60.0: 3}
"""Number of calls after each rest in seconds."""
QUICK_RESTS = {0.05: 2}
AGAIN = 3
"""Calls back to back after each call that follows a rest: the machine is as fast for them as for that call."""
WARM_UP = 5


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


@dataclass(frozen=True, kw_only=True)
class Contenders:
    """The contenders with one model.

    Attributes:
        ours: jumok's by precision.
        peers: CTranslate2's settings by precision.
        generate: ``generate``, or None.
    """

    ours: Mapping[str, Contender]
    peers: Mapping[str, Sequence[Contender]]
    generate: Contender | None

    @property
    def programs(self) -> list[Program]:
        """All programs, each once."""
        contenders = [*self.ours.values(), *chain.from_iterable(self.peers.values())]
        if self.generate is not None:
            contenders.append(self.generate)
        return list(dict.fromkeys(contender.program for contender in contenders))


def run_cell(
    cell: Cell,
    task: Task,
    contenders: Contenders,
    processes: Mapping[Program, Process],
    *,
    rounds: int,
) -> Iterator[tuple[CellResult, Turn, Turn]]:
    """Run a cell in all precisions.

    A preselection runs every setting once, which also warms up; the fastest take part in the rounds.

    Yields:
        For each precision the result, jumok's turn and the fastest peer's.
    """

    def turn(contender: Contender) -> Turn:
        return processes[contender.program].measure(contender.task(task))

    preselections: dict[str, dict[Contender, float]] = {}
    chosen: dict[str, list[Contender]] = {}
    for precision, ours in contenders.ours.items():
        turn(ours)
        preselection = {peer: turn(peer).median for peer in contenders.peers[precision] if cell.batch > peer.beyond}
        preselections[precision], chosen[precision] = (
            preselection,
            sorted(preselection, key=preselection.__getitem__)[:FINALISTS],
        )
    selected = [each for precision, ours in contenders.ours.items() for each in (ours, *chosen[precision])]
    if contenders.generate is not None:
        selected.append(contenders.generate)
    turns: dict[Contender, list[Turn]] = {each: [] for each in selected}
    for number in range(rounds):
        start = number % len(selected)
        for each in (*selected[start:], *selected[:start]):
            turns[each].append(turn(each))
        progress(f"{cell.model}, {cell}: round {number + 1} of {rounds}")
    seconds = {each: [turn.median for turn in of_each] for each, of_each in turns.items()}
    for precision, ours in contenders.ours.items():
        peers = {peer.name: seconds[peer] for peer in chosen[precision]}
        [best] = [peer for peer in chosen[precision] if peer.name == fastest(peers)]
        our, their = turns[ours][0], turns[best][0]
        same = [mine == its for mine, its in zip(our.tokens, their.tokens, strict=True)]
        result = CellResult(
            cell=cell,
            precision=precision,
            ours=seconds[ours],
            peers=peers,
            preselection={peer.name: taken for peer, taken in preselections[precision].items()},
            generate=[] if contenders.generate is None else seconds[contenders.generate],
            same=sum(same) / len(same),
        )
        progress(f"{cell.model}, {cell}, {precision}: {result.to_peer}")
        yield result, our, their


def measure_memory(
    model: str, tasks: Mapping[Cell, Task], contenders: Contenders, results: Sequence[CellResult]
) -> Iterator[Memory]:
    """Measure the peak memory of fresh processes that translate each cell.

    Each cell is translated once, the smallest first.

    Programs are jumok and those that were the fastest peer of a cell, each with its best batches.
    """
    for precision, ours in contenders.ours.items():
        of_precision = {each.cell: each for each in results if (each.cell.model, each.precision) == (model, precision)}
        by_name = {peer.name: peer for peer in contenders.peers[precision]}
        fastest_programs = dict.fromkeys(by_name[each.peer].program for each in of_precision.values())
        for program in (ours.program, *fastest_programs):
            with Process(program) as process:
                for cell in sorted(tasks, key=lambda cell: cell.rows):
                    preselection = of_precision[cell].preselection
                    names = [name for name in preselection if by_name[name].program == program]
                    contender = by_name[min(names, key=preselection.__getitem__)] if names else ours
                    peak = process.measure(replace(contender.task(tasks[cell]), least_s=0.0)).peak
            size = next(each.size for each in (ours, *contenders.peers[precision]) if each.program == program)
            name = program.name if program == ours.program else f"CTranslate2 {precision} {program.name}"
            progress(f"{model}, {name}: {peak / 2**20:.0f} MiB")
            yield Memory(model=model, name=name, precision=precision, peak=peak, size=size)


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


@dataclass(frozen=True, kw_only=True)
class Rested:
    """Latencies of one contender.

    Attributes:
        model: name of the model.
        name: name of the contender.
        seconds: by rest in seconds: for each rest the latency of the call after it, and the median of the calls back to
            back that follow.
    """

    model: str
    name: str
    seconds: Mapping[float, Sequence[tuple[float, float]]]

    @property
    def back_to_back_s(self) -> float:
        """The median latency of all calls back to back, in seconds."""
        return statistics.median(again for pairs in self.seconds.values() for _, again in pairs)

    @property
    def ratios(self) -> dict[float, float]:
        """The median over the rests of the latency after a rest as a multiple of those that follow back to back."""
        return {
            rest: statistics.median(after / again for after, again in pairs) for rest, pairs in self.seconds.items()
        }


def measure_rests(
    model: str, name: str, rests: Mapping[float, int], call: Callable[[Sequence[float]], Sequence[float]]
) -> Rested:
    """Measure a contender.

    Args:
        rests: number of calls by the rest before each, in seconds.
        call: calls the contender after each of these rests, zeros included; returns the latencies in seconds.
    """
    group = 1 + AGAIN
    seconds = {}
    for rest, calls in rests.items():
        latencies = call([*[0.0] * WARM_UP, *[rest, *[0.0] * AGAIN] * calls])[WARM_UP:]
        groups = [latencies[first : first + group] for first in range(0, len(latencies), group)]
        seconds[rest] = [(after, statistics.median(again)) for after, *again in groups]
    return Rested(model=model, name=name, seconds=seconds)


def rest_table(measured: Sequence[Rested], *, ratios: bool = True) -> str:
    """Table of latencies after rests, with multiples of the latency back to back if `ratios`."""
    rests = list(measured[0].seconds)
    rows = [["model", "contender", "back to back", *(f"after {rest:g} s" for rest in rests)]]
    for each in measured:
        cells = [f"{1e3 * each.back_to_back_s:.1f} ms"]
        for rest in rests:
            milliseconds = f"{1e3 * statistics.median(after for after, _ in each.seconds[rest]):.1f} ms"
            cells.append(f"{milliseconds} ({each.ratios[rest]:.2f})" if ratios else milliseconds)
        rows.append([each.model, each.name, *cells])
    return aligned(rows)
