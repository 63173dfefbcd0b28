"""Rounds of a benchmark: all contenders translate a cell in turns, in rotating order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from benchmarks.common.processes import Contender, Process, Program
from benchmarks.common.progress import progress
from benchmarks.common.ratios import Cell, CellResult, Memory, fastest
from benchmarks.contenders.worker import Task, Turn

LEAST_S = 0.5
"""Shortest turn in seconds; a longer task runs once."""
FINALISTS = 2
"""Settings of a peer in the rounds of a cell: the fastest of the preselection."""


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
