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
import json
import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.closed_loop import Decoding, load
from benchmarks.common.processes import Process, Program, serving
from benchmarks.common.progress import described, progress
from benchmarks.contenders.worker import Task
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.evaluation.parallel_text import read_lines

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("proto", "serve", "export", "clients/python")
CELLS = ((1, 1), (1, 4), (8, 4), (32, 1), (32, 4), (128, 1))
STEP_CELLS = ((1, 1), (8, 4), (32, 1), (128, 1))
OUTSTANDING = (1, 8, 64)
LENGTHS = (16, 32)
"""New tokens of every translation; their difference gives the time of a step."""
LEAST_S = 0.5
DECODING = Decoding(beam_size=4, max_length=LENGTHS[1])


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One cell: the other checkout's seconds over this one's, by rounds.

    Attributes:
        benchmark: "offline", "step" or "serving".
        cell: sentences x beam size, or outstanding requests.
        rounds: one ratio per round.
    """

    benchmark: str
    cell: str
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def interval(self) -> tuple[float, float]:
        """Second smallest and second largest ratio.

        With nine rounds, the median is between them with 96 percent probability.
        """
        ordered = sorted(self.rounds)
        return (ordered[1], ordered[-2]) if len(ordered) > 4 else (ordered[0], ordered[-1])


def path_of(checkout: Path) -> str:
    """Make a checkout's module path, except for the benchmarks' own modules.

    Those come from this checkout.
    """
    return os.pathsep.join(str(checkout / source) for source in SOURCES)


def compare_offline(
    bundles: Sequence[Path],
    precision: str,
    before: Path,
    *,
    texts: Sequence[str],
    cells: Sequence[tuple[int, int]],
    rounds: int,
) -> list[Ratio]:
    """Time translations of two lengths, and derive the step time.

    Both checkouts are measured, each with its own one of the bundles.
    """
    sides = [
        Program(
            name=name,
            module="benchmarks.contenders.checkout_side",
            arguments=(str(bundle), precision),
            environment={"PYTHONPATH": path_of(checkout)},
        )
        for name, checkout, bundle in zip(("before", "after"), (before, ROOT), bundles, strict=True)
    ]
    found: list[Ratio] = []
    with ExitStack() as stack:
        processes = [stack.enter_context(Process(side)) for side in sides]
        for sentences, beam in cells:
            seconds: list[list[list[float]]] = [[[] for _ in LENGTHS] for _ in sides]
            for number in range(1 + rounds):  # the first round warms up
                for turn in range(len(sides)):
                    side = (turn + number) % len(sides)
                    for place, length in enumerate(LENGTHS):
                        measured = processes[side].measure(
                            Task(
                                texts=[texts[index % len(texts)] for index in range(sentences)],
                                tokens=[],
                                beam_size=beam,
                                min_length=length,
                                max_length=length,
                                least_s=LEAST_S,
                            )
                        )
                        seconds[side][place].append(measured.median)
            name = f"{sentences} x {beam}"
            (short_before, long_before), (short, long) = seconds
            found.append(Ratio(benchmark="offline", cell=name, rounds=ratios(long_before, long)))
            if (sentences, beam) in STEP_CELLS:
                steps_before = [b - a for a, b in zip(short_before, long_before, strict=True)]
                steps = [b - a for a, b in zip(short, long, strict=True)]
                found.append(Ratio(benchmark="step", cell=name, rounds=ratios(steps_before, steps)))
            progress(f"{name}: {found[-1].median:.3f}")
    return found


async def compare_serving(
    bundles: Sequence[Path],
    precision: str,
    before: Path,
    *,
    texts: Sequence[str],
    outstanding: Sequence[int],
    rounds: int,
) -> list[Ratio]:
    """Time the same number of requests against the servers of both checkouts."""
    found: list[Ratio] = []
    async with AsyncExitStack() as stack:
        servers = []
        for checkout, bundle in zip((before, ROOT), bundles, strict=True):
            command = ("jumok", "serve", bundle, "--port", "0", "--precision", precision)
            servers.append(
                await stack.enter_async_context(
                    serving(*command, "--requests-per-second", "1000000", checkout=checkout, python=python_of(checkout))
                )
            )
        for requests in outstanding:
            seconds: list[list[float]] = [[], []]
            for number in range(1 + rounds):
                for turn in range(2):
                    side = (turn + number) % 2
                    measured = await load(
                        servers[side], texts, DECODING, outstanding=requests, sentences=max(32, 2 * requests)
                    )
                    seconds[side].append(measured.wall_s)
            found.append(Ratio(benchmark="serving", cell=f"{requests} outstanding", rounds=ratios(*seconds)))
            progress(f"{requests} outstanding: {found[-1].median:.3f}")
    return found


def python_of(checkout: Path) -> str:
    """Find a checkout's interpreter: its environment's, or this one."""
    own = checkout / ".venv/bin/python"
    return sys.executable if checkout == ROOT else str(own)


def ratios(before: Sequence[float], after: Sequence[float]) -> tuple[float, ...]:
    """Divide round by round, without the first round, which warms up."""
    return tuple(old / new for old, new in zip(before[1:], after[1:], strict=True))


def table(found: Sequence[Ratio]) -> str:
    """Format the ratios as a table; marks those that got slower."""
    lines = [f"{'benchmark':9}  {'cell':15}  before/after  interval"]
    for each in sorted(found, key=lambda ratio: ratio.benchmark):
        low, high = each.interval
        slower = "  slower" if each.median < 0.97 and high < 1 else ""
        lines.append(f"{each.benchmark:9}  {each.cell:15}  {each.median:12.3f}  {low:.3f} to {high:.3f}{slower}")
    return "\n".join(lines)


def main() -> int:
    """Measure all cells and print the table; return the exit status."""
    parser = argparse.ArgumentParser(description="Compare the speed of this checkout with another one.")
    parser.add_argument("before", type=Path, help="root of the other checkout, its native kernels compiled")
    parser.add_argument("--bundle", type=Path, default=ROOT / "models/multi30k-en-de-transformer")
    parser.add_argument("--before-bundle", type=Path, help="of the other checkout; default: the same")
    parser.add_argument("--precision", default="int8", help="of the bundle; default: %(default)s")
    parser.add_argument("--texts", type=Path, help="a file of sentences; default: a few built in")
    parser.add_argument("--rounds", type=int, default=9, help="rounds that count; default: %(default)s")
    parser.add_argument("--only", choices=("offline", "serving"), help="default: both")
    parser.add_argument("--quick", action="store_true", help="two small cells and two rounds: says nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the ratios to a file too")
    arguments = parser.parse_args()
    if not (arguments.before / "serve/jumok_serve").is_dir():
        parser.error(f"before: {arguments.before} is no checkout of jumok")
    if not Path(python_of(arguments.before.resolve())).exists():
        parser.error(f"before: {arguments.before} has no .venv; run `make .venv/installed-serve` there")
    bundles = (arguments.before_bundle or arguments.bundle, arguments.bundle)
    for bundle in bundles:
        Bundle.open(bundle)
    rounds = 2 if arguments.quick else arguments.rounds
    texts = read_lines(arguments.texts) if arguments.texts else list(SENTENCES)
    where = described(len(os.sched_getaffinity(0)))
    found: list[Ratio] = []
    before = arguments.before.resolve()
    if arguments.only != "serving":
        cells = CELLS[:2] if arguments.quick else CELLS
        found += compare_offline(bundles, arguments.precision, before, texts=texts, cells=cells, rounds=rounds)
    if arguments.only != "offline":
        outstanding = OUTSTANDING[:1] if arguments.quick else OUTSTANDING
        found += asyncio.run(
            compare_serving(bundles, arguments.precision, before, texts=texts, outstanding=outstanding, rounds=rounds)
        )
    setup = f"{' and '.join(dict.fromkeys(bundle.name for bundle in bundles))}, {arguments.precision}; {rounds} rounds"
    print(f"{where['cores']} cores of {where['processor']}; {setup}")
    if arguments.quick:
        print("A quick run shows that the comparison works; its ratios say nothing")
    print(table(found))
    if arguments.json:
        content = {**where, "ratios": [asdict(each) for each in found]}
        arguments.json.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return 0


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
    sys.exit(main())
