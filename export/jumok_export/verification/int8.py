"""Verification of graphs in int8: against PyTorch, against the same arithmetic in PyTorch, and in company."""

from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray
from torch import nn

from jumok_export.quantization.calibration import Calibration
from jumok_export.quantization.fake_quantization import Int8Arithmetic
from jumok_export.verification.comparison import Moved, RelativeError
from jumok_export.verification.rollout import RowScores
from jumok_export.verification.samples import Frame, SentenceSamples
from jumok_export.verification.sides import TorchSide
from jumok_export.verification.trial import COMPANY, HISTORY, MOVED_SENTENCES, Trial, centred, report, story
from jumok_serve.manifest.manifest import Check, VerificationReport
from jumok_serve.runtime.graphs import Graphs

QUANTIZATION_ERROR = 0.15
"""Limit of the relative error that int8 may bring to logits and attention weights: a model with more is not usable.

Measured on logits: 0.012 to 0.024 for random models of 1 to 12 layers, 0.013 to 0.017 for trained ones; with calibrated
activations 0.028 to 0.046 and 0.014 to 0.018.
"""
EXCESS_ERROR = 1.2
"""Limit of the error of int8 logits, as a multiple of what the same arithmetic costs in PyTorch.

A rounding that falls the other way makes single values differ, but not how large the error is: measured are 0.99 to
1.01, from one layer to twelve. Activations that are off by a hundredth of their range cost more than twice as much.
"""
RESCORED_SENTENCES = 0.9
"""Limit of the share of sentences whose int8 scores differ between the steps and the one-pass scorer.

Those two do sum up in different orders, so roundings are turned over the more often the larger a model is: measured are
0 to 1 in 100 sentences with up to 6 layers, 7 in 100 with 12 of width 512 and 25 in 100 with 12 + 12 of width 1024;
there are models twice as deep and wide. What is broken in one of them moves all.
"""


def verify_int8(
    model: nn.Module,
    graphs: Graphs,
    frame: Frame,
    *,
    weights: Sequence[NDArray[np.float32]],
    rectified: Set[str],
    calibration: Calibration | None = None,
) -> VerificationReport:
    """Compares graphs in int8 with the model that they were exported from, and scores alone with scores in company.

    Calibrated graphs are compared on the sentences of their calibration, others on random tokens.

    Args:
        model: in evaluation mode, on the CPU.
        graphs: its graphs.
        frame: its vocabularies and limits.
        weights: the matrices that are in 8 bits in the encoder or the decoder. If PyTorch computes with one of them by
            other means than linear layers and embeddings, what int8 should cost is not known and not compared.
        rectified: `rectified_weights` of the graphs before quantization.
        calibration: what gave the graphs constant scales, if they have any.
    """
    trial = _Trial(model, graphs, frame)
    arithmetic, activations = Int8Arithmetic(rectified=rectified), "one scale a row"
    if calibration is not None:
        trial.samples = SentenceSamples(frame, trial.torch, calibration)
        arithmetic = Int8Arithmetic(calibration.scales, rectified)
        activations = f"calibrated on {len(calibration.sources)} sentences"

    def decode() -> list[Check]:
        return trial.decode(weights, arithmetic, activations)

    return report(trial.aligner, trial.select, trial.sampler, trial.longest, decode)


class _Trial(Trial):
    """What is compared in int8."""

    def aligner(self) -> list[Check]:
        """Attention weights in int8, of a model that has them."""
        error = RelativeError("aligner", QUANTIZATION_ERROR)
        for inputs in self.samples.pairs() if self.aligns else ():
            for expected, found in zip(self.torch.align(*inputs), self.runtime.align(*inputs), strict=True):
                error.compare(expected, found)
        return [error.check("root mean square error of all attention weights")] if self.aligns else []

    def longest(self) -> list[Check]:
        """The longest source and target that the limits allow, in int8."""
        error = RelativeError("longest", QUANTIZATION_ERROR)
        pair, step = self.samples.longest()
        error.compare(self.torch.score(*pair), self.runtime.score(*pair))
        error.compare(centred(self.torch.step(*step)[0]), centred(self.runtime.step(*step)[0]))
        return [error.check(self.longest_described())]

    def decode(
        self, weights: Sequence[NDArray[np.float32]], arithmetic: Int8Arithmetic, activations: str
    ) -> list[Check]:
        """A decode in int8 with two hypotheses a sentence."""
        rollout = self.samples.rollout(sentences=100, beam_size=2)
        logits, rounding = RelativeError("decode", QUANTIZATION_ERROR), RelativeError("rounding", QUANTIZATION_ERROR)
        together = RowScores(rollout)
        sides = (self.torch, self.runtime, TorchSide(self.model, arithmetic))
        for expected, found, rounded in zip(*(self.play(rollout, side) for side in sides), strict=True):
            logits.compare(centred(expected), centred(found))
            rounding.compare(centred(expected), centred(rounded))
            together.add(found)
        company, history = Moved("company", MOVED_SENTENCES), Moved("history", RESCORED_SENTENCES)
        for scores, by_itself, in_one_pass in self.recounts(rollout, together):
            company.compare(by_itself, scores)
            history.compare(in_one_pass, scores)
        error = logits.check(f"root mean square error of the logits of {story(rollout)}; activations: {activations}")
        return [
            error,
            *([_excess(error, rounding)] if arithmetic.covers(weights) else []),
            company.check(f"share that differs: {COMPANY}"),
            history.check(f"share that differs: {HISTORY}"),
        ]


def _excess(error: Check, rounding: RelativeError) -> Check:
    least = rounding.check("").worst
    excess = error.worst / least if least else float(error.worst > 0)
    return Check(
        name="excess",
        cases=error.cases,
        worst=excess,
        limit=EXCESS_ERROR,
        passed=excess <= EXCESS_ERROR,
        detail=f"the same error as a multiple of what this rounding costs in PyTorch, which is {least:.3g}",
    )
