"""Decode on a device, and compare it with the CPU, batches with sentences, and fp16 with fp32."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sacrebleu

from benchmarks.common.graphs import Model, sentence, sources
from benchmarks.gpu_checks.report import Report
from jumok_serve import Translator
from jumok_serve.engine.batch import Batch
from jumok_serve.evaluation.parallel_text import read_lines
from jumok_serve.runtime.device import CPU, Device
from jumok_serve.runtime.graphs import Graphs, Pairs

TIE = 1e-5
"""Largest difference of two log-probabilities that count as a tie."""
MOST_TIES = 0.002
LEAST_SAME_IN_FP16 = 0.99
"""Minimum share of sentences with the same fp16 translation alone and in a batch."""
MOST_APART = 0.2
"""Largest difference of fp16's BLEU from fp32's."""
BEAM_SIZE = 5


@dataclass(frozen=True, slots=True)
class Translated:
    """The best hypothesis of a sentence, and the sum of its token scores."""

    tokens: tuple[int, ...]
    total: float


def decode(
    graphs: Graphs, model: Model, batch: Sequence[Sequence[int]], *, beam_size: int, tokens: int
) -> list[Translated]:
    """Translate sources together."""
    sentences = [sentence(model, source, beam_size=beam_size, tokens=tokens) for source in batch]
    running = Batch(graphs, beam_size, model.pad)
    running.admit(sentences)
    while running.sentences:
        running.step()
        running.remove(running.done)
    best = [one.search.hypotheses()[0] for one in sentences]
    return [Translated(hypothesis.token_ids, sum(hypothesis.token_scores)) for hypothesis in best]


def step_times(graphs: Graphs, model: Model, *, rows: tuple[int, int], source: int, steps: int) -> Iterator[float]:
    """Seconds per step in the middle of a decode.

    `rows` is the number of sentences, and of rows for each.
    """
    sentences, beam_size = rows
    running = Batch(graphs, beam_size, model.pad)
    drawn = sources(model.vocabulary, sentences, (source, source))
    running.admit([sentence(model, one, beam_size=beam_size, tokens=3 * steps) for one in drawn])
    for number in range(2 * steps):
        started = time.perf_counter()
        running.step()
        if number >= steps:
            yield time.perf_counter() - started


def parity(
    report: Report,
    model: Model,
    on_cpu: Graphs,
    on_device: Graphs,
    *,
    count: int,
    tokens: int,
    lengths: tuple[int, int],
) -> None:
    """Compare decodes in fp32: tokens but for ties, and scores.

    Scores may differ by 1e-4 + 1e-5 * abs(sum).
    """
    drawn = sources(model.vocabulary, count, lengths)
    for beam_size in (1, 4):
        name = f"fp32 as on the CPU, beam {beam_size}"
        with report.part(name) as time_left:
            if time_left:
                expected = decode(on_cpu, model, drawn, beam_size=beam_size, tokens=tokens)
                found = decode(on_device, model, drawn, beam_size=beam_size, tokens=tokens)
                ties, wrong = _differing(on_cpu, model, drawn, expected, found)
                apart = max(
                    (
                        abs(one.total - other.total) / (1e-4 + 1e-5 * abs(one.total))
                        for one, other in zip(expected, found, strict=True)
                        if one.tokens == other.tokens
                    ),
                    default=0.0,
                )
                report.check(
                    name,
                    not wrong and ties <= MOST_TIES * count + 1 and apart <= 1,
                    f"of {count} sentences {wrong} differ and {ties} are ties; scores are off by {apart:.2f} of what "
                    "is tolerated at most",
                    sentences=count,
                    differing=wrong,
                    ties=ties,
                    share_of_tolerance=apart,
                )


def _differing(
    graphs: Graphs,
    model: Model,
    drawn: Sequence[Sequence[int]],
    expected: Sequence[Translated],
    found: Sequence[Translated],
) -> tuple[int, int]:
    """Count differences that are ties, and others.

    At a tie both continued the same tokens with equally likely ones.
    """
    ties = wrong = 0
    for source, one, other in zip(drawn, expected, found, strict=True):
        if one.tokens == other.tokens:
            continue
        place = next(at for at, pair in enumerate(zip(one.tokens, other.tokens, strict=True)) if pair[0] != pair[1])
        targets = np.array([one.tokens, other.tokens])
        starts, lengths = np.full(2, model.start), np.full(2, targets.shape[1])
        scores = graphs.score(Pairs(np.array([source, source]), np.full(2, len(source)), starts, targets, lengths))
        tie = min(abs(scores[0, place] - scores[1, place]), abs(float(scores[0].sum()) - float(scores[1].sum()))) <= TIE
        ties, wrong = ties + tie, wrong + (not tie)
    return ties, wrong


def invariance(
    report: Report, model: Model, graphs: Graphs, precision: str, *, count: int, tokens: int, lengths: tuple[int, int]
) -> None:
    """Compare sentences decoded in one batch and alone."""
    name = f"{precision} batch invariance"
    with report.part(name) as time_left:
        if time_left:
            drawn = sources(model.vocabulary, count, lengths, seed=2)
            together = decode(graphs, model, drawn, beam_size=1, tokens=tokens)
            alone = [decode(graphs, model, [source], beam_size=1, tokens=tokens)[0] for source in drawn]
            same = sum(one.tokens == other.tokens for one, other in zip(together, alone, strict=True))
            least = LEAST_SAME_IN_FP16 if precision == "fp16" else 1 - MOST_TIES
            report.check(
                name,
                same >= int(least * count),
                f"{same} of {count} sentences have the same tokens",
                sentences=count,
                same=same,
            )


def bleu(
    report: Report, bundle: Path | None, source: Path | None, reference: Path | None, device: Device, *, count: int
) -> None:
    """Compare BLEU of the first sentences of a corpus."""
    name = "BLEU of fp16 beside fp32"
    if bundle is None or source is None or reference is None:
        report.skip(name, "no trained bundle and corpus: give --bundle, --source and --reference")
        return
    with report.part(name) as time_left:
        if not time_left:
            return
        texts, references = read_lines(source)[:count], read_lines(reference)[:count]
        scores = {
            precision: sacrebleu.corpus_bleu(_translated(bundle, precision, where, texts), [references]).score
            for precision, where in (("fp32", CPU), ("fp16", device))
        }
        apart = abs(scores["fp16"] - scores["fp32"])
        report.check(
            name,
            apart <= MOST_APART,
            f"{scores['fp16']:.2f} in fp16 and {scores['fp32']:.2f} in fp32, of {len(texts)} sentences",
            fp16=scores["fp16"],
            fp32=scores["fp32"],
        )


def _translated(bundle: Path, precision: str, device: Device, texts: Sequence[str]) -> list[str]:
    with Translator(bundle, precision=precision, device=device.name) as translator:
        return [translation.text for translation in translator.translate(texts, beam_size=BEAM_SIZE)]
