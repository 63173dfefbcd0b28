"""Verify fp16 graphs against PyTorch in fp32."""

import numpy as np
from torch import nn

from jumok_export.quantization.calibration import Calibration
from jumok_export.verification.comparison import Moved, RelativeError, make_check
from jumok_export.verification.rollout import RowScores
from jumok_export.verification.samples import InputBounds, SentenceSamples
from jumok_export.verification.sides import TorchSide
from jumok_export.verification.trial import AGREEMENT, INVARIANCE, Trial, centre, describe, report
from jumok_serve.manifest.manifest import Check, VerificationReport
from jumok_serve.runtime.graphs import Graphs

HALF_ERROR = 0.02
"""Limit of the relative error of memory, state, logits and log-probabilities in fp16.

fp16 has 11 bits, so one rounding changes at most a share of 0.0005. Overflow gives an unbounded error.
"""
HALF_TOKENS = 0.05
"""Limit of the share of rows whose most likely token differs in fp16."""
HALF_TIE = 0.05
"""Tokens whose log-probabilities in fp32 are this close count as equally likely."""
HALF_MOVED = 0.1
"""Limit of the share of sentences whose fp16 scores depend on the batch.

Sums in fp32 may differ in the last bit with the shape of a batch, which sometimes changes a rounding to 16 bits.
Measured: 0 and 1 in 40 sentences for random models; a real dependence changes nearly all.
"""


def verify_fp16(
    model: nn.Module | TorchSide, graphs: Graphs, bounds: InputBounds, *, calibration: Calibration | None = None
) -> VerificationReport:
    """Compare fp16 graphs with their model, on the CPU, bound as on a device.

    Args:
        calibration: sentences to compare on, or None for random tokens.
    """
    trial = _Trial(model, graphs, bounds)
    if calibration is not None and calibration.sources:
        trial.samples = SentenceSamples(bounds, trial.expected, calibration)
    checks = trial.encoder, trial.one_pass, trial.select, trial.sampler, trial.decode
    return report(*checks, first=trial.decode, last=trial.longest)


class _Trial(Trial):
    def encoder(self) -> list[Check]:
        error = RelativeError("encoder", HALF_ERROR)
        for inputs in self.samples.sources():
            for expected, found in zip(self.expected.encode(*inputs), self.runtime.encode(*inputs), strict=True):
                for name, value in expected.items():
                    error.compare(value, found[name])
        return [error.check("root mean square error of every tensor of the memory and the first state")]

    def one_pass(self) -> list[Check]:
        scores, weights = RelativeError("scorer", HALF_ERROR), RelativeError("aligner", HALF_ERROR)
        for inputs in self.samples.pairs():
            scores.compare(self.expected.score(inputs), self.runtime.score(inputs))
            for expected, found in (
                zip(self.expected.align(inputs), self.runtime.align(inputs), strict=True) if self.aligns else ()
            ):
                weights.compare(expected, found)
        return [
            scores.check("root mean square error of the log-probabilities of all target tokens"),
            *([weights.check("root mean square error of all attention weights")] if self.aligns else []),
        ]

    def longest(self) -> list[Check]:
        error = RelativeError("maximum lengths", HALF_ERROR)
        pair, step = self.samples.longest()
        error.compare(self.expected.score(pair), self.runtime.score(pair))
        error.compare(centre(self.expected.step(step)[0]), centre(self.runtime.step(step)[0]))
        described = self.longest_described(pair, step)
        return [error.check(f"nothing infinite, and the root mean square error of {described}")]

    def decode(self) -> list[Check]:
        rollout = self.samples.rollout(sentences=40, beam_size=2)
        error, together, exact = RelativeError("decode", HALF_ERROR), RowScores(rollout), RowScores(rollout)
        rows = others = 0
        for expected, found in zip(self.play(rollout, self.expected), self.play(rollout, self.runtime), strict=True):
            error.compare(centre(expected), centre(found))
            together.add(found)
            exact.add(expected)
            rows += len(expected)
            chosen = np.take_along_axis(expected, found.argmax(axis=-1)[:, None], axis=-1)[:, 0]
            others += int((expected.max(axis=-1) - chosen > HALF_TIE).sum())
        invariance, agreement = Moved("batch invariance", HALF_MOVED), RelativeError("scorer agreement", HALF_ERROR)
        in_fp32 = exact.totals[:: rollout.beam_size]
        for (scores, by_itself, in_one_pass), in_full in zip(self.recounts(rollout, together), in_fp32, strict=True):
            invariance.compare(by_itself, scores, in_full)
            agreement.compare(in_one_pass, scores)
        of_tokens = "share of this decode's rows whose most likely token is clearly less likely in fp32"
        return [
            error.check(f"root mean square error of the logits of {describe(rollout)}"),
            make_check("top-1 tokens", rows, others / max(1, rows), HALF_TOKENS, of_tokens),
            invariance.check(f"share that differs: {INVARIANCE}"),
            agreement.check(f"root mean square error: {AGREEMENT}"),
        ]
