"""Compare decoding on a device with the CPU, and batches with sentences."""

from collections.abc import Sequence

import numpy as np

from benchmarks.gpu_checks.model import Model, Translated, decode, sources
from benchmarks.gpu_checks.report import Report
from jumok_serve.runtime.graphs import Graphs, Pairs

TIE = 1e-5
"""Largest difference of two log-probabilities that count as a tie."""
MOST_TIES = 0.002
LEAST_SAME_IN_FP16 = 0.99
"""Minimum share of sentences with the same fp16 translation alone and in a batch."""


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
    drawn = sources(model, count, lengths)
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
            drawn = sources(model, count, lengths, seed=2)
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
