"""What a search is to the batch that runs it, and what comes out of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jumok_proto.results import FinishReason
from jumok_serve.search.constraints import Constraints

DEAD_SCORE = -1e9


@dataclass(frozen=True, slots=True)
class Step:
    """What one sentence asks of the next decoder step, K entries each."""

    tokens: list[int]
    """The token to feed to each row."""
    parents: list[int]
    """The row of the sentence's previous step that each row continues; 0 at the first step."""


class Draw(NamedTuple):
    """How the next token of a row is drawn: ``Sampling`` says what the first three do; ``uniform`` lies in [0, 1)."""

    temperature: float
    top_k: int
    top_p: float
    uniform: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedHypothesis:
    """One result of a search: what was written after start token and target prefix, EOS included if it was reached."""

    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    """Log-probability of each token under the constraints; they add up to ``score`` * length^length_penalty."""
    score: float
    finish_reason: FinishReason


class Search(Protocol):
    """The search for one sentence's translations. K is ``beam_size``, C is ``candidates_needed``."""

    @property
    def beam_size(self) -> int:
        """Rows that the sentence takes up at every step."""

    @property
    def acts_on_logits(self) -> bool:
        """Whether constraints act on raw logits, before the log-softmax, or on log-probabilities, after it."""

    @property
    def renormalizes(self) -> bool:
        """Whether a log-softmax follows constraints that act on log-probabilities."""

    @property
    def candidates_needed(self) -> int:
        """How many of each row's best candidates ``advance`` must see."""

    @property
    def position(self) -> int:
        """Tokens that the rows have fed so far, which is the position of the token about to be fed."""

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do but to read ``hypotheses``."""

    def next_step(self) -> Step:
        """What to feed next."""

    def scores(self) -> list[float]:
        """Sum of token scores of every row so far, [K]; at or below -1e9 for a dead row."""

    def constraints(self) -> Constraints:
        """What acts on the scores of this step; `NO_CONSTRAINTS` where nothing does. Shared: not to be changed."""

    def draws(self) -> list[Draw] | None:
        """How to draw each row's next token, [K]; None where the best candidates are asked for."""

    def advance(self, tokens: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]) -> None:
        """Take in the step's outcome.

        Args:
            tokens: the C best candidates of each row, best first, equal ones by lower token id, [K][C]; all of the
                vocabulary where it has fewer than C tokens. Or the one token that was drawn for each row.
            scores: their sums, the row's score plus the candidate's processed log-probability, [K][C].

        Raises:
            RuntimeError: the search has finished.
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
