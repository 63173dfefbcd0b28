"""A model and its exported graphs: what verifications of every precision ask of the two, and how they report it."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from jumok_export.verification.comparison import UNBOUNDED, Differences
from jumok_export.verification.rollout import Rollout, Row, RowScores, alone, pad, play
from jumok_export.verification.runtime_side import GraphFailedError, RuntimeSide
from jumok_export.verification.samples import Frame, Samples
from jumok_export.verification.selection_cases import drawings, selections
from jumok_export.verification.sides import Side, TorchSide
from jumok_serve.manifest.manifest import Check, VerificationReport
from jumok_serve.runtime.graphs import Floats, Graphs

MOVED_SENTENCES = 0.02
"""Limit of the share of sentences whose int8 scores depend on their company: 1 in 200, with room for chance.

Where sums in fp32 differ in their last bit with the shape of a batch, that now and then turns a rounding to 8 bits
over. Measured are 0 in 300 sentences for a trained Transformer of this package. One scale for the activations of a
whole batch moves nearly all of them.
"""
SCORED_AT_ONCE = 2**24
"""Logits that the one-pass scorer computes at once, where there is a choice: 64 MiB of them, several times over."""

COMPANY = "scores of a sentence decoded among others and alone, with and without padding"
HISTORY = "scores of a sentence summed up step by step and taken by the one-pass scorer"


class Trial:
    """A model, its graphs, and what every precision asks of the two."""

    def __init__(self, model: nn.Module, graphs: Graphs, frame: Frame) -> None:
        self.model = model
        self.torch = TorchSide(model)
        self.runtime = RuntimeSide(graphs)
        self.samples = Samples(frame, self.torch)
        self.graphs = graphs
        self.frame = frame
        self.aligns = self.torch.aligns

    def select(self) -> list[Check]:
        """The best candidates under constraints, against log-softmax and a stable sort in PyTorch."""
        totals, wrong = Differences("select scores"), 0
        for selection in selections(self.frame.target_vocabulary):
            expected, found = selection.expected(), self.runtime.select(selection)
            if expected[0].shape != found[0].shape:
                raise GraphFailedError(f"select returned {found[0].shape} candidates instead of {expected[0].shape}")
            for row in zip(expected[1], found[1], strict=True):  # a dead row must not widen another's tolerance
                totals.compare(*row)
            wrong += int((expected[0] != found[0]).sum())
        detail = "running scores of the best candidates, constrained before and after the log-softmax"
        return [totals.check(detail), _all_equal("select tokens", totals.cases, wrong)]

    def sampler(self) -> list[Check]:
        """What is drawn, against inversion sampling in PyTorch."""
        totals, wrong = Differences("sampler scores"), 0
        for drawing in drawings(self.frame.target_vocabulary):
            tokens, found = self.runtime.sample(drawing)
            if tokens.shape != drawing.tokens.shape:
                raise GraphFailedError(f"sampler returned {tokens.shape} tokens instead of {drawing.tokens.shape}")
            totals.compare(drawing.totals, found)
            wrong += int((tokens != drawing.tokens).sum())
        detail = "running scores of what is drawn under constraints, at several temperatures, top-k and top-p"
        return [totals.check(detail), _all_equal("sampler tokens", totals.cases, wrong)]

    def longest_described(self) -> str:
        """What is compared at the limits."""
        source, target = self.frame.max_source_length, self.frame.max_target_length
        return (
            f"{target} target tokens given {source} source tokens, scored in one pass; and the step at the last of them"
        )

    def play(self, rollout: Rollout, side: Side) -> Iterator[Floats]:
        """The logits of each of a decode's steps, by one of the two sides."""
        return play(rollout, side, self.runtime.memory_specs, self.runtime.state_specs)

    def recounts(self, rollout: Rollout, together: RowScores) -> Iterator[tuple[Floats, Floats, Floats]]:
        """The running scores of every sentence's first row: of the decode, decoded alone, and by the scorer."""
        rows, scores = rollout.rows[:: rollout.beam_size], together.totals[:: rollout.beam_size]
        in_one_pass = self._scores(rows)
        for sentence, (row_scores, one_pass) in enumerate(zip(scores, in_one_pass, strict=True)):
            single = alone(rollout, sentence)
            by_itself = RowScores(single)
            for logits in self.play(single, self.runtime):
                by_itself.add(logits)
            yield row_scores, by_itself.totals[0], one_pass

    def _scores(self, rows: Sequence[Row]) -> Iterator[Floats]:
        """The running scores of some rows by the scorer, as many of them at once as the vocabulary has room for."""
        longest = max(len(row.history) for row in rows)
        size = max(1, SCORED_AT_ONCE // (longest * self.frame.target_vocabulary))
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            sources = pad([row.source for row in some], self.frame.pad)
            targets = pad([np.array(row.history[1:], np.int64) for row in some], 0)
            starts = np.array([row.history[0] for row in some])
            for scores, length in zip(self.runtime.score(*sources, starts, *targets), targets[1], strict=True):
                yield np.cumsum(scores[:length], dtype=np.float64)


def report(*checks: Callable[[], list[Check]]) -> VerificationReport:
    """What checks find; one whose graphs do not run has failed."""
    outcomes: list[Check] = []
    for check in checks:
        try:
            outcomes += check()
        except GraphFailedError as error:
            name = check.__name__.replace("_", " ")
            outcomes.append(Check(name=name, cases=1, worst=UNBOUNDED, limit=0.0, passed=False, detail=str(error)))
    return VerificationReport(checks=tuple(outcomes))


def story(rollout: Rollout) -> str:
    """What happens in a decode."""
    return (
        f"{len(rollout.sources)} sentences in {len(rollout.steps)} steps, each side with its own memory and state; "
        "rows are reordered, dropped, duplicated and newly admitted"
    )


def _all_equal(name: str, cases: int, wrong: int) -> Check:
    detail = "tokens that differ; of equally likely ones the lower comes first"
    return Check(name=name, cases=cases, worst=float(wrong), limit=0.0, passed=wrong == 0, detail=detail)


def centred(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows without their mean: adding a constant to all of a row's logits changes nothing."""
    shifted: NDArray[np.float32] = logits - logits.mean(axis=-1, keepdims=True)
    return shifted
