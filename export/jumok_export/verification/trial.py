"""Checks that verifications of every precision share."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from jumok_export.parallel import concurrently
from jumok_export.verification.comparison import RESTORED, ROUNDING, Differences, failed_check, make_check
from jumok_export.verification.exact import ExactArithmetic
from jumok_export.verification.rollout import Rollout, RowScores, alone, pad, play
from jumok_export.verification.runtime_side import GraphFailedError, RuntimeSide
from jumok_export.verification.samples import InputBounds, Samples
from jumok_export.verification.selection_cases import drawings, selections
from jumok_export.verification.sides import PartsSide, Side, StepInputs, TorchSide
from jumok_serve.manifest.manifest import Check, VerificationReport
from jumok_serve.runtime.graphs import Floats, Graphs, Pairs

MOVED_SENTENCES = 0.02
"""Limit of the share of sentences whose int8 scores depend on the batch: 1 in 200, with a margin for chance.

Sums in fp32 may differ in the last bit with the shape of a batch, which sometimes changes a rounding to 8 bits.
Measured: 0 in 300 sentences for a trained Transformer. One activation scale for a whole batch changes nearly all.
"""
SCORED_AT_ONCE = 2**24
"""Logits that the scorer computes at once at most: 64 MiB, several times over."""

INVARIANCE = "scores of a sentence decoded in a batch and alone, with and without padding"
AGREEMENT = "scores of a sentence summed step by step and computed by the one-pass scorer"

AnySide: TypeAlias = TorchSide | RuntimeSide | PartsSide
Measure: TypeAlias = Callable[[AnySide, AnySide], Sequence[Differences]]
"""Compares two sides, the expected one first."""


class Reference(NamedTuple):
    """A more exact side, which measures the rounding of another.

    Attributes:
        multiple: multiple of the rounding by which a third side may differ.
        of: the rounding, for reports.
    """

    side: TorchSide
    multiple: float
    of: str


def fp32_reference(model: nn.Module) -> Reference:
    """The model in fp64."""
    return Reference(TorchSide(model, ExactArithmetic()), ROUNDING, "the model's own rounding")


def int8_reference(model: nn.Module) -> Reference:
    """The model in fp32."""
    return Reference(TorchSide(model), RESTORED, "the error of int8")


class Trial:
    """A model, its graphs, and the checks that every precision makes.

    Args:
        model: the model in PyTorch or its side, or the parts of an ensemble.
    """

    def __init__(self, model: nn.Module | TorchSide | PartsSide, graphs: Graphs, bounds: InputBounds) -> None:
        self.expected = TorchSide(model) if isinstance(model, nn.Module) else model
        self._model = None if isinstance(self.expected, PartsSide) else self.expected.model
        self.runtime = RuntimeSide(graphs)
        self.samples = Samples(bounds, self.expected)
        self.graphs = graphs
        self.bounds = bounds
        self.aligns = self.expected.aligns

    @cached_property
    def alone(self) -> RuntimeSide:
        """The graphs where nothing else computes: the scorer, which it opens itself, has all threads."""
        return RuntimeSide(self.graphs.with_threads(torch.get_num_threads(), roles=()))

    def close(
        self, measure: Measure, *details: str, rounding: Measure | None = None, found: RuntimeSide | None = None
    ) -> list[Check]:
        """Compare the graphs with the model, and if they are too far apart, the model with itself in fp64.

        Args:
            measure: compares two sides, the expected one first; one result a detail.
            rounding: measures the rounding of the second side otherwise than by `measure`.
            found: the second side; None: `runtime`.
        """
        measured = measure(self.expected, found or self.runtime)
        if self._model is not None and any(differences.over for differences in measured):
            exact, multiple, of = fp32_reference(self._model)
            for differences, rounded in zip(measured, (rounding or measure)(exact, self.expected), strict=True):
                if differences.over:
                    differences.allow(rounded, multiple, of)
        return [differences.check(detail) for differences, detail in zip(measured, details, strict=True)]

    def select(self) -> list[Check]:
        """Compare the decoder's selection with log-softmax and a stable sort in PyTorch."""
        totals, wrong = Differences("select scores"), 0
        for selection in selections(self.bounds.target_vocabulary):
            expected, found = selection.expected(), self.runtime.select(selection)
            if expected[0].shape != found[0].shape:
                raise GraphFailedError(f"select returned {found[0].shape} candidates instead of {expected[0].shape}")
            for row in zip(expected[1], found[1], strict=True):  # a dead row must not widen another's tolerance
                totals.compare(*row)
            wrong += selection.misplaced(found[0])
        detail = "running scores of the best candidates, constrained before and after the log-softmax"
        return [totals.check(detail), _all_equal("select tokens", totals.cases, wrong)]

    def sampler(self) -> list[Check]:
        """Compare drawn tokens with inversion sampling in PyTorch."""
        totals, wrong = Differences("sampler scores"), 0
        for drawing in drawings(self.bounds.target_vocabulary):
            tokens, found = self.runtime.sample(drawing)
            if tokens.shape != drawing.tokens.shape:
                raise GraphFailedError(f"sampler returned {tokens.shape} tokens instead of {drawing.tokens.shape}")
            totals.compare(drawing.totals, found)
            wrong += int((tokens != drawing.tokens).sum())
        detail = "running scores of drawn tokens under constraints, at several temperatures, top-k and top-p"
        return [totals.check(detail), _all_equal("sampler tokens", totals.cases, wrong)]

    @staticmethod
    def longest_described(pair: Pairs, step: StepInputs) -> str:
        """Describe the comparison at the limits."""
        scored, decoded = pair.target_ids.shape[1], int(step.positions[0]) + 1
        last = "the last of them" if scored == decoded else f"token {decoded}"
        return (
            f"{scored} target tokens given {pair.source_ids.shape[1]} source tokens, scored in one pass; "
            f"and the step at {last}"
        )

    def play(self, rollout: Rollout, side: Side) -> Iterator[Floats]:
        """Yield the logits of each step of a rollout, on one side."""
        return play(rollout, side, self.runtime.memory_specs, self.runtime.state_specs)

    def recounts(
        self, rollout: Rollout, together: RowScores, scorer: RuntimeSide | None = None
    ) -> Iterator[tuple[Floats, Floats, Floats]]:
        """Yield the running scores of each sentence's first row, by the graphs.

        Each is computed three times: in the batch, alone, and by the scorer.

        Args:
            scorer: the graphs that score; None: `runtime`.
        """
        scores = together.totals[:: rollout.beam_size]
        by_themselves = concurrently(partial(self._alone, rollout), range(len(scores)))
        in_one_pass = self.scores(rollout, scorer or self.runtime)
        yield from zip(scores, by_themselves, in_one_pass, strict=True)

    def _alone(self, rollout: Rollout, sentence: int) -> Floats:
        single = alone(rollout, sentence)
        scores = RowScores(single)
        for logits in self.play(single, self.runtime):
            scores.add(logits)
        return scores.totals[0]

    def scores(self, rollout: Rollout, side: AnySide) -> Iterator[Floats]:
        """Yield the running scores of each sentence's first row by the scorer, in batches of limited size."""
        rows = rollout.rows[:: rollout.beam_size]
        longest = max(len(row.history) for row in rows)
        size = max(1, SCORED_AT_ONCE // (longest * self.bounds.target_vocabulary))
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            sources = pad([row.source for row in some], self.bounds.pad)
            targets = pad([np.array(row.history[1:], np.int64) for row in some], 0)
            starts = np.array([row.history[0] for row in some])
            for scores, length in zip(side.score(Pairs(*sources, starts, *targets)), targets[1], strict=True):
                yield np.cumsum(scores[:length], dtype=np.float64)


def report(
    *checks: Callable[[], list[Check]],
    first: Callable[[], list[Check]] | None = None,
    last: Callable[[], list[Check]] | None = None,
) -> VerificationReport:
    """Run checks concurrently; a check whose graph does not run has failed.

    Args:
        first: one of the checks, which begins before the others, because it takes longest.
        last: check that runs alone after the others, because it takes most memory.
    """

    def outcome(check: Callable[[], list[Check]]) -> list[Check]:
        try:
            return check()
        except GraphFailedError as error:
            return [failed_check(check.__name__.replace("_", " "), error)]

    begun = sorted(checks, key=lambda check: check != first)
    found = dict(zip(begun, concurrently(outcome, begun), strict=True))
    at_last = [] if last is None else outcome(last)
    return VerificationReport(checks=(*chain.from_iterable(found[check] for check in checks), *at_last))


def describe(rollout: Rollout) -> str:
    """Describe a rollout."""
    return (
        f"{len(rollout.sources)} sentences in {len(rollout.steps)} steps, each side with its own memory and state; "
        "rows are reordered, dropped, duplicated and admitted"
    )


def _all_equal(name: str, cases: int, wrong: int) -> Check:
    detail = "misplaced tokens; among equally likely ones the lower comes first"
    return make_check(name, cases, float(wrong), 0.0, detail)


def centre(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Subtract each row's mean, because constants in logits change nothing."""
    shifted: NDArray[np.float32] = logits - logits.mean(axis=-1, keepdims=True)
    return shifted
