"""Verify int8 graphs: accuracy, arithmetic and batch invariance.

Graphs are compared with PyTorch in fp32, and with the same int8 arithmetic in PyTorch.
"""

from collections.abc import Callable, Iterator, Sequence, Set

import numpy as np
from numpy.typing import NDArray
from torch import nn

from jumok_export.parallel import concurrently
from jumok_export.quantization.calibration import Calibration
from jumok_export.quantization.fake_quantization import Int8Arithmetic
from jumok_export.verification.comparison import Moved, RelativeError, make_check
from jumok_export.verification.rollout import RowScores
from jumok_export.verification.samples import InputBounds, SentenceSamples
from jumok_export.verification.sides import TorchSide
from jumok_export.verification.trial import (
    AGREEMENT,
    INVARIANCE,
    MOVED_SENTENCES,
    AnySide,
    Trial,
    centre,
    describe,
    report,
)
from jumok_serve.manifest.manifest import Check, VerificationReport
from jumok_serve.runtime.graphs import Floats, Graphs
from jumok_serve.runtime.process_memory import give_back_memory

QUANTIZATION_ERROR = 0.15
"""Limit of the relative error of logits and attention weights in int8, unless the same arithmetic in PyTorch errs more.

Measured on logits: 0.012 to 0.024 for random models of 1 to 12 layers, 0.013 to 0.017 for trained ones; with calibrated
activations 0.028 to 0.046 and 0.014 to 0.018.
"""
EXCESS_ERROR = 1.5
"""Limit of the error of int8 logits, as a multiple of the error of the same arithmetic in PyTorch.

Measured: 0.99 to 1.01, from one layer to twelve; 1.2 with weights of eight times the usual size. Activations that are
off by a hundredth of their range give more than 2.
"""
RESCORED_SENTENCES = 0.9
"""Limit of the share of sentences whose int8 scores differ between the steps and the one-pass scorer.

Both sum in different orders, so roundings differ more often in larger models. Measured: 0 to 1 in 100 sentences up to 6
layers, 7 in 100 with 12 layers of width 512, 25 in 100 with 12 + 12 of width 1024. A broken graph changes all.
"""


def verify_int8(
    model: nn.Module | TorchSide,
    graphs: Graphs,
    bounds: InputBounds,
    *,
    weights: Sequence[NDArray[np.float32]],
    rectified: Set[str],
    calibration: Calibration | None = None,
) -> VerificationReport:
    """Compare int8 graphs with their model, and scores alone with scores in a batch.

    Calibrated graphs are compared on their calibration sentences, others on random tokens.

    Args:
        weights: quantized matrices of encoder and decoder. The excess error is checked only if PyTorch uses all of them
            in linear layers and embeddings.
        rectified: `rectified_keys` of the graphs before quantization.
        calibration: calibration of the activation scales, or None.
    """
    trial = _Trial(model, graphs, bounds, weights, Int8Arithmetic(rectified=rectified))
    if calibration is not None:
        trial.arithmetic = Int8Arithmetic(calibration.scales, rectified)
        if calibration.sources:
            trial.samples = SentenceSamples(bounds, trial.expected, calibration)
        if calibration.scales:
            of_texts = f"calibrated on {len(calibration.sources)} sentences"
            trial.activations = "scales that came with the model" if calibration.given else of_texts
    checks = report(trial.aligner, trial.select, trial.sampler, last=trial.longest).checks
    # The longest text and the rounded weights take most memory, one after the other.
    give_back_memory(frozen=False)
    return VerificationReport(checks=(*checks, *report(trial.decode).checks))


class _Trial(Trial):
    def __init__(
        self,
        model: nn.Module | TorchSide,
        graphs: Graphs,
        bounds: InputBounds,
        weights: Sequence[NDArray[np.float32]],
        arithmetic: Int8Arithmetic,
    ) -> None:
        super().__init__(model, graphs, bounds)
        self.weights = weights
        self.arithmetic = arithmetic
        self.activations = "one scale per row"

    def aligner(self) -> list[Check]:
        def measure(expected: AnySide, found: AnySide) -> RelativeError:
            error = RelativeError("aligner", QUANTIZATION_ERROR)
            for inputs in self.samples.pairs():
                for weights, others in zip(expected.align(inputs), found.align(inputs), strict=True):
                    error.compare(weights, others)
            return error

        detail = "root mean square error of all attention weights"
        checks = [self._accurate(measure, detail, self.runtime)] if self.aligns else []
        self.graphs.unload("aligner")
        return checks

    def _rounded(self) -> TorchSide:
        """The same arithmetic in PyTorch."""
        assert self._model is not None
        return TorchSide(self._model, self.arithmetic)

    def longest(self) -> list[Check]:
        pair, step = self.samples.longest()

        def measure(expected: AnySide, found: AnySide) -> RelativeError:
            error = RelativeError("maximum lengths", QUANTIZATION_ERROR)
            error.compare(expected.score(pair), found.score(pair))
            error.compare(centre(expected.step(step)[0]), centre(found.step(step)[0]))
            return error

        return [self._accurate(measure, self.longest_described(pair, step), self.alone)]

    def _accurate(self, measure: Callable[[AnySide, AnySide], RelativeError], detail: str, found: AnySide) -> Check:
        """Compare int8 with fp32; a larger error passes if the same arithmetic in PyTorch makes it."""
        error = measure(self.expected, found)
        if error.over:
            emulated = measure(self.expected, self._rounded())
            error.allow(emulated, EXCESS_ERROR, "the error of this rounding in PyTorch")
        return error.check(detail)

    def decode(self) -> list[Check]:
        rollout = self.samples.rollout(sentences=100, beam_size=2)
        logits, rounding = RelativeError("decode", QUANTIZATION_ERROR), RelativeError("rounding", QUANTIZATION_ERROR)
        together, exact = RowScores(rollout), RowScores(rollout)
        # The side that takes longest first: one worker computes it, the other one both others.
        sides = (self._rounded(), None), (self.expected, exact), (self.runtime, together)
        plays = [_centred(self.play(rollout, side), scores) for side, scores in sides]
        for _ in rollout.steps:
            rounded, expected, found = concurrently(next, plays)
            logits.compare(expected, found)
            rounding.compare(expected, rounded)
        covered = self.arithmetic.covers(self.weights)
        self.arithmetic.forget()
        invariance, agreement = (
            Moved("batch invariance", MOVED_SENTENCES),
            Moved("scorer agreement", RESCORED_SENTENCES),
        )
        in_fp32 = exact.totals[:: rollout.beam_size]
        recounts = self.recounts(rollout, together, self.alone)
        for (scores, by_itself, in_one_pass), in_full in zip(recounts, in_fp32, strict=True):
            invariance.compare(by_itself, scores, in_full)
            agreement.compare(in_one_pass, scores, in_full)
        logits.allow(rounding, EXCESS_ERROR, "the error of this rounding in PyTorch")
        error = logits.check(
            f"root mean square error of the logits of {describe(rollout)}; activations: {self.activations}"
        )
        return [
            error,
            *([_excess(error, rounding)] if covered else []),
            invariance.check(f"share that differs: {INVARIANCE}"),
            agreement.check(f"share that differs: {AGREEMENT}"),
        ]


def _centred(play: Iterator[Floats], scores: RowScores | None) -> Iterator[Floats]:
    """Yield the centred logits of each step, whose scores are added before."""
    for logits in play:
        if scores is not None:
            scores.add(logits)
        yield centre(logits)


def _excess(error: Check, rounding: RelativeError) -> Check:
    least = rounding.check("").worst
    excess = error.worst / least if least else float(error.worst > 0)
    detail = f"the same error as a multiple of that of this rounding in PyTorch, {least:.3g}"
    return make_check("excess error", error.cases, excess, EXCESS_ERROR, detail)
