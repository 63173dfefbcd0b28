"""The protocol of searches, and their results."""

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from jumok_proto.results import FinishReason
from jumok_serve.search.constraints import Constraints
from jumok_serve.search.terms import TermSpan

Score = TypeVar("Score", float, NDArray[np.float64])

DEAD_SCORE = -1e9
"""Largest score of a dead row, which keeps its place in the beam, but can neither finish nor recover."""


class Draw(NamedTuple):
    """Sampling parameters and uniform random number of a row's next token."""

    temperature: float
    top_k: int
    top_p: float
    uniform: float


class FinishedHypothesis(NamedTuple):
    """One result: tokens after start token and target prefix, maybe with EOS."""

    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    """Log-probability of each token under the constraints; they add up to ``score`` * length^length_penalty."""
    score: float
    finish_reason: FinishReason
    terms: tuple[TermSpan | None, ...] = ()
    """Tokens that satisfy each term, target prefix included; None: not satisfied."""


class Search(Protocol):
    """The search for one sentence's translations. K is ``beam_size``.

    Its attributes are the inputs of the next decoder step. ``advance`` takes in the outcome of the step, and changes
    them. Sequences belong to the search: read them before it advances, and do not change them. The attributes up to
    ``eos_ids`` never change.
    """

    @property
    def beam_size(self) -> int:
        """Rows of the sentence at every step."""

    @property
    def num_continuations(self) -> int:
        """Number of best continuations that ``advance`` needs; 0: one per row."""

    @property
    def acts_on_logits(self) -> bool:
        """True if constraints act before the log-softmax, False if after."""

    @property
    def renormalizes(self) -> bool:
        """True if a log-softmax follows constraints on log-probabilities."""

    @property
    def eos_ids(self) -> Sequence[int]:
        """Tokens that end a hypothesis."""

    @property
    def tokens(self) -> Sequence[int]:
        """Tokens fed at the next step, [K]."""

    @property
    def parents(self) -> Sequence[int]:
        """Parent row of each row, [K]; 0 at the first step."""

    @property
    def scores(self) -> Sequence[float]:
        """Sum of token scores per row, [K], or 0 with terms; at most `DEAD_SCORE` if dead."""

    @property
    def position(self) -> int:
        """Position of the next token: number of tokens fed so far."""

    @property
    def num_candidates(self) -> int:
        """Best candidates of each row that ``num_continuations`` takes."""

    @property
    def constraints(self) -> Constraints:
        """Constraints on this step's scores, or `NO_CONSTRAINTS`; shared, so read-only."""

    @property
    def boosts(self) -> Constraints:
        """Factors on log-probabilities that bring tokens among the candidates, or `NO_CONSTRAINTS`; with terms only.

        After `native_rows`, the arrays at that address say which.
        """

    @property
    def draws(self) -> Sequence[Draw] | None:
        """Sampling parameters of each row, [K]; None without sampling."""

    @property
    def steady_steps(self) -> int:
        """Number of next steps with parameters independent of the chosen tokens.

        This holds while the best continuation of every row (or the K best of all rows, if ``num_continuations`` is
        not 0) is alive and no EOS. Those are then the inputs of the step after, and ``catch_up`` may take in several
        such steps later.
        """

    @property
    def finished(self) -> bool:
        """True if only ``hypotheses`` is left to read."""

    def advance(self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]) -> None:
        """Take in the continuations that a step has found, [N].

        They are at least the ``num_continuations`` best of all rows (or all that exist), in the order of
        ``best_continuations``. If ``num_continuations`` is 0, they are the best or drawn one of each row, by row, [K].
        With `native_rows`, those are left out that the search would not keep.

        Args:
            tokens: tokens that may be written.
            scores: the row's score plus the token's processed log-probability.
            rows: the row that each token continues.

        Raises:
            RuntimeError: the search has finished.
        """

    def native_rows(self) -> int:
        """Return the address of the ``TermRows`` that native steps advance; 0 without terms.

        Called when the search joins a batch with native steps.
        """

    def catch_up(self, tokens: NDArray[np.int64], scores: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        """Take in steady steps as ``advance`` would, at most ``steady_steps``.

        Args:
            tokens: tokens written, [steps, K].
            scores: sums of token scores, [steps, K].
            rows: the row that each token continues, [steps, K].
        """

    def stable_tokens(self) -> list[int]:
        """Return the tokens with which the best hypothesis will begin.

        All rows and ended hypotheses that can still become the first have these tokens in common. The list never gets
        shorter. Callable between any two steps.
        """

    def hypotheses(self) -> list[FinishedHypothesis]:
        """Return the ``num_hypotheses`` results, or all with a coverage penalty: best first, or in order of drawing.

        Constraints may leave fewer.

        Raises:
            RuntimeError: the search has not finished.
        """


def normalized_score(score: Score, length: int, length_penalty: float) -> Score:
    """Return score / length^length_penalty; an empty hypothesis counts as one token.

    The range of `length_penalty` keeps every result finite.
    """
    return score / math.pow(length or 1, length_penalty)


def finished_hypothesis(
    tokens: Sequence[int], sums: Sequence[float], score: float, finish_reason: FinishReason
) -> FinishedHypothesis:
    """Make a hypothesis from tokens and running sums of token scores."""
    return FinishedHypothesis(
        token_ids=tuple(tokens),
        token_scores=tuple(map(operator.sub, sums, (0.0, *sums))),
        score=score,
        finish_reason=finish_reason,
    )
