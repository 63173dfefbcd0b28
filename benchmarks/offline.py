"""Measure jumok's offline speed against CTranslate2 at its best.

Both have the same weights and the same cores.

Every contender is a process; they take turns in an order that rotates by rounds, while the others are stopped. A cell
is a batch size and a beam size. In each cell, a preselection runs all thread divisions and batch sizes of CTranslate2;
the fastest take part in the rounds, and the lowest median counts. Each round gives one ratio; the table has medians and
ranges. jumok is not tuned. Its times include tokenization and detokenization. CTranslate2's do with the trained model;
with the other it takes and gives tokens, as does ``generate`` of transformers in fp32.

Two models: a Marian checkpoint of OPUS-MT's size with random weights and translations of fixed length; and the
repository's trained model on the test sentences of Multi30k, unsorted for jumok, batched by length for CTranslate2.

With ``--shortlist`` both sides use the same lists of target tokens: random ones for the first model, ones from the
training text for the second. jumok restricts each sentence to its own list, CTranslate2 a batch to the union.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import sacrebleu
import torch

from benchmarks.common import models
from benchmarks.common.data import MULTI30K, corpus
from benchmarks.common.processes import Process, Program
from benchmarks.common.progress import described, progress, setup, write_json
from benchmarks.common.random_marian import TINY, MarianSizes, sentences, source_tokens
from benchmarks.common.ratios import NO_FIGURES
from benchmarks.common.rounds import (
    LEAST_S,
    MEMORY_GOAL,
    QUICK_RESTS,
    RESTS,
    Cell,
    CellResult,
    Contenders,
    Memory,
    Rested,
    measure_memory,
    measure_rests,
    memory_table,
    ratio_table,
    rest_table,
    run_cell,
    with_goals,
)
from benchmarks.contenders.worker import Task, Turn
from jumok_serve.bundle.bundle import Bundle

BATCHES, BEAMS, PRECISIONS = (1, 8, 32, 64, 128), (1, 4), ("int8", "fp32")
SOURCE_LENGTH, TARGET_LENGTH = 20, 32
LONGEST = 100
"""Most tokens of a translation without fixed length."""
RANDOM, TRAINED = "Marian", "Multi30k"
QUICK = 5
"""Target tokens of the tiny model's translations."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Parameters of a run.

    Attributes:
        cells: batch and beam sizes with the random model.
        beams: beam sizes with the trained model.
        precisions: precisions.
        rounds: number of rounds.
        threads: threads of every contender.
        tiny: True for a tiny random model.
        with_generate: True to run ``generate``.
        listed: True to use shortlists.
    """

    cells: Sequence[tuple[int, int]]
    beams: Sequence[int]
    precisions: Sequence[str]
    rounds: int
    threads: int
    tiny: bool
    with_generate: bool
    listed: bool


@dataclass(kw_only=True)
class Record:
    """Results so far."""

    results: list[CellResult] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    rests: list[Rested] = field(default_factory=list)


def run_random(plan: Plan, folder: Path, record: Record) -> None:
    """Run all cells with random weights and translations of fixed length."""
    sizes, length = (TINY, QUICK) if plan.tiny else (MarianSizes(), TARGET_LENGTH)
    made = models.random_models(sizes, folder, plan.precisions, source_length=SOURCE_LENGTH, listed=plan.listed)
    texts = sentences(sizes, max(batch for batch, _ in plan.cells), tokens=SOURCE_LENGTH, seed=0)
    tokens = list(map(source_tokens, texts))
    tasks = _tasks(RANDOM, texts, tokens, length, plan)
    peers = models.peers(made, plan.precisions, threads=plan.threads)
    assert made.checkpoint is not None
    contenders = Contenders(
        ours=models.ours(made, plan.precisions),
        peers={precision: list(models.in_smaller_batches(peers[precision])) for precision in plan.precisions},
        generate=models.generate(made.checkpoint, threads=plan.threads) if plan.with_generate else None,
    )
    with ExitStack() as stack:
        processes = _start(contenders, stack)
        for cell, task in tasks.items():
            results = run_cell(cell, task, contenders, processes, rounds=plan.rounds)
            record.results += [result if plan.tiny or plan.listed else with_goals(result) for result, _, _ in results]
        record.rests += _rests(tasks, contenders, processes, record.results, plan)
    record.memories += measure_memory(RANDOM, tasks, contenders, record.results)


def _tasks(model: str, texts: Sequence[str], tokens: Sequence[list[str]], length: int, plan: Plan) -> dict[Cell, Task]:
    """Translations of fixed length by cell."""
    return {
        Cell(model=model, batch=batch, beam=beam): Task(
            texts=list(texts[:batch]),
            tokens=list(tokens[:batch]),
            beam_size=beam,
            min_length=length,
            max_length=length,
            least_s=0.0 if plan.tiny else LEAST_S,
        )
        for batch, beam in plan.cells
    }


def _rests(
    tasks: dict[Cell, Task],
    contenders: Contenders,
    processes: dict[Program, Process],
    results: Sequence[CellResult],
    plan: Plan,
) -> Iterator[Rested]:
    """Measure the smallest cell after rests: jumok, CTranslate2 in its fastest setting, and the control."""
    cell = min(tasks, key=lambda cell: cell.rows)
    for result in results:
        if result.cell == cell:
            ours = contenders.ours[result.precision]
            [peer] = [each for each in contenders.peers[result.precision] if each.name == result.peer]
            for name, each in ((f"jumok {result.precision}", ours), (f"CTranslate2 {result.precision}", peer)):
                yield _rested(name, cell, each.task(tasks[cell]), processes[each.program], plan)
    with Process(Program.of("control", "control_side", plan.threads)) as process:
        yield _rested("control", cell, tasks[cell], process, plan)


def _rested(name: str, cell: Cell, task: Task, process: Process, plan: Plan) -> Rested:
    """Measure a contender after rests."""

    def call(rests_s: Sequence[float]) -> Sequence[float]:
        return process.measure(replace(task, least_s=0.0, rests_s=rests_s)).seconds

    progress(f"{cell.model}, {cell}, {name}: after rests")
    return measure_rests(cell.model, name, QUICK_RESTS if plan.tiny else RESTS, call)


def run_trained(plan: Plan, folder: Path, record: Record) -> None:
    """Run the test set of Multi30k with the repository's model."""
    made = models.trained_models(folder, plan.precisions, listed=plan.listed)
    tokenizer = Bundle.open(made.bundle).tokenizer
    texts, references = (corpus(f"test_2016_flickr.{language}") for language in ("en", "de"))
    _, _, _, end, *_ = vocabulary = tokenizer.tokens(range(tokenizer.vocab_size))
    ids = {token: index for index, token in enumerate(vocabulary)}
    peers = models.peers(made, plan.precisions, threads=plan.threads)
    contenders = Contenders(
        ours=models.ours(made, plan.precisions),
        peers={precision: list(models.in_batches_of_tokens(peers[precision])) for precision in plan.precisions},
        generate=None,
    )
    tokens = [[*tokenizer.source_tokens(tokenizer.encode(text)), end] for text in texts]
    tasks = {
        Cell(model=TRAINED, batch=len(texts), beam=beam): Task(
            texts=texts, tokens=tokens, beam_size=beam, min_length=0, max_length=LONGEST, least_s=LEAST_S
        )
        for beam in plan.beams
    }

    def bleu(turn: Turn) -> float:
        translations = [tokenizer.decode([ids[token] for token in tokens]) for tokens in turn.tokens]
        return sacrebleu.corpus_bleu(translations, [references]).score

    with ExitStack() as stack:
        processes = _start(contenders, stack)
        for cell, task in tasks.items():
            for result, our, their in run_cell(cell, task, contenders, processes, rounds=plan.rounds):
                with_quality = replace(result, bleu=(bleu(our), bleu(their)))
                record.results.append(with_quality if plan.listed else with_goals(with_quality))
    record.memories += measure_memory(TRAINED, tasks, contenders, record.results)


def _start(contenders: Contenders, stack: ExitStack) -> dict[Program, Process]:
    return {each: stack.enter_context(Process(each)) for each in contenders.programs}


def report(record: Record, *, tiny: bool) -> str:
    """Format all tables."""
    parts = [
        ratio_table(record.results, ratios=not tiny),
        "Peak memory of fresh processes that translate every cell once, and their models on disk\n"
        + memory_table(record.memories, None if tiny else MEMORY_GOAL),
    ]
    if record.rests:
        table = rest_table(record.rests, ratios=not tiny)
        parts.append(f"Latency of one sentence after rests (multiple of back to back)\n{table}")
    return "\n\n".join(parts)


def as_json(record: Record, where: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The content of ``--json``: seconds of all rounds, and the results."""
    cells = [
        {
            **asdict(each),
            "peer": each.peer,
            "to_peer": asdict(each.to_peer),
            "to_generate": None if each.to_generate is None else asdict(each.to_generate),
        }
        for each in record.results
    ]
    return {
        **where,
        "rounds": rounds,
        "cells": cells,
        "memory": [asdict(each) for each in record.memories],
        "rests": [asdict(each) for each in record.rests],
    }


def _cell(text: str) -> tuple[int, int]:
    batch, beam = map(int, text.split("x"))
    return batch, beam


def main() -> int:
    """Run the benchmark and print the tables; returns the exit status."""
    parser = argparse.ArgumentParser(description="Measure jumok against CTranslate2 at its best.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count; default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="cores of every contender; default: %(default)s")
    parser.add_argument("--model", choices=(RANDOM, TRAINED), action="append", help="only this; default: both")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES, help="sentences at once")
    parser.add_argument("--beam", type=int, nargs="+", default=BEAMS, help="beam sizes")
    parser.add_argument("--cells", type=_cell, nargs="+", metavar="BATCHxBEAM", help="instead of --batch and --beam")
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", default=PRECISIONS, help="default: both")
    parser.add_argument("--no-generate", action="store_true", help="leave out transformers' generate")
    parser.add_argument(
        "--shortlist", action="store_true", help="keep all but generate, which is left out, to shortlists"
    )
    parser.add_argument("--quick", action="store_true", help="a tiny random model alone: minutes, and says nothing")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the models here, and use those that are here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to a file too")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= arguments.threads <= len(cores):
        parser.error(f"--threads must be between 1 and {len(cores)}, the cores there are, got {arguments.threads}")
    where = described(arguments.threads)
    print(f"{setup(arguments.threads)}; medians of {arguments.rounds} rounds\n")
    os.sched_setaffinity(0, cores[: arguments.threads])  # of all processes that are started from here
    torch.set_num_threads(arguments.threads)
    cells = arguments.cells or list(product(arguments.batch, arguments.beam))
    plan = Plan(
        cells=cells,
        beams=list(dict.fromkeys(beam for _, beam in cells)),
        precisions=arguments.precision,
        rounds=arguments.rounds,
        threads=arguments.threads,
        tiny=arguments.quick,
        with_generate=not (arguments.no_generate or arguments.shortlist),
        listed=arguments.shortlist,
    )
    chosen = arguments.model or ([RANDOM] if arguments.quick else [RANDOM, TRAINED])
    record = Record()
    with tempfile.TemporaryDirectory() as folder:
        kept = arguments.keep.resolve() if arguments.keep else Path(folder)
        ending = "-shortlist" if plan.listed else ""
        if RANDOM in chosen:
            run_random(plan, kept / f"{'tiny' if plan.tiny else 'marian'}{ending}", record)
        if TRAINED in chosen and MULTI30K.is_dir():
            run_trained(plan, kept / f"multi30k{ending}", record)
    if plan.listed:
        print("With shortlists")
    if plan.tiny:
        print(NO_FIGURES)
    print(report(record, tiny=plan.tiny))
    if TRAINED in chosen and not MULTI30K.is_dir():
        print(f"\n{TRAINED} was left out: {MULTI30K} is not there; name its folder in JUMOK_MULTI30K")
    write_json(arguments.json, as_json(record, where, arguments.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
