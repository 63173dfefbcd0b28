"""Search in which every row goes its own way: greedy search takes the best token, sampling one drawn at random."""

# ruff: noqa: D102 - the methods of all searches are documented once, in Search

import math
import secrets
from collections.abc import Sequence

import numpy as np

from jumok_proto.results import FinishReason
from jumok_serve.options import Sampling, SearchOptions
from jumok_serve.search.constraints import ConstraintRules, Constraints
from jumok_serve.search.protocol import DEAD_SCORE, Draw, FinishedHypothesis, Step, normalised


class RowSearch:
    """One row of greedy search, or as many rows of sampling as hypotheses are asked for.

    Constraints act on the raw logits, and token scores are the log-softmax of what they (and temperature, top-k and
    top-p) leave, so unlike in beam search the probabilities of the remaining tokens add up to one.

    Args:
        options: all that the search runs by.
        prompt: start token and target prefix.
    """

    acts_on_logits = True
    renormalizes = False
    candidates_needed = 1

    def __init__(self, options: SearchOptions, prompt: Sequence[int]) -> None:
        self._options = options
        self._prompt = prompt
        self._rows = [_Row() for _ in range(1 if options.sampling is None else options.num_hypotheses)]
        self._rules = ConstraintRules(options, prompt, rows=len(self._rows))
        self._numbers = None if options.sampling is None else UniformNumbers(options.sampling)
        self.beam_size = len(self._rows)
        self.position = 0

    @property
    def finished(self) -> bool:
        return all(row.finish_reason is not None for row in self._rows)

    def next_step(self) -> Step:
        if self.position < len(self._prompt):
            return Step([self._prompt[self.position]] * self.beam_size, [0] * self.beam_size)
        # A row that has ended feeds anything: nobody reads what becomes of it.
        tokens = [row.token_ids[-1] if row.token_ids else self._prompt[0] for row in self._rows]
        return Step(tokens, list(range(self.beam_size)))

    def scores(self) -> list[float]:
        return [DEAD_SCORE if row.finish_reason else row.score for row in self._rows]

    def constraints(self) -> Constraints:
        if self._in_prompt:
            return Constraints([], [])
        histories: list[list[int]] = []
        if self._rules.needs_history:
            histories = [[*self._prompt, *row.token_ids] for row in self._rows]
        return self._rules.at(self.position + 1, histories)

    def draws(self) -> list[Draw] | None:
        if self._numbers is None:
            return None
        return [self._numbers.draw(row, self.position) for row in range(self.beam_size)]

    @property
    def _in_prompt(self) -> bool:
        """Whether the next token is known, because it is part of the prompt."""
        return self.position + 1 < len(self._prompt)

    def advance(self, tokens: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]) -> None:
        if self.finished:
            raise RuntimeError("this search has finished; it cannot advance")
        if self._in_prompt:
            self.position += 1
            return
        self.position += 1
        forced = self._rules.forced(self.position)
        for index, row in enumerate(self._rows):
            if row.finish_reason is not None:
                continue
            if forced is None:
                row.take(tokens[index][0], scores[index][0], self._options)
            else:
                self._take_forced(row, index, list(forced))

    def _take_forced(self, row: "_Row", index: int, forced: Sequence[int]) -> None:
        """The first of equally likely tokens, or one drawn from them."""
        if not forced:
            row.finish_reason = FinishReason.LENGTH
            return
        choice = 0 if self._numbers is None else int(self._numbers.draw(index, self.position).uniform * len(forced))
        row.take(forced[choice], row.score - math.log(len(forced)), self._options)

    def hypotheses(self) -> list[FinishedHypothesis]:
        if not self.finished:
            raise RuntimeError("this search has not finished; advance it until it has")
        return [
            FinishedHypothesis(
                token_ids=tuple(row.token_ids),
                token_scores=tuple(row.token_scores),
                score=normalised(row.score, len(row.token_ids), self._options.length_penalty),
                finish_reason=row.finish_reason or FinishReason.LENGTH,
            )
            for row in self._rows
        ]


class _Row:
    """What has been written in one row."""

    __slots__ = ("finish_reason", "score", "token_ids", "token_scores")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.token_scores: list[float] = []
        self.score = 0.0
        self.finish_reason: FinishReason | None = None

    def take(self, token: int, score: float, options: SearchOptions) -> None:
        """Goes on with a token; ``score`` is the sum of token scores, this one's included."""
        if not score > DEAD_SCORE:  # every token is suppressed: the score is -inf, or NaN as -inf less -inf
            self.finish_reason = FinishReason.LENGTH
            return
        self.token_ids.append(token)
        self.token_scores.append(score - self.score)
        self.score = score
        if token in options.eos_ids:
            self.finish_reason = FinishReason.EOS
        elif len(self.token_ids) == options.max_length:
            self.finish_reason = FinishReason.LENGTH


class UniformNumbers:
    """Uniform random numbers that depend on nothing but a seed, a row and a step: a counter-based generator.

    It is Philox ("Parallel random numbers: as easy as 1, 2, 3", Salmon et al., 2011), keyed by the seed.

    Args:
        sampling: how tokens are drawn; without a seed a new one is taken.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._seed = secrets.randbits(63) if sampling.seed is None else sampling.seed

    def draw(self, row: int, step: int) -> Draw:
        """How row number ``row`` draws its token number ``step``."""
        counter = np.array([0, step, row, 0], np.uint64)
        uniform = float(np.random.Generator(np.random.Philox(key=self._seed, counter=counter)).random())
        return Draw(self._sampling.temperature, self._sampling.top_k, self._sampling.top_p, uniform)
