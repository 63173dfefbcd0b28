"""Greedy search and sampling, in which rows are independent."""

# ruff: noqa: D102 - the contract is documented once, in BeamSearch

import hashlib
import math
import secrets
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from jumok_proto.results import FinishReason
from jumok_serve.search.constraints import NO_CONSTRAINTS, rules_of
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.search import (
    DEAD_SCORE,
    BeamSearch,
    Draw,
    FinishedHypothesis,
    finished_hypothesis,
    normalized_score,
)


class GreedySampling:
    """Greedy search in one row, or sampling with one row per hypothesis.

    Constraints act on logits, before temperature, top-k and top-p. Token scores are log-softmax over the tokens that
    are left, so unlike in beam search their probabilities add up to one.

    Args:
        source_ids: source token ids; random numbers depend on them.
    """

    num_continuations = 0
    num_candidates = 1
    acts_on_logits = True
    renormalizes = False
    boosts = NO_CONSTRAINTS

    def __init__(self, options: SearchOptions, prompt: Sequence[int], source_ids: Sequence[int]) -> None:
        self.eos_ids = options.eos_ids
        self.beam_size = 1 if options.sampling is None else options.num_hypotheses
        self.tokens = [prompt[0]] * self.beam_size
        self.parents: Sequence[int] = (0,) * self.beam_size
        self.scores = [0.0] * self.beam_size
        self.position = 0
        self.constraints = NO_CONSTRAINTS
        self.draws: list[Draw] | None = None
        self.finished = False
        self._options = options
        self._prompt = prompt
        self._rows = [_Row() for _ in range(self.beam_size)]
        self._rules = rules_of(options, len(prompt), self.beam_size)
        self._forced: tuple[int, ...] | None = None  # the only tokens that can come next
        self._next_change = len(prompt)  # length at which constraints may change
        self._numbers = None if options.sampling is None else UniformNumbers(options.sampling.seed, source_ids)
        self._prepare_step()

    def _prepare_step(self) -> None:
        sampling = self._options.sampling
        if sampling is not None and self._numbers is not None:
            uniform = self._numbers.at(self.position, self.beam_size)
            self.draws = [Draw(sampling.temperature, sampling.top_k, sampling.top_p, number) for number in uniform]
        length = self.position + 1
        if length < self._next_change:
            return
        self._next_change = self._rules.next_change(length)
        self._forced = self._rules.forced(length)
        histories: list[list[int]] = []
        if self._rules.need_history:
            histories = [[] if row.finish_reason else [*self._prompt, *row.tokens] for row in self._rows]
        self.constraints = self._rules.at(length, histories) if self._forced is None else NO_CONSTRAINTS

    def advance(self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]) -> None:
        if self.finished:
            raise RuntimeError("this search has finished; it cannot advance")
        self.position += 1
        if self.position < len(self._prompt):
            self.tokens = [self._prompt[self.position]] * self.beam_size
        else:
            if self.position == len(self._prompt):
                self.parents = range(self.beam_size)
            self.finished = True
            for index, row in enumerate(self._rows):
                if row.finish_reason is not None:
                    continue
                token, score = tokens[index], scores[index]
                if self._forced is not None:
                    token, score = self._choose_forced(index, self._forced)
                if row.append(token, score, self._options):
                    self.tokens[index], self.scores[index] = token, score
                    self.finished = False
                else:  # the row goes on as a dead one, whose tokens no reader sees
                    self.scores[index] = DEAD_SCORE
        if not self.finished and (self._numbers is not None or self.position + 1 >= self._next_change):
            self._prepare_step()

    @property
    def steady_steps(self) -> int:
        if self.beam_size > 1 or self.draws is not None or self._forced is not None or self.finished:
            return 0
        if self.position + 1 < len(self._prompt):
            return 0
        (row,) = self._rows
        return max(0, min(self._next_change - self.position - 2, self._options.max_length - len(row.tokens) - 1))

    def native_rows(self) -> int:
        return 0

    def catch_up(self, tokens: NDArray[np.int64], scores: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        (row,) = self._rows
        row.tokens += tokens[:, 0].tolist()
        row.sums += scores[:, 0].tolist()
        self.tokens, self.scores = row.tokens[-1:], row.sums[-1:]
        self.position += len(tokens)

    def _choose_forced(self, index: int, forced: Sequence[int]) -> tuple[int, float]:
        """Choose a forced token: the first, or a drawn one; with score.

        The score is -inf if there is no token.
        """
        if not forced:
            return self.tokens[index], -math.inf
        choice = 0
        if self.draws is not None:  # top-p keeps as many as reach its mass; top-k never splits equal tokens
            forced = forced[: math.ceil(len(forced) * self.draws[index].top_p)]
            choice = int(self.draws[index].uniform * len(forced))
        return forced[choice], self.scores[index] - math.log(len(forced))

    def stable_tokens(self) -> list[int]:
        return list(self._rows[0].tokens)  # no token is ever taken back

    def hypotheses(self) -> list[FinishedHypothesis]:
        if not self.finished:
            raise RuntimeError("this search has not finished; advance it until it has")
        return [row.hypothesis(self._options) for row in self._rows]


class _Row:
    __slots__ = ("finish_reason", "sums", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.sums: list[float] = []  # of token scores up to each
        self.finish_reason: FinishReason | None = None

    def append(self, token: int, score: float, options: SearchOptions) -> bool:
        """Append a token unless its score is dead; True to continue."""
        if not score > DEAD_SCORE:  # all tokens are suppressed: the score is -inf, or NaN from -inf - -inf
            self.finish_reason = FinishReason.LENGTH
            return False
        self.tokens.append(token)
        self.sums.append(score)
        if token in options.eos_ids:
            self.finish_reason = FinishReason.EOS
        elif len(self.tokens) == options.max_length:
            self.finish_reason = FinishReason.LENGTH
        return self.finish_reason is None

    def hypothesis(self, options: SearchOptions) -> FinishedHypothesis:
        total = self.sums[-1] if self.sums else 0.0
        score = normalized_score(total, len(self.tokens), options.length_penalty)
        return finished_hypothesis(self.tokens, self.sums, score, self.finish_reason or FinishReason.LENGTH)


class UniformNumbers:
    """Uniform random numbers that depend only on seed, text, step and row.

    The generator is counter-based: Philox ("Parallel random numbers: as easy as 1, 2, 3", Salmon et al., 2011), keyed
    by seed and text.

    Args:
        seed: seed of repeatable numbers; None: a new seed.
    """

    def __init__(self, seed: int | None, source_ids: Sequence[int]) -> None:
        text = hashlib.blake2b(np.array(source_ids, "<i8").tobytes(), digest_size=8).digest()
        self._key = np.array(
            [secrets.randbits(63) if seed is None else seed, int.from_bytes(text, "little")], np.uint64
        )

    def at(self, step: int, rows: int) -> list[float]:
        """Return one number in [0, 1) per row, for any row count."""
        counter = np.array([0, step, 0, 0], np.uint64)
        generator = np.random.Generator(np.random.Philox(key=self._key, counter=counter))
        return [float(number) for number in generator.random(rows)]


Search: TypeAlias = BeamSearch | GreedySampling
"""The search for one sentence's translations."""
