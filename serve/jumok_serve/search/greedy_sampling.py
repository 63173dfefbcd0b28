"""Greedy search and sampling, in which rows are independent."""

# ruff: noqa: D102 - the contract is documented once, in Search

import hashlib
import math
import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jumok_proto.results import FinishReason
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.search import (
    DEAD_SCORE,
    Draw,
    FinishedHypothesis,
    Search,
    finished_hypothesis,
    normalized_score,
)


class GreedySampling(Search):
    """Greedy search in one row, or sampling with one row per hypothesis.

    Constraints act on logits, before temperature, top-k and top-p. Token scores are log-softmax over the tokens that
    are left, so unlike in beam search their probabilities add up to one.

    Args:
        source_ids: source token ids; random numbers depend on them.
    """

    tokens: list[int]
    scores: list[float]

    def __init__(self, options: SearchOptions, prompt: Sequence[int], source_ids: Sequence[int]) -> None:
        super().__init__(options, prompt, 1 if options.sampling is None else options.num_hypotheses)
        self._rows = [_Row() for _ in range(self.beam_size)]
        self._numbers = None if options.sampling is None else UniformNumbers(options.sampling.seed, source_ids)
        self._prepare_step()

    def _prepare_step(self) -> None:
        sampling = self._options.sampling
        if sampling is not None and self._numbers is not None:
            uniform = self._numbers.at(self.position, self.beam_size)
            self.draws = [Draw(sampling.temperature, sampling.top_k, sampling.top_p, number) for number in uniform]
        if self.position + 1 < self._next_change:
            return
        if self._rules.need_history:
            self._histories = [() if row.finish_reason else (*self._prompt, *row.tokens) for row in self._rows]
        super()._prepare_step()

    def _take_in(self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]) -> None:
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

    @property
    def steady_steps(self) -> int:
        return 0 if self.beam_size > 1 or self.draws is not None else super().steady_steps

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
