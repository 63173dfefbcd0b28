"""Verify an ensemble: its graphs against those of its parts."""

from collections.abc import Mapping

from jumok_export.verification.comparison import Differences, Moved, RelativeError, likely, make_check
from jumok_export.verification.fp32 import Fp32Trial, verify_fp32
from jumok_export.verification.int8 import QUANTIZATION_ERROR
from jumok_export.verification.rollout import RowScores
from jumok_export.verification.samples import InputBounds
from jumok_export.verification.sides import PartsSide
from jumok_export.verification.trial import AGREEMENT, INVARIANCE, MOVED_SENTENCES, describe, report
from jumok_serve.manifest.manifest import Check
from jumok_serve.runtime.graphs import Graphs

_INVARIANCE = "batch invariance"
"""Check of a rounded precision that measures what that of the parts does."""


def verify_ensemble(
    parts: PartsSide, graphs: Graphs, bounds: InputBounds, precision: str, recorded: Mapping[str, float]
) -> tuple[Check, ...]:
    """Compare the graphs of an ensemble with the mean of its parts.

    Both sides compute the same in every precision, and sum in the same order. Only the scorer of a rounded precision
    rounds in other places than the steps that it is compared with.

    Args:
        recorded: limits of the checks when the parts were verified, by name; the higher limit counts.
    """
    if precision == "fp32":
        return with_recorded(verify_fp32(parts, graphs, bounds).checks, recorded)
    trial = _RoundedTrial(parts, graphs, bounds)
    checks = report(
        trial.encoder, trial.step, trial.aligner, trial.select, trial.sampler, trial.decode, last=trial.longest
    ).checks
    return with_recorded(checks, {_INVARIANCE: recorded.get(_INVARIANCE, 0.0)})


def with_recorded(checks: tuple[Check, ...], recorded: Mapping[str, float]) -> tuple[Check, ...]:
    """Raise the limits of checks to recorded ones, which include the rounding of large models."""
    return tuple(
        make_check(check.name, check.cases, check.worst, max(check.limit, recorded.get(check.name, 0.0)), check.detail)
        for check in checks
    )


class _RoundedTrial(Fp32Trial):
    """Checks of a precision that rounds."""

    def longest(self) -> list[Check]:
        pair, step = self.samples.longest()
        scores, logits = RelativeError("scorer", QUANTIZATION_ERROR), Differences("maximum lengths")
        for inputs in (*self.samples.pairs(), pair):
            scores.compare(self.expected.score(inputs), self.runtime.score(inputs))
        logits.compare(self.expected.step(step)[0], self.runtime.step(step)[0])
        return [
            scores.check("root mean square error of the log-probabilities of all target tokens, summed by steps"),
            logits.check(self.longest_described(pair, step)),
        ]

    def decode(self) -> list[Check]:
        rollout = self.samples.rollout(sentences=40, beam_size=2)
        logits, together = Differences("decode"), RowScores(rollout)
        sides = (self.play(rollout, side) for side in (self.expected, self.runtime))
        for expected, found in zip(*sides, strict=True):
            logits.compare(likely(expected), likely(found))
            together.add(found)
        invariance = Moved(_INVARIANCE, MOVED_SENTENCES)
        agreement = RelativeError("scorer agreement", QUANTIZATION_ERROR)
        for scores, by_itself, in_one_pass in self.recounts(rollout, together):
            invariance.compare(by_itself, scores, by_itself)
            agreement.compare(in_one_pass, scores)
        return [
            logits.check(f"log-probabilities of {describe(rollout)}"),
            invariance.check(f"share that differs: {INVARIANCE}"),
            agreement.check(f"root mean square error: {AGREEMENT}"),
        ]
