"""Search in which every row goes its own way: greedy search takes the best token, sampling one drawn at random."""

# ruff: noqa: D102 - the methods of all searches are documented once, in Search

import hashlib
import math
import secrets
from collections.abc import Sequence

import numpy as np

from jumok_proto.results import FinishReason
from jumok_serve.options import SearchOptions
from jumok_serve.search.constraints import NO_CONSTRAINTS, ConstraintRules, Constraints
from jumok_serve.search.protocol import DEAD_SCORE, Draw, FinishedHypothesis, Step, normalised


class RowSearch:
    """One row of greedy search, or as many rows of sampling as hypotheses are asked for.

    Constraints act on the raw logits, and token scores are the log-softmax of what they (and temperature, top-k and
    top-p) leave, so unlike in beam search the probabilities of the remaining tokens add up to one.

    Args:
        options: all that the search runs by.
        prompt: start token and target prefix.
        source_ids: what is translated; random numbers depend on it, so that texts do not share theirs.
    """

    acts_on_logits = True
    renormalizes = False
    candidates_needed = 1

    def __init__(self, options: SearchOptions, prompt: Sequence[int], source_ids: Sequence[int]) -> None:
        self._options = options
        self._prompt = prompt
        self._rows = [_Row() for _ in range(1 if options.sampling is None else options.num_hypotheses)]
        self._rules = ConstraintRules(options, prompt, rows=len(self._rows))
        self._numbers = None if options.sampling is None else UniformNumbers(options.sampling.seed, source_ids)
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

    @property
    def _in_prompt(self) -> bool:
        """Whether the next token is known, because it is part of the prompt."""
        return self.position + 1 < len(self._prompt)

    def constraints(self) -> Constraints:
        if self._in_prompt or self._rules.forced(self.position + 1) is not None:
            return NO_CONSTRAINTS
        histories: list[list[int]] = []
        if self._rules.need_history:
            histories = [[] if row.finish_reason else [*self._prompt, *row.token_ids] for row in self._rows]
        return self._rules.at(self.position + 1, histories)

    def draws(self) -> list[Draw] | None:
        sampling = self._options.sampling
        if sampling is None or self._numbers is None:
            return None
        uniform = self._numbers.at(self.position, self.beam_size)
        return [Draw(sampling.temperature, sampling.top_k, sampling.top_p, number) for number in uniform]

    def advance(self, tokens: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]) -> None:
        if self.finished:
            raise RuntimeError("this search has finished; it cannot advance")
        if not self._in_prompt:
            forced = self._rules.forced(self.position + 1)
            for index, row in enumerate(self._rows):
                if row.finish_reason is None and forced is None:
                    row.take(tokens[index][0], scores[index][0], self._options)
                elif row.finish_reason is None:
                    self._take_forced(row, index, forced or ())
        self.position += 1

    def _take_forced(self, row: "_Row", index: int, forced: Sequence[int]) -> None:
        """The first of equally likely tokens, or one drawn from them."""
        if not forced:
            row.finish_reason = FinishReason.LENGTH
            return
        draws = self.draws()
        if draws is not None:  # the nucleus holds as many of them as reach its mass; top-k never parts equals
            forced = forced[: math.ceil(len(forced) * draws[index].top_p)]
        choice = 0 if draws is None else int(draws[index].uniform * len(forced))
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
    """Uniform random numbers that depend on nothing but a seed, a text, a row and a step: a counter-based generator.

    It is Philox ("Parallel random numbers: as easy as 1, 2, 3", Salmon et al., 2011), keyed by seed and text.

    Args:
        seed: what makes them repeatable; None: a new one.
        source_ids: the text.
    """

    def __init__(self, seed: int | None, source_ids: Sequence[int]) -> None:
        text = hashlib.blake2b(np.array(source_ids, "<i8").tobytes(), digest_size=8).digest()
        self._key = np.array(
            [secrets.randbits(63) if seed is None else seed, int.from_bytes(text, "little")], np.uint64
        )

    def at(self, step: int, rows: int) -> list[float]:
        """One number in [0, 1) for each row; those of the first rows do not depend on how many follow."""
        counter = np.array([0, step, 0, 0], np.uint64)
        generator = np.random.Generator(np.random.Philox(key=self._key, counter=counter))
        return [float(number) for number in generator.random(rows)]
