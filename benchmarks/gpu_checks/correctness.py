"""Decode on a device, and compare it with the CPU, batches with sentences, and fp16 with fp32."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import sacrebleu

from benchmarks.common.graphs import Model, sentence, sources
from benchmarks.gpu_checks.report import Found, Report
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


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model, and sentences to decode with it.

    Attributes:
        report: report of the check.
        model: the model.
        count: number of sentences.
        tokens: tokens of each translation.
        lengths: fewest and most tokens of a source.
    """

    report: Report
    model: Model
    count: int
    tokens: int
    lengths: tuple[int, int]

    @property
    def source(self) -> int:
        """Tokens of a source in measurements of speed."""
        return self.lengths[1] - 8

    def sources(self, seed: int = 1, count: int | None = None) -> list[list[int]]:
        """Draw sources."""
        return sources(self.model.vocabulary, count or self.count, self.lengths, seed)

    def decode(
        self, graphs: Graphs, batch: Sequence[Sequence[int]], beam_size: int, tokens: int | None = None
    ) -> list["Translated"]:
        """Translate sources together."""
        made = [sentence(self.model, source, beam_size=beam_size, tokens=tokens or self.tokens) for source in batch]
        running = Batch(graphs, beam_size, self.model.pad)
        running.admit(made)
        while running.sentences:
            running.step()
            running.remove(running.done)
        best = [one.search.hypotheses()[0] for one in made]
        return [Translated(hypothesis.token_ids, sum(hypothesis.token_scores)) for hypothesis in best]

    def step_times(self, graphs: Graphs, sentences: int, beam_size: int) -> Iterator[float]:
        """Measure the seconds of each step in the middle of a decode."""
        running = Batch(graphs, beam_size, self.model.pad)
        drawn = sources(self.model.vocabulary, sentences, (self.source, self.source))
        running.admit([sentence(self.model, one, beam_size=beam_size, tokens=3 * self.tokens) for one in drawn])
        for number in range(2 * self.tokens):
            started = time.perf_counter()
            running.step()
            if number >= self.tokens:
                yield time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Translated:
    """The best hypothesis of a sentence, and the sum of its token scores."""

    tokens: tuple[int, ...]
    total: float


def parity(setting: Setting, on_cpu: Graphs, on_device: Graphs) -> None:
    """Compare decodes in fp32: tokens but for ties, and scores.

    Scores may differ by 1e-4 + 1e-5 * abs(sum).
    """
    drawn, count = setting.sources(), setting.count

    def compare(beam_size: int) -> Found:
        expected, found = (setting.decode(graphs, drawn, beam_size) for graphs in (on_cpu, on_device))
        ties, wrong = _differing(on_cpu, setting.model, drawn, expected, found)
        apart = max(
            (
                abs(one.total - other.total) / (1e-4 + 1e-5 * abs(one.total))
                for one, other in zip(expected, found, strict=True)
                if one.tokens == other.tokens
            ),
            default=0.0,
        )
        return Found(
            f"of {count} sentences {wrong} differ and {ties} are ties; scores are off by {apart:.2f} of what is "
            "tolerated at most",
            {"sentences": count, "differing": wrong, "ties": ties, "share_of_tolerance": apart},
            not wrong and ties <= MOST_TIES * count + 1 and apart <= 1,
        )

    for beam_size in (1, 4):
        setting.report.run(f"fp32 as on the CPU, beam {beam_size}", partial(compare, beam_size))


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


def invariance(setting: Setting, graphs: Graphs, precision: str) -> None:
    """Compare sentences decoded in one batch and alone."""

    def compare() -> Found:
        drawn, count = setting.sources(seed=2), setting.count
        together = setting.decode(graphs, drawn, 1)
        alone = [setting.decode(graphs, [source], 1)[0] for source in drawn]
        same = sum(one.tokens == other.tokens for one, other in zip(together, alone, strict=True))
        least = LEAST_SAME_IN_FP16 if precision == "fp16" else 1 - MOST_TIES
        return Found(
            f"{same} of {count} sentences have the same tokens",
            {"sentences": count, "same": same},
            same >= int(least * count),
        )

    setting.report.run(f"{precision} batch invariance", compare)


def bleu(
    report: Report, bundle: Path | None, source: Path | None, reference: Path | None, device: Device, *, count: int
) -> None:
    """Compare BLEU of the first sentences of a corpus."""
    name = "BLEU of fp16 beside fp32"
    if bundle is None or source is None or reference is None:
        report.add(name, "skipped", "no trained bundle and corpus: give --bundle, --source and --reference")
        return
    texts, references = read_lines(source)[:count], read_lines(reference)[:count]

    def compare() -> Found:
        scores = {}
        for precision, where in (("fp32", CPU), ("fp16", device)):
            with Translator(bundle, precision=precision, device=where.name) as translator:
                found = [one.text for one in translator.translate(texts, beam_size=BEAM_SIZE)]
            scores[precision] = sacrebleu.corpus_bleu(found, [references]).score
        return Found(
            f"{scores['fp16']:.2f} in fp16 and {scores['fp32']:.2f} in fp32, of {len(texts)} sentences",
            scores,
            abs(scores["fp16"] - scores["fp32"]) <= MOST_APART,
        )

    report.run(name, compare)
