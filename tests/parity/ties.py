"""Ties: differences at which the candidates of `generate` lie within 1e-5.

Two programs that add the same float32 numbers in another order differ by some 1e-6, and where two candidates are closer
than that, either may come first. So a difference is a tie only where ``generate``, at the very decision that makes it,
has two candidates within 1e-5 of each other. The decisions of a beam search are which K of the continuations run on,
which of those that end are among its K best, which K of the ended ones stay, and when to stop.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tests.parity.oracle import Answer, Settings, Trace

NEAR = 1e-5
"""Candidates as close as this may come in either order."""

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class _Candidate:
    tokens: Tokens
    total: float


@dataclass(frozen=True)
class _Step:
    """One step of the reference: its continuations, best first, and which of them would end."""

    candidates: tuple[_Candidate, ...]
    ends: frozenset[Tokens]


def is_tie(ours: Sequence[Tokens], theirs: Answer, trace: Trace) -> bool:
    """True if the first differing hypothesis differs by a tie.

    Args:
        ours: tokens of our hypotheses, best first.
        theirs: the reference's results.
        trace: its steps.
    """
    references = [hypothesis.token_ids for hypothesis in theirs.hypotheses]
    parted = next((pair for pair in zip(ours, references, strict=False) if pair[0] != pair[1]), None)
    if parted is None:
        return False  # one has more hypotheses than the other
    if trace.settings.beam_size == 1:
        return _greedy_gap(*parted, trace) <= NEAR
    steps = list(_steps(trace))
    return any(gap <= NEAR for gap in _gaps(*parted, steps, trace.settings))


def _greedy_gap(ours: Tokens, theirs: Tokens, trace: Trace) -> float:
    """Margin of the reference's token over ours at the first difference."""
    for step, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            scores = torch.log_softmax(trace.scores[step][0], dim=-1)
            return float(scores[their] - scores[our])
    return math.inf


def _steps(trace: Trace) -> Iterator[_Step]:
    """Replays the sums: of a row, that of the row it continues and its last token's score."""
    settings = trace.settings
    kept = max(2, 1 + len(settings.eos_ids)) * settings.beam_size
    sums: dict[Tokens, float] = {(): 0.0}
    for rows, scores in zip(trace.rows, trace.scores, strict=True):
        present = {row: index for index, row in reversed(list(enumerate(rows))) if row in sums}
        candidates = [
            _Candidate((*row, token), float(total))
            for row, index in present.items()
            for token, total in enumerate((scores[index] + sums[row]).tolist())
            if total > -1e8
        ]
        candidates.sort(key=lambda candidate: -candidate.total)
        sums = {candidate.tokens: candidate.total for candidate in candidates}
        ends = {
            candidate.tokens
            for candidate in candidates
            if candidate.tokens[-1] in settings.eos_ids or len(candidate.tokens) == settings.max_length
        }
        yield _Step(tuple(candidates[: kept + settings.beam_size]), frozenset(ends))


def _gaps(ours: Tokens, theirs: Tokens, steps: Sequence[_Step], settings: Settings) -> Iterator[float]:
    """Margins of the decisions that can turn one hypothesis into the other.

    These are the step at which the reference drops ours, each step at which it might have dropped its own, the order of
    the two where it has both, and its comparisons of the best running with the worst ended one.
    """
    totals = {candidate.tokens: candidate.total for step in steps for candidate in step.candidates}
    common = next((index for index, (our, their) in enumerate(zip(ours, theirs, strict=False)) if our != their), 0)
    for hypothesis in (ours, theirs):
        for length in range(common + 1, min(len(hypothesis), len(steps)) + 1):
            yield from _cut_gaps(hypothesis[:length], steps[length - 1], settings)
    if ours in totals and theirs in totals:
        scores = [settings.normalised(totals[tokens], len(tokens)) for tokens in (ours, theirs)]
        yield abs(scores[0] - scores[1])
    yield from _stop_gaps(steps, settings)


def _cut_gaps(tokens: Tokens, step: _Step, settings: Settings) -> Iterator[float]:
    """The distance of a candidate from the last that runs on, or may end, or from the first that does not."""
    total = next((candidate.total for candidate in step.candidates if candidate.tokens == tokens), None)
    if total is None:
        return
    if tokens in step.ends:
        rivals = [candidate.total for candidate in step.candidates]
    else:
        rivals = [candidate.total for candidate in step.candidates if candidate.tokens not in step.ends]
    rank = sum(rival > total for rival in rivals)
    boundary = settings.beam_size if rank < settings.beam_size else settings.beam_size - 1
    if boundary < len(rivals):
        yield abs(total - rivals[boundary])


def _stop_gaps(steps: Sequence[_Step], settings: Settings) -> Iterator[float]:
    """The distance, after each step with K ended hypotheses, of the best that runs on from the worst that has ended."""
    ended: list[float] = []
    for length, step in enumerate(steps, start=1):
        best = [candidate for candidate in step.candidates[: settings.beam_size] if candidate.tokens in step.ends]
        ended += [settings.normalised(candidate.total, length) for candidate in best]
        ended = sorted(ended, reverse=True)[: settings.beam_size]
        running = next((candidate for candidate in step.candidates if candidate.tokens not in step.ends), None)
        if running is not None and len(ended) == settings.beam_size:
            favours_length = settings.early_stopping == "never" and settings.length_penalty > 0
            reach = settings.max_length if favours_length and settings.max_length is not None else length
            yield abs(settings.normalised(running.total, reach) - ended[-1])
