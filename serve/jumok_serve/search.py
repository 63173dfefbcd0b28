"""Greedy and beam search for one sentence: candidate tokens and scores go in, hypotheses come out.

A search knows no model, no tensor and no other sentence, so that any batch can be made of any searches: the scheduler
asks each for its rows (``next_step``), runs the decoder once for all of them, picks the best candidates of every row,
and hands each search its own (``advance``).

The semantics are those of Hugging Face's ``generate`` without sampling. A sum of token scores at or below -1e9 marks a
row as dead: it takes up a place in the batch and can neither finish nor come back to life.
"""

# ruff: noqa: D102 - the methods of both searches are documented once, in Search

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jumok_proto.results import FinishReason
from jumok_serve.options import SearchOptions

DEAD_SCORE = -1e9

Bias = list[tuple[int, int, float]]
"""Sparse additions to a step's scores: (row within the sentence, token, what is added)."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one sentence asks of the next decoder step, K = beam size entries each."""

    tokens: list[int]
    """The token to feed to each row."""
    parents: list[int]
    """The row of the sentence's previous step that each row continues; 0 at the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedHypothesis:
    """One result of a search: what was written after the start token, EOS included where it was reached."""

    token_ids: tuple[int, ...]
    token_scores: tuple[float, ...]
    """Log-probability of each token, after suppression; they add up to ``score`` * length^length_penalty."""
    score: float
    finish_reason: FinishReason


class Search(Protocol):
    """The search for one sentence's best translations. K is ``beam_size``, C is ``candidates_needed``."""

    @property
    def beam_size(self) -> int:
        """Rows that the sentence takes up at every step."""
        ...

    @property
    def candidates_needed(self) -> int:
        """How many of each row's best candidates ``advance`` must see."""
        ...

    @property
    def position(self) -> int:
        """Tokens that the rows have fed so far, which is the position of the token about to be fed."""
        ...

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do but to read ``hypotheses``."""
        ...

    def next_step(self) -> Step:
        """What to feed next."""
        ...

    def scores(self) -> list[float]:
        """Sum of token scores of every row so far, [K]; at or below -1e9 for a dead row."""
        ...

    def logit_bias(self) -> Bias:
        """What to add to the raw logits of this step, before the log-softmax. Shared: not to be changed."""
        ...

    def log_prob_bias(self) -> Bias:
        """What to add to the log-probabilities of this step, not renormalised after. Shared: not to be changed."""
        ...

    def advance(self, tokens: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]) -> None:
        """Take in the step's outcome.

        Args:
            tokens: the C best candidates of each row, best first, equal ones by lower token id, [K][C]; all of the
                vocabulary where it has fewer than C tokens.
            scores: their sums, the row's score plus the candidate's processed log-probability, [K][C].

        Raises:
            RuntimeError: the search has finished.
        """
        ...

    def hypotheses(self) -> list[FinishedHypothesis]:
        """The ``num_hypotheses`` best, best first; fewer only where suppressed tokens leave no more of them.

        Raises:
            RuntimeError: the search has not finished.
        """
        ...


def make_search(options: SearchOptions, start_token: int) -> Search:
    """Start the search for one sentence: greedy with a beam of one, beam search with more."""
    return GreedySearch(options, start_token) if options.beam_size == 1 else BeamSearch(options, start_token)


class GreedySearch:
    """Follow the best token at every step.

    Constraints act on the raw logits, and token scores are the log-softmax of what they leave, so unlike in beam
    search the probabilities of the remaining tokens add up to one.
    """

    beam_size = 1
    candidates_needed = 1

    def __init__(self, options: SearchOptions, start_token: int) -> None:
        self._options = options
        self._suppression = _Suppression(options)
        self._next_token = start_token
        self._score = 0.0
        self._token_ids: list[int] = []
        self._token_scores: list[float] = []
        self._finish_reason: FinishReason | None = None

    @property
    def position(self) -> int:
        return len(self._token_ids)

    @property
    def finished(self) -> bool:
        return self._finish_reason is not None

    def next_step(self) -> Step:
        return Step([self._next_token], [0])

    def scores(self) -> list[float]:
        return [self._score]

    def logit_bias(self) -> Bias:
        return self._suppression.at(self.position)

    def log_prob_bias(self) -> Bias:
        return []

    def advance(self, tokens: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]) -> None:
        if self._finish_reason is not None:
            raise RuntimeError("this search has finished; it cannot advance")
        token, score = tokens[0][0], scores[0][0]
        if not score > DEAD_SCORE:  # every token is suppressed: the score is -inf, or NaN as -inf less -inf
            self._finish_reason = FinishReason.LENGTH
            return
        self._token_ids.append(token)
        self._token_scores.append(score - self._score)
        self._next_token, self._score = token, score
        if token in self._options.eos_ids:
            self._finish_reason = FinishReason.EOS
        elif len(self._token_ids) == self._options.max_length:
            self._finish_reason = FinishReason.LENGTH

    def hypotheses(self) -> list[FinishedHypothesis]:
        if self._finish_reason is None:
            raise RuntimeError("this search has not finished; advance it until it has")
        return [
            FinishedHypothesis(
                token_ids=tuple(self._token_ids),
                token_scores=tuple(self._token_scores),
                score=_normalised(self._score, len(self._token_ids), self._options.length_penalty),
                finish_reason=self._finish_reason,
            )
        ]


class BeamSearch:
    """Keep the K best prefixes at every step, and the K best hypotheses that have ended.

    As in Hugging Face's ``_beam_search``: of all continuations of all rows the best max(2, 1 + E) * K are looked at,
    E being the number of EOS ids. Those among the first K that end with EOS, or that reach the maximum length, join
    the ended hypotheses, of which the K with the best normalised scores stay. The first K that do not end run on.
    Equal continuations go by lower row, then by lower token id; of equal ended hypotheses the earlier ranks first.

    K + E candidates of each row suffice to know these. Of one row at most K candidates can be among the first K, and
    they are its best K. At most E of its candidates end with EOS, so its best K + E hold its best K that run on (or
    all of them), and of these no row can supply more than K. The first max(2, 1 + E) * K, in turn, hold no more than
    E * K that end, hence always the first K that run on, so that this number need not be enforced.
    """

    def __init__(self, options: SearchOptions, start_token: int) -> None:
        self.beam_size = options.beam_size
        self.candidates_needed = options.beam_size + len(options.eos_ids)
        self.position = 0
        self.finished = False
        self._options = options
        self._suppression = _Suppression(options)
        self._start_token = start_token
        # Only the first row is alive at first: K equal rows would make K equal hypotheses.
        self._alive = [_Node(None, start_token, 0.0)]  # best first, at most K; dead rows follow
        self._parents = [0]
        self._ended: list[_Ended] = []  # best first, at most K

    def next_step(self) -> Step:
        dead = self.beam_size - len(self._alive)
        return Step([node.token for node in self._alive] + [self._start_token] * dead, self._parents + [0] * dead)

    def scores(self) -> list[float]:
        return [node.score for node in self._alive] + [DEAD_SCORE] * (self.beam_size - len(self._alive))

    def logit_bias(self) -> Bias:
        return []

    def log_prob_bias(self) -> Bias:
        return self._suppression.at(self.position)

    def advance(self, tokens: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]) -> None:
        if self.finished:
            raise RuntimeError("this search has finished; it cannot advance")
        beam_size, eos_ids = self.beam_size, self._options.eos_ids
        length = self.position + 1  # of the continuations
        at_maximum = length == self._options.max_length

        # Sorting these triples is the whole order: best score, then lower row, then lower token. NaN stays out.
        continuations = [
            (-score, row, token)
            for row in range(len(self._alive))
            for score, token in zip(scores[row], tokens[row], strict=True)
            if score > DEAD_SCORE
        ]
        continuations.sort()

        alive: list[_Node] = []
        parents: list[int] = []
        ended: list[_Ended] = []
        for rank, (negated, row, token) in enumerate(continuations):
            if at_maximum or token in eos_ids:
                if rank < beam_size:
                    score = _normalised(-negated, length, self._options.length_penalty)
                    ended.append(_Ended(score, _Node(self._alive[row], token, -negated)))
            else:
                alive.append(_Node(self._alive[row], token, -negated))
                parents.append(row)
                if len(alive) == beam_size:  # so `rank` is K - 1 at least, and nothing after it can end
                    break
        if ended:
            ended = self._ended + ended
            ended.sort(key=_by_score, reverse=True)  # stable: of equal ones the earlier stays first
            self._ended = ended[:beam_size]
        elif not alive and not self._ended:  # suppression leaves no continuation: the rows themselves are the result
            self._ended = [
                _Ended(_normalised(node.score, self.position, self._options.length_penalty), node)
                for node in self._alive
            ]
        self._alive, self._parents, self.position = alive, parents, length
        self.finished = not alive or (len(self._ended) == beam_size and self._is_settled())

    def _is_settled(self) -> bool:
        """Whether the full list of ended hypotheses is final."""
        options = self._options
        if options.early_stopping is True:
            return True
        # The best score that a running hypothesis is thought able to reach, if nothing more is taken from its sum: at
        # the length where the penalty favours it most ("never"), or by default at its present length.
        favours_length = options.early_stopping == "never" and options.length_penalty > 0
        length = options.max_length if favours_length else self.position
        return _normalised(self._alive[0].score, length, options.length_penalty) <= self._ended[-1].score

    def hypotheses(self) -> list[FinishedHypothesis]:
        if not self.finished:
            raise RuntimeError("this search has not finished; advance it until it has")
        return [self._trace(ended) for ended in self._ended[: self._options.num_hypotheses]]

    def _trace(self, ended: "_Ended") -> FinishedHypothesis:
        token_ids: list[int] = []
        token_scores: list[float] = []
        node = ended.node
        while node.parent is not None:
            token_ids.append(node.token)
            token_scores.append(node.score - node.parent.score)
            node = node.parent
        reached_eos = ended.node.parent is not None and ended.node.token in self._options.eos_ids
        return FinishedHypothesis(
            token_ids=tuple(reversed(token_ids)),
            token_scores=tuple(reversed(token_scores)),
            score=ended.score,
            finish_reason=FinishReason.EOS if reached_eos else FinishReason.LENGTH,
        )


class _Node(NamedTuple):
    """The last token of a prefix; prefixes share their beginnings, so that a step copies no history."""

    parent: "_Node | None"
    token: int
    score: float  # sum of the token scores up to here


class _Ended(NamedTuple):
    score: float  # normalised
    node: _Node


def _by_score(ended: _Ended) -> float:
    return ended.score


class _Suppression:
    """The tokens that a search may not choose: some never, EOS not before the minimum length."""

    def __init__(self, options: SearchOptions) -> None:
        rows = range(options.beam_size)
        early = dict.fromkeys(options.suppress_tokens + options.eos_ids)
        self._min_length = options.min_length
        self._early: Bias = [(row, token, -math.inf) for row in rows for token in early] if self._min_length else []
        self._late: Bias = [(row, token, -math.inf) for row in rows for token in dict.fromkeys(options.suppress_tokens)]

    def at(self, position: int) -> Bias:
        return self._early if position < self._min_length else self._late


def _normalised(score: float, length: int, length_penalty: float) -> float:
    """Score / length^length_penalty, of a prefix without tokens as if it had one (its score is 0)."""
    try:
        divisor = math.pow(length or 1, length_penalty)
    except OverflowError:
        divisor = 1e200
    # Powers without any use are cut, so that no finite penalty leads to a division by zero or to an infinite score.
    return score / min(max(divisor, 1e-200), 1e200)
