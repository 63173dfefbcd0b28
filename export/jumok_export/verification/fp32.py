"""Verify fp32 graphs: PyTorch against ONNX Runtime, over random shapes and whole decodes.

ONNX Runtime's side is the code that serves: `jumok_serve.runtime.graphs.Graphs`.
"""

import numpy as np
from torch import nn

from jumok_export.verification.comparison import Differences, likely
from jumok_export.verification.rollout import RowScores
from jumok_export.verification.samples import InputBounds
from jumok_export.verification.sides import Arrays, PartsSide, TorchSide
from jumok_export.verification.trial import AGREEMENT, INVARIANCE, AnySide, Trial, describe, report
from jumok_serve.manifest.manifest import Check, VerificationReport
from jumok_serve.runtime.graphs import Graphs


def verify_fp32(model: nn.Module | TorchSide | PartsSide, graphs: Graphs, bounds: InputBounds) -> VerificationReport:
    """Compare fp32 graphs with their model."""
    trial = Fp32Trial(model, graphs, bounds)
    return report(
        trial.encoder,
        trial.step,
        trial.scorer,
        trial.aligner,
        trial.select,
        trial.sampler,
        trial.beams,
        trial.greedy,
        first=trial.beams,
        last=trial.longest,
    )


def verify_sources(model: nn.Module | TorchSide, graphs: Graphs, bounds: InputBounds) -> VerificationReport:
    """Compare fp32 graphs, from which others are made, with their model.

    Selection and sampler, which are the same in other precisions, are checked there.
    """
    trial = Fp32Trial(model, graphs, bounds)
    checks = trial.encoder, trial.step, trial.scorer, trial.aligner, trial.beams
    return report(*checks, first=trial.beams, last=trial.longest)


def verify_device(model: nn.Module | TorchSide | PartsSide, graphs: Graphs, bounds: InputBounds) -> tuple[Check, ...]:
    """Compare fp32 device graphs with the model.

    The graphs run on the CPU, bound as on a device.

    Scorer and aligner, which the CPU shares, are not compared again.
    """
    trial = Fp32Trial(model, graphs, bounds)
    outcome = report(trial.encoder, trial.step, trial.select, trial.sampler, trial.beams, first=trial.beams)
    return tuple(check.model_copy(update={"name": f"device: {check.name}"}) for check in outcome.checks)


class Fp32Trial(Trial):
    """Checks within fp32's tolerance."""

    def encoder(self) -> list[Check]:
        """Compare memory and first state."""

        def measure(expected: AnySide, found: AnySide) -> list[Differences]:
            differences = Differences("encoder")
            for inputs in self.samples.sources():
                for values, others in zip(expected.encode(*inputs), found.encode(*inputs), strict=True):
                    _compare_all(differences, values, others)
            return [differences]

        return self.close(measure, "every tensor of the memory and the first state; B and S from 1")

    def step(self) -> list[Check]:
        """Compare logits and state of single steps."""

        def measure(expected: AnySide, found: AnySide) -> list[Differences]:
            logits, state = Differences("step logits"), Differences("step state")
            for inputs in self.samples.steps():
                (values, grown), (others, other_state) = expected.step(inputs), found.step(inputs)
                logits.compare(values, others)
                _compare_all(state, grown, other_state)
            return [logits, state]

        detail = (
            "single steps over random memory and state, rows at different positions; B, K, S and P from 1, T from 0"
        )
        return self.close(measure, detail, detail)

    def scorer(self) -> list[Check]:
        """Compare log-probabilities of given targets."""

        def measure(expected: AnySide, found: AnySide) -> list[Differences]:
            differences = Differences("scorer")
            for inputs in self.samples.pairs():
                differences.compare(expected.score(inputs), found.score(inputs))
            return [differences]

        return self.close(measure, "log-probabilities of all target tokens; B, S and T from 1")

    def aligner(self) -> list[Check]:
        """Compare attention weights."""

        def measure(expected: AnySide, found: AnySide) -> list[Differences]:
            differences = Differences("aligner")
            for inputs in self.samples.pairs():
                for values, others in zip(expected.align(inputs), found.align(inputs), strict=True):
                    differences.compare(values, others)
            return [differences]

        checks = self.close(measure, "all attention weights; B, S and T from 1") if self.aligns else []
        self.graphs.unload("aligner")
        return checks

    def longest(self) -> list[Check]:
        """Compare the longest source and target."""
        self.graphs.unload("scorer")  # `alone` has another one
        pair, step = self.samples.longest()

        def measure(expected: AnySide, found: AnySide) -> list[Differences]:
            differences = Differences("maximum lengths")
            differences.compare(expected.score(pair), found.score(pair))
            differences.compare(expected.step(step)[0], found.step(step)[0])
            return [differences]

        return self.close(measure, self.longest_described(pair, step), found=self.alone)

    def beams(self) -> list[Check]:
        """Compare decodes with beams."""
        return self._decode(beam_size=3)

    def greedy(self) -> list[Check]:
        """Compare decodes of one row a sentence."""
        return self._decode(beam_size=1)

    def _decode(self, beam_size: int) -> list[Check]:
        rollout = self.samples.rollout(sentences=20, beam_size=beam_size)

        def differences() -> tuple[Differences, Differences, Differences]:
            return (
                Differences(f"decode, beam {beam_size}"),
                Differences(f"batch invariance, beam {beam_size}"),
                Differences(f"scorer agreement, beam {beam_size}"),
            )

        def measure(expected: AnySide, found: AnySide) -> tuple[Differences, ...]:
            (decode, invariance, agreement), together = differences(), RowScores(rollout)
            for logits, others in zip(self.play(rollout, expected), self.play(rollout, found), strict=True):
                decode.compare(likely(logits), likely(others))
                together.add(others)
            for scores, by_itself, in_one_pass in self.recounts(rollout, together):
                invariance.compare(by_itself, scores)
                agreement.compare(in_one_pass, scores)
            return decode, invariance, agreement

        def rounding(exact: AnySide, rounded: AnySide) -> tuple[Differences, ...]:
            (decode, steps, scorer), expected, found = differences(), RowScores(rollout), RowScores(rollout)
            for logits, others in zip(self.play(rollout, exact), self.play(rollout, rounded), strict=True):
                decode.compare(likely(logits), likely(others))
                expected.add(logits)
                found.add(others)
            for scores, others in zip(expected.totals, found.totals, strict=True):
                steps.compare(scores, others)
                scorer.compare(scores, others)
            for scores, others in zip(self.scores(rollout, exact), self.scores(rollout, rounded), strict=True):
                scorer.compare(scores, others)
            return decode, steps, scorer

        described = f"log-probabilities of {describe(rollout)}"
        return self.close(measure, described, INVARIANCE, AGREEMENT, rounding=rounding)


def _compare_all(differences: Differences, expected: Arrays, found: Arrays) -> None:
    for name, value in expected.items():
        differences.compare(value, found.get(name, np.empty(0)))
