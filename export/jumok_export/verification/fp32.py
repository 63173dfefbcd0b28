"""Verify fp32 graphs: PyTorch against ONNX Runtime, over random shapes and whole decodes.

ONNX Runtime's side is the code that serves: `jumok_serve.runtime.graphs.Graphs`.
"""

import numpy as np
from torch import nn

from jumok_export.verification.comparison import Differences
from jumok_export.verification.rollout import RowScores
from jumok_export.verification.samples import InputBounds
from jumok_export.verification.sides import Arrays
from jumok_export.verification.trial import AGREEMENT, INVARIANCE, Trial, describe, report
from jumok_serve.manifest.manifest import Check, VerificationReport
from jumok_serve.runtime.graphs import Graphs


def verify_fp32(model: nn.Module, graphs: Graphs, bounds: InputBounds) -> VerificationReport:
    """Compare fp32 graphs with their model."""
    trial = _Trial(model, graphs, bounds)
    return report(
        trial.encoder,
        trial.step,
        trial.scorer,
        trial.aligner,
        trial.select,
        trial.sampler,
        trial.longest,
        trial.beams,
        trial.greedy,
    )


def verify_device(model: nn.Module, graphs: Graphs, bounds: InputBounds) -> tuple[Check, ...]:
    """Compare fp32 device graphs with the model.

    The graphs run on the CPU, bound as on a device.

    Scorer and aligner, which the CPU shares, are not compared again.
    """
    trial = _Trial(model, graphs, bounds)
    outcome = report(trial.encoder, trial.step, trial.select, trial.sampler, trial.beams)
    return tuple(check.model_copy(update={"name": f"device: {check.name}"}) for check in outcome.checks)


class _Trial(Trial):
    def encoder(self) -> list[Check]:
        differences = Differences("encoder")
        for inputs in self.samples.sources():
            for expected, found in zip(self.torch.encode(*inputs), self.runtime.encode(*inputs), strict=True):
                _compare_all(differences, expected, found)
        return [differences.check("every tensor of the memory and the first state; B and S from 1")]

    def step(self) -> list[Check]:
        logits, state = Differences("step logits"), Differences("step state")
        for inputs in self.samples.steps():
            expected, found = self.torch.step(inputs), self.runtime.step(inputs)
            logits.compare(expected[0], found[0])
            _compare_all(state, expected[1], found[1])
        detail = (
            "single steps over random memory and state, rows at different positions; B, K, S and P from 1, T from 0"
        )
        return [logits.check(detail), state.check(detail)]

    def scorer(self) -> list[Check]:
        differences = Differences("scorer")
        for inputs in self.samples.pairs():
            differences.compare(self.torch.score(inputs), self.runtime.score(inputs))
        return [differences.check("log-probabilities of all target tokens; B, S and T from 1")]

    def aligner(self) -> list[Check]:
        differences = Differences("aligner")
        for inputs in self.samples.pairs() if self.aligns else ():
            for expected, found in zip(self.torch.align(inputs), self.runtime.align(inputs), strict=True):
                differences.compare(expected, found)
        return [differences.check("all attention weights; B, S and T from 1")] if self.aligns else []

    def longest(self) -> list[Check]:
        differences = Differences("maximum lengths")
        pair, step = self.samples.longest()
        differences.compare(self.torch.score(pair), self.runtime.score(pair))
        differences.compare(self.torch.step(step)[0], self.runtime.step(step)[0])
        return [differences.check(self.longest_described())]

    def beams(self) -> list[Check]:
        return self._decode(beam_size=3)

    def greedy(self) -> list[Check]:
        return self._decode(beam_size=1)

    def _decode(self, beam_size: int) -> list[Check]:
        rollout = self.samples.rollout(sentences=20, beam_size=beam_size)
        logits, together = Differences(f"decode, beam {beam_size}"), RowScores(rollout)
        for expected, found in zip(self.play(rollout, self.torch), self.play(rollout, self.runtime), strict=True):
            logits.compare(expected, found)
            together.add(found)
        invariance, agreement = (
            Differences(f"batch invariance, beam {beam_size}"),
            Differences(f"scorer agreement, beam {beam_size}"),
        )
        for scores, by_itself, in_one_pass in self.recounts(rollout, together):
            invariance.compare(by_itself, scores)
            agreement.compare(in_one_pass, scores)
        return [
            logits.check(f"logits of {describe(rollout)}"),
            invariance.check(INVARIANCE),
            agreement.check(AGREEMENT),
        ]


def _compare_all(differences: Differences, expected: Arrays, found: Arrays) -> None:
    for name, value in expected.items():
        differences.compare(value, found.get(name, np.empty(0)))
