"""Who plays, and the rounds: every cell is translated by all contenders in turns, in an order that rotates."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from duel_sides.process import Contender, Process
from duel_sides.results import Cell, Played, Trial, fastest
from duel_sides.worker import Task, Turn

Progress = Callable[[str], None]

LEAST_S = 0.5
"""A turn takes so long, or as long as its task takes once."""
FINALISTS = 2
"""So many settings of a peer's play the rounds of a cell, those that were the fastest in its heat."""
LARGE_BATCH = 8
"""Beyond it ``generate`` plays few rounds, for it takes long."""
FEW_ROUNDS = 2
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
    def contenders(self) -> Iterator[Contender]:
        """All of them."""
        yield from self.ours.values()
        for peers in self.peers.values():
            yield from peers
        if self.generate is not None:
            yield self.generate


def play(
    cell: Cell, task: Task, field: Field, processes: Mapping[Contender, Process], *, rounds: int, progress: Progress
) -> Iterator[tuple[Played, Turn, Turn]]:
    """Plays a cell in all precisions.

    First there is a heat, which warms up too: all settings of a peer's run once, and the fastest go on. Then
    there are the rounds.

    Yields:
        For each precision the times, our translations and those of the fastest peer.
    """
    chosen: dict[str, list[Contender]] = {}
    for precision, ours in field.ours.items():
        processes[ours].measure(task)
        heat = {peer: processes[peer].measure(task).median for peer in field.peers[precision]}
        chosen[precision] = sorted(heat, key=heat.__getitem__)[:FINALISTS]
    playing = [each for precision, ours in field.ours.items() for each in (ours, *chosen[precision])]
    generating = 0
    if field.generate is not None:
        generating = rounds if cell.batch <= LARGE_BATCH else min(rounds, FEW_ROUNDS)
        playing.append(field.generate)
    turns: dict[Contender, list[Turn]] = {each: [] for each in playing}
    for number in range(rounds):
        start = number % len(playing)
        for each in (*playing[start:], *playing[:start]):
            if each is not field.generate or number < generating:
                turns[each].append(processes[each].measure(task))
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
            generate=[] if field.generate is None else seconds[field.generate],
            same=sum(same) / len(same),
        )
        progress(f"{cell.model}, {cell}, {precision}: {played.to_peer}")
        yield played, our, their


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
    for precision, each in settings.items():
        best: dict[Cell, float] = {}
        for environment in ({}, *ENVIRONMENTS):
            for setting in each:
                with Process(in_environment(setting, environment)) as process:
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


def worth_playing(trials: Sequence[Trial], precision: str) -> list[Mapping[str, str]]:
    """No variables, and those environments that were faster in some cell, at most two, the fastest first."""
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

    gains = {index: gain(environment) for index, environment in enumerate(ENVIRONMENTS)}
    kept = [index for index in sorted(gains, key=gains.__getitem__) if gains[index] < GAIN]
    return [{}, *(ENVIRONMENTS[index] for index in kept[:2])]


def in_environment(setting: Contender, environment: Mapping[str, str]) -> Contender:
    """A setting with variables, which are part of its name."""
    name = " ".join((setting.name, *([spelled(environment)] if environment else [])))
    return replace(setting, name=name, environment=environment)


def spelled(environment: Mapping[str, str]) -> str:
    """Variables as a shell takes them."""
    return " ".join(f"{name}={value}" for name, value in environment.items())
