"""Beam search for one sentence."""

# ruff: noqa: D102 - the methods of all searches are documented once, in Search

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from jumok_proto.results import FinishReason
from jumok_serve.options import SearchOptions
from jumok_serve.search.constraints import NO_CONSTRAINTS, ConstraintRules, Constraints
from jumok_serve.search.protocol import DEAD_SCORE, Draw, FinishedHypothesis, Step, normalised


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

    def __init__(self, options: SearchOptions, prompt: Sequence[int]) -> None:
        self.beam_size = options.beam_size
        # Biases before one log-softmax do what they do between two, and cost less; factors do not.
        self.acts_on_logits = options.renormalize and options.repetition_penalty == 1.0
        self.renormalizes = options.renormalize and not self.acts_on_logits
        self.position = 0
        self.finished = False
        self._options = options
        self._prompt = prompt
        self._rules = ConstraintRules(options, prompt, rows=options.beam_size)
        # Only the first row is alive at first: K equal rows would make K equal hypotheses.
        self._alive = [_Node(None, prompt[0], 0.0)]  # best first, at most K; dead rows follow
        self._parents = [0]
        self._histories = [tuple(prompt)]  # tokens of the rows that are alive, where constraints look at them
        self._ended: list[_Ended] = []  # best first, at most K

    @property
    def candidates_needed(self) -> int:
        return 1 if self._knows_next else self.beam_size + len(self._options.eos_ids)

    @property
    def _in_prompt(self) -> bool:
        """Whether the next token is known, because it is part of the prompt."""
        return self.position + 1 < len(self._prompt)

    @property
    def _knows_next(self) -> bool:
        """Whether the model has no say in the next token, because it is part of the prompt or forced."""
        return self._in_prompt or self._rules.forced(self.position + 1) is not None

    def next_step(self) -> Step:
        dead = self.beam_size - len(self._alive)
        return Step([node.token for node in self._alive] + [self._prompt[0]] * dead, self._parents + [0] * dead)

    def scores(self) -> list[float]:
        return [node.score for node in self._alive] + [DEAD_SCORE] * (self.beam_size - len(self._alive))

    def constraints(self) -> Constraints:
        if self._knows_next:
            return NO_CONSTRAINTS
        return self._rules.at(self.position + 1, self._histories)

    def draws(self) -> list[Draw] | None:
        return None

    def advance(self, tokens: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]) -> None:
        if self.finished:
            raise RuntimeError("this search has finished; it cannot advance")
        in_prompt = self._in_prompt
        self.position += 1
        if in_prompt:
            self._alive = [_Node(None, self._prompt[self.position], 0.0)]
            return
        beam_size, options = self.beam_size, self._options
        length = self.position + 1 - len(self._prompt)  # of the continuations
        at_maximum = length == options.max_length

        alive: list[_Node] = []
        parents: list[int] = []
        ended: list[_Ended] = []
        for rank, (negated, row, token) in enumerate(self._continuations(tokens, scores)):
            if at_maximum or token in options.eos_ids:
                if rank < beam_size:
                    score = normalised(-negated, length, options.length_penalty)
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
        elif not alive and not self._ended:  # constraints leave no continuation: the rows themselves are the result
            self._ended = [
                _Ended(normalised(node.score, length - 1, options.length_penalty), node) for node in self._alive
            ]
        self._alive, self._parents = alive, parents
        if self._rules.need_history:
            self._histories = [(*self._histories[row], node.token) for row, node in zip(parents, alive, strict=True)]
        self.finished = not alive or (len(self._ended) == beam_size and self._is_settled(length))

    def _continuations(
        self, tokens: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]
    ) -> list[tuple[float, int, int]]:
        """(-score, row, token) of every continuation of a row that is alive, in their order.

        Sorting these triples is the whole order: best score, then lower row, then lower token. NaN stays out.
        """
        forced = self._rules.forced(self.position)
        if forced is not None:
            added = -math.log(len(forced)) if forced and self._options.renormalize else 0.0
            return sorted(
                (-(node.score + added), row, token) for row, node in enumerate(self._alive) for token in forced
            )
        return sorted(
            (-score, row, token)
            for row in range(len(self._alive))
            for score, token in zip(scores[row], tokens[row], strict=True)
            if score > DEAD_SCORE
        )

    def _is_settled(self, length: int) -> bool:
        """Whether the full list of ended hypotheses is final when those that run have ``length`` new tokens."""
        options = self._options
        if options.early_stopping is True:
            return True
        # The best score that a running hypothesis is thought able to reach, if nothing more is taken from its sum: at
        # the length where the penalty favours it most ("never"), or by default at its present length.
        favours_length = options.early_stopping == "never" and options.length_penalty > 0
        hoped = options.max_length if favours_length else length
        return normalised(self._alive[0].score, hoped, options.length_penalty) <= self._ended[-1].score

    def hypotheses(self) -> list[FinishedHypothesis]:
        if not self.finished:
            raise RuntimeError("this search has not finished; advance it until it has")
        return [self._trace(ended) for ended in self._ended[: self._options.num_hypotheses]]

    def _trace(self, ended: "_Ended") -> FinishedHypothesis:
        path = _path(ended.node)
        scores = [0.0, *(node.score for node in path)]
        reached_eos = bool(path) and path[-1].token in self._options.eos_ids
        return FinishedHypothesis(
            token_ids=tuple(node.token for node in path),
            token_scores=tuple(after - before for before, after in itertools.pairwise(scores)),
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


def _path(node: _Node) -> list[_Node]:
    """The nodes of the new tokens, first to last."""
    path = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    path.reverse()
    return path
