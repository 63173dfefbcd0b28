"""Who plays, and the rounds: every cell is translated by all contenders in turns, in an order that rotates."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from benchmarks.common.processes import Contender, Process, Program
from benchmarks.common.ratios import Cell, Memory, Played, Trial, fastest
from benchmarks.contenders.worker import Task, Turn

Progress = Callable[[str], None]

LEAST_S = 0.5
"""A turn takes so long, or as long as its task takes once."""
FINALISTS = 2
"""So many settings of a peer's play the rounds of a cell, those that were the fastest in its heat."""
GAIN = 0.97
"""What an environment must take, as a share of what CTranslate2 takes without it, to be let into the heats."""

ENVIRONMENTS: tuple[Mapping[str, str], ...] = (
    {"CT2_FORCE_CPU_ISA": "AVX512"},
    {"CT2_FORCE_CPU_ISA": "AVX2"},
    {"CT2_USE_MKL": "1"},
    {"CT2_USE_MKL": "1", "CT2_PACKED_GEMM": "0"},
    {"CT2_USE_MKL": "0"},
    {"OMP_WAIT_POLICY": "active"},
    {"OMP_WAIT_POLICY": "passive"},
    {"OMP_PROC_BIND": "true"},
)
"""What CTranslate2's documentation has for CPUs, and how its OpenMP waits; KMP_* are for another OpenMP than it has."""
FLAGS = {"AVX512": "avx512f", "AVX2": "avx2"}
"""What Linux calls the instructions that CTranslate2 can be forced to use; it fails on processors without them."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """The contenders with one model.

    Attributes:
        ours: by precision.
        peers: likewise; each setting is one.
        generate: if it takes part.
    """

    ours: Mapping[str, Contender]
    peers: Mapping[str, Sequence[Contender]]
    generate: Contender | None

    @property
    def programs(self) -> list[Program]:
        """Of all of them, each once."""
        contenders = [*self.ours.values(), *chain.from_iterable(self.peers.values())]
        if self.generate is not None:
            contenders.append(self.generate)
        return list(dict.fromkeys(contender.program for contender in contenders))


def play(
    cell: Cell, task: Task, field: Field, processes: Mapping[Program, Process], *, rounds: int, progress: Progress
) -> Iterator[tuple[Played, Turn, Turn]]:
    """Plays a cell in all precisions.

    First there is a heat, which warms up too: all settings of a peer's run once, and the fastest go on. Then
    there are the rounds.

    Yields:
        For each precision the times, our translations and those of the fastest peer.
    """

    def turn(contender: Contender) -> Turn:
        return processes[contender.program].measure(contender.task(task))

    heats: dict[str, dict[Contender, float]] = {}
    chosen: dict[str, list[Contender]] = {}
    for precision, ours in field.ours.items():
        turn(ours)
        heat = {peer: turn(peer).median for peer in field.peers[precision] if cell.batch > peer.beyond}
        heats[precision], chosen[precision] = heat, sorted(heat, key=heat.__getitem__)[:FINALISTS]
    playing = [each for precision, ours in field.ours.items() for each in (ours, *chosen[precision])]
    if field.generate is not None:
        playing.append(field.generate)
    turns: dict[Contender, list[Turn]] = {each: [] for each in playing}
    for number in range(rounds):
        start = number % len(playing)
        for each in (*playing[start:], *playing[:start]):
            turns[each].append(turn(each))
        progress(f"{cell.model}, {cell}: round {number + 1} of {rounds}")
    seconds = {each: [turn.median for turn in of_each] for each, of_each in turns.items()}
    for precision, ours in field.ours.items():
        peers = {peer.name: seconds[peer] for peer in chosen[precision]}
        [best] = [peer for peer in chosen[precision] if peer.name == fastest(peers)]
        our, their = turns[ours][0], turns[best][0]
        same = [mine == its for mine, its in zip(our.tokens, their.tokens, strict=True)]
        played = Played(
            cell=cell,
            precision=precision,
            ours=seconds[ours],
            peers=peers,
            heat={peer.name: taken for peer, taken in heats[precision].items()},
            generate=[] if field.generate is None else seconds[field.generate],
            same=sum(same) / len(same),
        )
        progress(f"{cell.model}, {cell}, {precision}: {played.to_peer}")
        yield played, our, their


def weigh(
    model: str, tasks: Mapping[Cell, Task], field: Field, played: Sequence[Played], progress: Progress
) -> Iterator[Memory]:
    """The peak memory of fresh processes that translate every cell once, the smallest first.

    Of ours, and of those programs of a peer's that were the fastest in some cell; each cell in what were the program's
    best batches in its heat.
    """
    for precision, ours in field.ours.items():
        of_precision = {each.cell: each for each in played if (each.cell.model, each.precision) == (model, precision)}
        by_name = {peer.name: peer for peer in field.peers[precision]}
        fastest_programs = dict.fromkeys(by_name[each.peer].program for each in of_precision.values())
        for program in (ours.program, *fastest_programs):
            with Process(program) as process:
                for cell in sorted(tasks, key=lambda cell: cell.rows):
                    heat = of_precision[cell].heat
                    names = [name for name in heat if by_name[name].program == program]
                    contender = by_name[min(names, key=heat.__getitem__)] if names else ours
                    peak = process.measure(replace(contender.task(tasks[cell]), least_s=0.0)).peak
            size = next(each.size for each in (ours, *field.peers[precision]) if each.program == program)
            name = program.name if program == ours.program else f"CTranslate2 {precision} {program.name}"
            progress(f"{model}, {name}: {peak / 2**20:.0f} MiB")
            yield Memory(model=model, name=name, precision=precision, peak=peak, size=size)


def try_environments(
    tasks: Mapping[Cell, Task], settings: Mapping[str, Sequence[Contender]], progress: Progress
) -> Iterator[Trial]:
    """Times CTranslate2's settings with every environment in some cells.

    An environment that takes twice the time of the fastest in one of them is not tried in the others.

    Args:
        tasks: by their cells.
        settings: by precision, without an environment.
        progress: told what is tried.
    """
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    for precision, each in settings.items():
        best: dict[Cell, float] = {}
        for environment in ({}, *(each for each in ENVIRONMENTS if runs_on(each, flags))):
            for setting in each:
                with Process(in_environment(setting, environment).program) as process:
                    for cell, task in tasks.items():
                        process.measure(task)  # warms up
                        seconds = process.measure(task).median
                        best[cell] = min(seconds, best.get(cell, seconds))
                        yield Trial(
                            cell=cell,
                            precision=precision,
                            threads=setting.name,
                            environment=spelled(environment),
                            seconds=seconds,
                        )
                        if seconds > 2 * best[cell]:
                            break
            progress(f"tried {spelled(environment) or 'no variables'} in {precision}")


def runs_on(environment: Mapping[str, str], flags: Collection[str]) -> bool:
    """Whether a processor with these flags has the instructions that an environment forces CTranslate2 to use."""
    forced = environment.get("CT2_FORCE_CPU_ISA")
    return forced is None or FLAGS[forced] in flags


def worth_playing(trials: Sequence[Trial], precision: str) -> list[Mapping[str, str]]:
    """No variables, and the environment that was fastest in some cell, if it was faster than without."""
    cells = dict.fromkeys(trial.cell for trial in trials if trial.precision == precision)

    def gain(environment: Mapping[str, str]) -> float:
        """The least share of the time without it, where each has its best number of workers and threads."""
        shares = [1.0]
        for cell in cells:
            times = {
                name: [
                    trial.seconds
                    for trial in trials
                    if (trial.cell, trial.precision, trial.environment) == (cell, precision, name)
                ]
                for name in ("", spelled(environment))
            }
            if all(times.values()):
                shares.append(min(times[spelled(environment)]) / min(times[""]))
        return min(shares)

    best = min(ENVIRONMENTS, key=gain)
    return [{}, *([best] if gain(best) < GAIN else [])]


def in_environment(setting: Contender, environment: Mapping[str, str]) -> Contender:
    """A setting with variables, which are part of its name."""
    name = " ".join((setting.program.name, *([spelled(environment)] if environment else [])))
    return replace(setting, program=replace(setting.program, name=name, environment=environment))


def spelled(environment: Mapping[str, str]) -> str:
    """Variables as a shell takes them."""
    return " ".join(f"{name}={value}" for name, value in environment.items())
