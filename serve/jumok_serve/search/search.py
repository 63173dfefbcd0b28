"""What a search is to the batch that runs it, and what comes out of it."""

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from jumok_proto.results import FinishReason
from jumok_serve.search.constraints import Constraints

DEAD_SCORE = -1e9


class Draw(NamedTuple):
    """How the next token of a row is drawn: ``Sampling`` says what the first three do; ``uniform`` lies in [0, 1)."""

    temperature: float
    top_k: int
    top_p: float
    uniform: float


class FinishedHypothesis(NamedTuple):
    """One result of a search: what was written after start token and target prefix, EOS included if it was reached."""

    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    """Log-probability of each token under the constraints; they add up to ``score`` * length^length_penalty."""
    score: float
    finish_reason: FinishReason


class Search(Protocol):
    """The search for one sentence's translations. K is ``beam_size``.

    Its attributes say what it asks of the next decoder step, and ``advance`` takes in what has come of that, which
    changes them. Lists are the search's own, to be read before it advances and not to be changed. Up to ``eos_ids``,
    none ever changes.
    """

    @property
    def beam_size(self) -> int:
        """Rows that the sentence takes up at every step."""

    @property
    def continuations_needed(self) -> int:
        """How many of the best continuations of all rows ``advance`` must see; 0: it sees the best of every row."""

    @property
    def acts_on_logits(self) -> bool:
        """Whether constraints act on raw logits, before the log-softmax, or on log-probabilities, after it."""

    @property
    def renormalizes(self) -> bool:
        """Whether a log-softmax follows constraints that act on log-probabilities."""

    @property
    def eos_ids(self) -> Sequence[int]:
        """The tokens that end a hypothesis."""

    @property
    def tokens(self) -> Sequence[int]:
        """What is fed to each row, [K]."""

    @property
    def parents(self) -> Sequence[int]:
        """The row of the sentence's previous step that each row continues, [K]; 0 at the first step."""

    @property
    def scores(self) -> Sequence[float]:
        """Sum of token scores of every row so far, [K]; at or below -1e9 for a dead row."""

    @property
    def position(self) -> int:
        """Tokens that the rows have fed so far, which is the position of the token about to be fed."""

    @property
    def candidates_needed(self) -> int:
        """How many of each row's best candidates are needed to know what ``advance`` must see."""

    @property
    def constraints(self) -> Constraints:
        """What acts on the scores of this step; `NO_CONSTRAINTS` where nothing does. Shared: not to be changed."""

    @property
    def draws(self) -> Sequence[Draw] | None:
        """How to draw each row's next token, [K]; None in a search that asks for the best candidates."""

    @property
    def steady_steps(self) -> int:
        """How many of the next steps ask for the same as the next one, whatever is written; 0: it must look at that.

        Same are candidates, constraints and draws. It is so as long as the best continuation of every row (or the K
        best of all rows, where ``continuations_needed`` is not 0) are alive and do not end with one of ``eos_ids``.
        Then they are what the step after is fed, and ``catch_up`` may tell of several such steps later.
        """

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do but to read ``hypotheses``."""

    def advance(self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]) -> None:
        """Take in the step's outcome: continuations [N].

        They are at least the ``continuations_needed`` best of all rows (or as many as there are), in the order of
        ``best_continuations``; where that is 0, the best one of each row or the one that was drawn for it, by row, [K].

        Args:
            tokens: what may be written.
            scores: their sums, the row's score plus the token's processed log-probability.
            rows: which each continues.

        Raises:
            RuntimeError: the search has finished.
        """

    def catch_up(self, tokens: NDArray[np.int64], scores: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        """Take in steps that were steady, up to ``steady_steps`` of them: their K best continuations, [steps, K].

        That is the same as to ``advance`` at each.
        """

    def sure_tokens(self) -> list[int]:
        """Tokens that the first of ``hypotheses`` will begin with, whatever follows: never fewer than before.

        They are what all rows and ended hypotheses have in common that can still become the first. May be called at any
        time, between two steps; it costs the search nothing where nobody does.
        """

    def hypotheses(self) -> list[FinishedHypothesis]:
        """The ``num_hypotheses`` best, best first, or those drawn, in their order; fewer where constraints leave fewer.

        Raises:
            RuntimeError: the search has not finished.
        """


def normalised(score: float, length: int, length_penalty: float) -> float:
    """Score / length^length_penalty, of a prefix without tokens as if it had one (its score is 0)."""
    try:
        divisor = math.pow(length or 1, length_penalty)
    except OverflowError:
        divisor = 1e200
    # Powers without any use are cut, so that no finite penalty leads to a division by zero or to an infinite score.
    return score / min(max(divisor, 1e-200), 1e200)


def finished_hypothesis(
    tokens: Sequence[int], sums: Sequence[float], score: float, finish_reason: FinishReason
) -> FinishedHypothesis:
    """The hypothesis made of tokens, each with the sum of token scores up to it."""
    return FinishedHypothesis(
        token_ids=tuple(tokens),
        token_scores=tuple(map(operator.sub, sums, (0.0, *sums))),
        score=score,
        finish_reason=finish_reason,
    )
