"""Compare imported checkpoints with Hugging Face's `generate`: equal tokens and scores.

Makes small checkpoints of every family that can be imported, each with a real tokenizer and half trained, so that what
it says ends and varies; imports each into a bundle; and decodes the same sentences with the bundle, all of them with
all sets of options in flight together, and with ``generate``, one at a time. Equal means the same tokens and scores
within 1e-4 + 1e-5 * |sum of token scores|, in fp32. A difference is a tie where ``generate``'s own candidates lie
within 1e-5 at the decision that makes it; at most 0.2 % of cases may be ties. Prints a table, and exits with 1 where
anything is different, or where too few hypotheses end by themselves or too few outputs differ for the comparison to say
much.

Needs transformers 5, which it follows. With ``--ctranslate2`` it compares with CTranslate2 instead; see
``marian_ct2.py``.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import metadata

import torch

from benchmarks.common.progress import progress
from tests.parity.compare import Tally
from tests.parity.run import SEED, Outcome, compare_named
from tests.parity.shapes import SHAPES
from tests.parity.texts import parallel_sentences


def compare_all(shapes: Sequence[str], *, quick: bool, sentences: int, processes: int) -> list[Outcome]:
    """Compares the checkpoints of these names, several at a time, each in a process on one core."""
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(partial(compare_named, quick=quick, sentences=sentences), shapes, chunksize=1))


def by_family(outcomes: Sequence[Outcome]) -> dict[str, Tally]:
    """The checkpoints' results added up."""
    families: dict[str, Tally] = {}
    for outcome in outcomes:
        families[outcome.family] = families.get(outcome.family, Tally()) + outcome.tally
    return families


def table(families: dict[str, Tally]) -> str:
    """The results, aligned, with a last line for all of them."""
    head = ("family", "cases", "hypotheses", "equal", "ties", "different", "ended", "lengths", "outputs", "left out")
    rows: list[tuple[str, ...]] = [head]
    for family, tally in {**families, "all": sum(families.values(), Tally())}.items():
        ties = f"{tally.ties} ({tally.ties / max(tally.cases, 1):.2%})"
        ended = f"{tally.ended / max(tally.hypotheses, 1):.0%}"
        found = (tally.cases, tally.hypotheses, tally.equal, ties, len(tally.differences), ended)
        rows.append((family, *map(str, (*found, len(tally.lengths), len(tally.outputs), tally.lifeless))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> int:
    """Compare, print the table and what is wrong; the exit status."""
    parser = argparse.ArgumentParser(description="Compare imported checkpoints with Hugging Face's generate.")
    parser.add_argument("--quick", action="store_true", help="few options and one checkpoint of each family: a minute")
    parser.add_argument(
        "--ctranslate2", action="store_true", help="compare Marian checkpoints with CTranslate2 instead"
    )
    parser.add_argument("--shape", action="append", metavar="NAME", help="only this checkpoint; may be repeated")
    parser.add_argument("--sentences", type=int, default=8, help="sentences for every set of options; default: 8")
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="checkpoints at a time; default: %(default)s",
    )
    arguments = parser.parse_args()
    known = [shape.name for shape in SHAPES]
    if unknown := set(arguments.shape or ()) - set(known):
        parser.error(f"no such checkpoint: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if arguments.ctranslate2:
        if arguments.quick or arguments.shape:
            parser.error("--quick and --shape do not go with --ctranslate2")
        from tests.parity import marian_ct2

        torch.set_num_threads(1)
        return marian_ct2.compare(parallel_sentences(arguments.sentences, seed=SEED), progress)
    quick = [shape.name for shape in {shape.family: shape for shape in reversed(SHAPES)}.values()]
    chosen = arguments.shape or (quick if arguments.quick else known)
    started = time.monotonic()
    outcomes = compare_all(chosen, quick=arguments.quick, sentences=arguments.sentences, processes=arguments.processes)
    seconds = time.monotonic() - started
    families = by_family(outcomes)
    print(
        f"{len(chosen)} checkpoints against transformers {metadata.version('transformers')}, fp32, "
        f"{arguments.sentences} sentences for every set of options, {seconds:.0f} s\n"
    )
    print(table(families))
    problems = [f"{family}: {problem}" for family, tally in families.items() for problem in tally.problems()]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
