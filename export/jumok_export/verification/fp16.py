"""Verification of graphs in fp16 against PyTorch in fp32."""

from torch import nn

from jumok_export.quantization.calibration import Calibration
from jumok_export.verification.comparison import Moved, RelativeError
from jumok_export.verification.rollout import RowScores
from jumok_export.verification.samples import Frame, SentenceSamples
from jumok_export.verification.trial import COMPANY, HISTORY, Trial, centred, report, story
from jumok_serve.manifest.manifest import Check, VerificationReport
from jumok_serve.runtime.graphs import Graphs

HALF_ERROR = 0.02
"""Limit of the relative error that fp16 may bring to memory, state, logits and log-probabilities.

Its numbers have 11 bits, so one rounding is a share of 0.0005 at most. A number that is too large for 16 bits is an
error without bound.
"""
HALF_TOKENS = 0.05
"""Limit of the share of rows that fp16 gives another most likely token.

Only nearly equal ones change places: measured are 0 to 0.01 for random models, whose tokens are all about as likely.
"""
HALF_MOVED = 0.1
"""Limit of the share of sentences whose fp16 scores depend on their company.

A CPU sums products up in fp32, whose last bit may differ with the shape of a batch, and now and then a rounding to 16
bits turns over: measured are 0 and 1 in 40 sentences for random models. What looks at its company moves nearly all.
"""


def verify_fp16(
    model: nn.Module, graphs: Graphs, frame: Frame, *, calibration: Calibration | None = None
) -> VerificationReport:
    """Compares graphs in fp16 with the model that they were exported from, on the CPU, bound as they are on a device.

    Args:
        model: in evaluation mode, on the CPU.
        graphs: its graphs.
        frame: its vocabularies and limits.
        calibration: has sentences to compare on, instead of random tokens.
    """
    trial = _Trial(model, graphs, frame)
    if calibration is not None:
        trial.samples = SentenceSamples(frame, trial.torch, calibration)
    return report(trial.encoder, trial.one_pass, trial.select, trial.sampler, trial.longest, trial.decode)


class _Trial(Trial):
    """What is compared in fp16."""

    def encoder(self) -> list[Check]:
        """Memory and first state in fp16, over random shapes."""
        error = RelativeError("encoder", HALF_ERROR)
        for inputs in self.samples.sources():
            for expected, found in zip(self.torch.encode(*inputs), self.runtime.encode(*inputs), strict=True):
                for name, value in expected.items():
                    error.compare(value, found[name])
        return [error.check("root mean square error of every tensor of the memory and the first state")]

    def one_pass(self) -> list[Check]:
        """Log-probabilities of given targets, and attention weights of a model that has them, in fp16."""
        scores, weights = RelativeError("scorer", HALF_ERROR), RelativeError("aligner", HALF_ERROR)
        for inputs in self.samples.pairs():
            scores.compare(self.torch.score(*inputs), self.runtime.score(*inputs))
            for expected, found in (
                zip(self.torch.align(*inputs), self.runtime.align(*inputs), strict=True) if self.aligns else ()
            ):
                weights.compare(expected, found)
        return [
            scores.check("root mean square error of the log-probabilities of all target tokens"),
            *([weights.check("root mean square error of all attention weights")] if self.aligns else []),
        ]

    def longest(self) -> list[Check]:
        """The longest source and target that the limits allow, in fp16: nothing is infinite."""
        error = RelativeError("longest", HALF_ERROR)
        pair, step = self.samples.longest()
        error.compare(self.torch.score(*pair), self.runtime.score(*pair))
        error.compare(centred(self.torch.step(*step)[0]), centred(self.runtime.step(*step)[0]))
        return [error.check(f"nothing infinite, and the root mean square error of {self.longest_described()}")]

    def decode(self) -> list[Check]:
        """A decode in fp16 with two hypotheses a sentence."""
        rollout = self.samples.rollout(sentences=40, beam_size=2)
        error, together = RelativeError("decode", HALF_ERROR), RowScores(rollout)
        rows = others = 0
        for expected, found in zip(self.play(rollout, self.torch), self.play(rollout, self.runtime), strict=True):
            error.compare(centred(expected), centred(found))
            together.add(found)
            rows += len(expected)
            others += int((expected.argmax(axis=-1) != found.argmax(axis=-1)).sum())
        company, history = Moved("company", HALF_MOVED), RelativeError("history", HALF_ERROR)
        for scores, by_itself, in_one_pass in self.recounts(rollout, together):
            company.compare(by_itself, scores)
            history.compare(in_one_pass, scores)
        share = others / max(1, rows)
        return [
            error.check(f"root mean square error of the logits of {story(rollout)}"),
            Check(
                name="tokens",
                cases=rows,
                worst=share,
                limit=HALF_TOKENS,
                passed=share <= HALF_TOKENS,
                detail="share of the rows of this decode whose most likely token is not that of fp32",
            ),
            company.check(f"share that differs: {COMPANY}"),
            history.check(f"root mean square error: {HISTORY}"),
        ]
