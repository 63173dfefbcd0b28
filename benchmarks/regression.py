"""Compare the speed of this checkout with another checkout.

The other is usually the one before a change. With `--before-bundle` it translates with another bundle, and may be this
checkout.

Both sides translate the same texts with the same bundle, in separate processes that take turns; the other process
is stopped meanwhile. Each round gives one ratio per cell: the other checkout's time over this one's, so 1.10 means ten
percent faster. The time of a decoder step is the difference of translations of two lengths. Requests per second are
measured with this checkout's client against both servers.
"""

import argparse
import asyncio
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.closed_loop import Decoding, load
from benchmarks.common.data import ROOT, TRANSFORMER
from benchmarks.common.processes import Process, Program, serving
from benchmarks.common.progress import described, setup, write_json
from benchmarks.common.ratios import aligned, turns
from benchmarks.contenders.worker import Task
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.evaluation.parallel_text import read_lines

SOURCES = ("proto", "serve", "export", "clients/python")
CELLS = ((1, 1), (1, 4), (8, 4), (32, 1), (32, 4), (128, 1))
STEP_CELLS = ((1, 1), (8, 4), (32, 1), (128, 1))
OUTSTANDING = (1, 8, 64)
LENGTHS = (16, 32)
"""New tokens of every translation; their difference gives the time of a step."""
LEAST_S = 0.5
DECODING = Decoding(beam_size=4, max_length=LENGTHS[1])


@dataclass(frozen=True)
class Side:
    """A checkout and its bundle."""

    checkout: Path
    bundle: Path

    @property
    def python(self) -> Path:
        """The checkout's interpreter: its environment's, or this one."""
        return Path(sys.executable) if self.checkout == ROOT else self.checkout / ".venv/bin/python"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One cell: the other checkout's seconds over this one's, by rounds.

    Attributes:
        benchmark: "offline", "step" or "serving".
        cell: sentences x beam size, or outstanding requests.
        rounds: one ratio per round, in ascending order.
    """

    benchmark: str
    cell: str
    rounds: tuple[float, ...]

    @property
    def row(self) -> list[str]:
        """Median, and second smallest and second largest ratio; marked if it got slower.

        With nine rounds, the median is between these two with 96 percent probability.
        """
        median = statistics.median(self.rounds)
        cut = 1 if len(self.rounds) > 4 else 0
        low, high = self.rounds[cut], self.rounds[-1 - cut]
        slower = "slower" if median < 0.97 and high < 1 else ""
        return [self.benchmark, self.cell, f"{median:.3f}", f"{low:.3f} to {high:.3f}", slower]


def change(benchmark: str, cell: str, before: Sequence[float], after: Sequence[float]) -> Change:
    """Divide round by round."""
    rounds = sorted(old / new for old, new in zip(before, after, strict=True))
    return Change(benchmark=benchmark, cell=cell, rounds=tuple(rounds))


def compare_offline(
    sides: Sequence[Side], precision: str, texts: Sequence[str], cells: Sequence[tuple[int, int]], rounds: int
) -> Iterator[Change]:
    """Time translations of two lengths, and derive the step time."""
    with ExitStack() as stack:
        processes = []
        for side in sides:
            # The benchmarks' own modules come from this checkout.
            path = os.pathsep.join(str(side.checkout / source) for source in SOURCES)
            program = Program.of(str(side.checkout), "jumok_side", side.bundle, precision, "--whole", PYTHONPATH=path)
            processes.append(stack.enter_context(Process(program)))
        for sentences, beam in cells:
            chosen = [texts[index % len(texts)] for index in range(sentences)]
            seconds: dict[tuple[int, int], list[float]] = {
                (which, length): [] for which in (0, 1) for length in LENGTHS
            }
            for number, which in turns((0, 1), rounds):
                for length in LENGTHS:
                    task = Task(texts=chosen, beam_size=beam, min_length=length, max_length=length, least_s=LEAST_S)
                    taken = processes[which].measure(task).median
                    if number:
                        seconds[which, length].append(taken)
            name = f"{sentences} x {beam}"
            short, long = LENGTHS
            yield change("offline", name, seconds[0, long], seconds[1, long])
            if (sentences, beam) in STEP_CELLS:
                steps = [
                    [b - a for a, b in zip(seconds[side, short], seconds[side, long], strict=True)] for side in (0, 1)
                ]
                yield change("step", name, *steps)


async def compare_serving(
    sides: Sequence[Side], precision: str, texts: Sequence[str], outstanding: Sequence[int], rounds: int
) -> list[Change]:
    """Time the same number of requests against the servers of both checkouts."""
    found: list[Change] = []
    async with AsyncExitStack() as stack:
        servers = []
        for side in sides:
            command = ("jumok", "serve", side.bundle, "--port", "0", "--precision", precision)
            server = serving(
                *command, "--requests-per-second", "1000000", checkout=side.checkout, python=str(side.python)
            )
            servers.append(await stack.enter_async_context(server))
        for requests in outstanding:
            seconds: list[list[float]] = [[], []]
            for number, which in turns((0, 1), rounds):
                sentences = max(32, 2 * requests)
                measured = await load(servers[which], texts, DECODING, outstanding=requests, sentences=sentences)
                if number:
                    seconds[which].append(measured.wall_s)
            found.append(change("serving", f"{requests} outstanding", *seconds))
    return found


def main() -> None:
    """Measure all cells and print the table."""
    parser = argparse.ArgumentParser(description="Compare the speed of this checkout with another one.")
    parser.add_argument("before", type=Path, help="root of the other checkout, its native kernels compiled")
    parser.add_argument("--bundle", type=Path, default=TRANSFORMER)
    parser.add_argument("--before-bundle", type=Path, help="of the other checkout; default: the same")
    parser.add_argument("--precision", default="int8", help="of the bundle; default: %(default)s")
    parser.add_argument("--texts", type=Path, help="a file of sentences; default: a few built in")
    parser.add_argument("--rounds", type=int, default=9, help="rounds that count; default: %(default)s")
    parser.add_argument("--only", choices=("offline", "serving"), help="default: both")
    parser.add_argument("--quick", action="store_true", help="two small cells and two rounds: says nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the ratios to a file too")
    arguments = parser.parse_args()
    before = Side(arguments.before.resolve(), arguments.before_bundle or arguments.bundle)
    if not (before.checkout / "serve/jumok_serve").is_dir():
        parser.error(f"before: {arguments.before} is no checkout of jumok")
    if not before.python.exists():
        parser.error(f"before: {arguments.before} has no .venv; run `make .venv/installed-serve` there")
    sides = (before, Side(ROOT, arguments.bundle))
    for side in sides:
        Bundle.open(side.bundle)
    rounds = 2 if arguments.quick else arguments.rounds
    texts = read_lines(arguments.texts) if arguments.texts else list(SENTENCES)
    cores = len(os.sched_getaffinity(0))
    where = described(cores)
    print(setup(cores))
    found: list[Change] = []
    if arguments.only != "serving":
        cells = CELLS[:2] if arguments.quick else CELLS
        found += compare_offline(sides, arguments.precision, texts, cells, rounds)
    if arguments.only != "offline":
        outstanding = OUTSTANDING[:1] if arguments.quick else OUTSTANDING
        found += asyncio.run(compare_serving(sides, arguments.precision, texts, outstanding, rounds))
    names = dict.fromkeys(side.bundle.name for side in sides)
    print(f"{' and '.join(names)}, {arguments.precision}; {rounds} rounds")
    if arguments.quick:
        print("A quick run shows that the comparison works; its ratios say nothing")
    rows = [each.row for each in sorted(found, key=lambda each: each.benchmark)]
    print(aligned([["benchmark", "cell", "before/after", "interval", ""], *rows]))
    write_json(arguments.json, {**where, "ratios": list(map(asdict, found))})


SENTENCES = (
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Two young women with red hats are talking on a park bench near the river.",
    "A brown dog runs through the snow with a ball in its mouth.",
    "Several people are waiting in line in front of a small store at night.",
    "A little girl in a pink dress is climbing a set of stairs in an entry way.",
    "Three men on horses are riding along the beach while the sun goes down.",
    "An old woman is reading a newspaper on a park bench.",
    "A group of children plays football on a green field.",
)


if __name__ == "__main__":
    main()
