"""Beam search for one sentence."""

# ruff: noqa: D102 - the methods of all searches are documented once, in Search

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jumok_proto.results import FinishReason
from jumok_serve.search.constraints import NO_CONSTRAINTS, rules_of
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.search import DEAD_SCORE, FinishedHypothesis, finished_hypothesis, normalised

_Written: TypeAlias = tuple[Sequence[int], Sequence[float], Sequence[int]]
"""What one step has written in its rows: tokens, sums of token scores up to these, and the rows that they continue."""


class BeamSearch:
    """Keep the K best prefixes at every step, and the K best hypotheses that have ended.

    As in Hugging Face's ``_beam_search``: of all continuations of all rows the best max(2, 1 + E) * K are looked at,
    E being the number of EOS ids. Those among the first K that end with EOS, or that reach the maximum length, join
    the ended hypotheses, of which the K with the best normalised scores stay. The first K that do not end run on.
    Equal continuations go by lower row, then by lower token id; of equal ended hypotheses the earlier ranks first.

    K + E candidates of each row suffice to know these. Of one row at most K candidates can be among the first K, and
    they are its best K. At most E of its candidates end with EOS, so its best K + E hold its best K that run on (or
    all of them), and of these no row can supply more than K. The first max(2, 1 + E) * K, in turn, hold no more than
    E * K that end, hence always the first K that run on, so that (1 + E) * K suffice.
    """

    def __init__(self, options: SearchOptions, prompt: Sequence[int]) -> None:
        self.eos_ids = options.eos_ids
        self.beam_size = options.beam_size
        self.continuations_needed = (1 + len(options.eos_ids)) * self.beam_size
        # Biases before one log-softmax do what they do between two, and cost less; factors do not.
        self.acts_on_logits = options.renormalize and options.repetition_penalty == 1.0
        self.renormalizes = options.renormalize and not self.acts_on_logits
        # Rows that are alive come first, best first. Only the first is at first: K equal rows would make K equal
        # hypotheses.
        self.tokens: Sequence[int] = [prompt[0]] * self.beam_size
        self.parents: Sequence[int] = [0] * self.beam_size
        self.scores: Sequence[float] = [0.0] + [DEAD_SCORE] * (self.beam_size - 1)
        self.position = 0
        self.candidates_needed = 1
        self.constraints = NO_CONSTRAINTS
        self.draws = None
        self.finished = False
        self._options = options
        self._eos_ids = frozenset(options.eos_ids)
        self._prompt = prompt
        self._rules = rules_of(options, len(prompt), options.beam_size)
        self._forced: tuple[int, ...] | None = None  # what the next token must be one of
        self._next_change = len(prompt)  # at which length something else may be asked for
        self._alive = 1
        self._written: list[_Written] = []  # so that a step copies no history
        self._histories = [tuple(prompt)]  # tokens of the rows that are alive, where constraints look at them
        self._ended: list[_Ended] = []  # best first, at most K
        if self._next_change == 1:
            self._ask()

    def _ask(self) -> None:
        """Says what is asked of the step to come, beside what it is fed, where that may change."""
        length = self.position + 1
        self._next_change = self._rules.next_change(length)
        self._forced = self._rules.forced(length)
        if self._forced is None:
            self.candidates_needed = self.beam_size + len(self._options.eos_ids)
            self.constraints = self._rules.at(length, self._histories)
        else:
            self.candidates_needed, self.constraints = 1, NO_CONSTRAINTS

    def advance(self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]) -> None:
        if self.finished:
            raise RuntimeError("this search has finished; it cannot advance")
        self.position += 1
        if self.position < len(self._prompt):
            self.tokens = [self._prompt[self.position]] * self.beam_size
        else:
            if self._forced is not None:
                tokens, scores, rows = self._forced_continuations(self._forced)
            self._write(tokens, scores, rows)
        if not self.finished and self.position + 1 >= self._next_change:
            self._ask()

    @property
    def steady_steps(self) -> int:
        if self._alive < self.beam_size or self._forced is not None or self.finished:
            return 0
        if self.position + 1 < len(self._prompt) or len(self._ended) == self.beam_size:  # then it may be settled
            return 0
        return max(0, min(self._next_change - self.position - 2, self._options.max_length - len(self._written) - 1))

    def catch_up(self, tokens: NDArray[np.int64], scores: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        self._written.extend(zip(tokens.tolist(), scores.tolist(), rows.tolist(), strict=True))
        self.tokens, self.scores, self.parents = self._written[-1]
        self.position += len(tokens)

    def _forced_continuations(self, forced: Sequence[int]) -> tuple[list[int], list[float], list[int]]:
        """All that can follow, in the order of ``best_continuations``."""
        added = -math.log(len(forced)) if forced and self._options.renormalize else 0.0
        ordered = sorted((-(self.scores[row] + added), row, token) for row in range(self._alive) for token in forced)
        return [token for *_, token in ordered], [-negated for negated, *_ in ordered], [row for _, row, _ in ordered]

    def _write(self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]) -> None:
        """Goes on with the continuations that do not end, and takes note of those that do."""
        beam_size, length = self.beam_size, self.position + 1 - len(self._prompt)  # of the continuations
        running, sums, parents = tokens[:beam_size], scores[:beam_size], rows[:beam_size]
        if (  # not, as mostly, the first K run on; scores that are no numbers come last
            length == self._options.max_length
            or not self._eos_ids.isdisjoint(running)
            or len(sums) < beam_size
            or not sums[-1] > DEAD_SCORE
        ):
            running, sums, parents = self._parted(tokens, scores, rows, length)
        alive = len(running)
        if self._rules.need_history:
            self._histories = [(*self._histories[row], token) for row, token in zip(parents, running, strict=True)]
        if dead := beam_size - alive:
            running = [*running, *[self._prompt[0]] * dead]
            sums = [*sums, *[DEAD_SCORE] * dead]
            parents = [*parents, *[0] * dead]
        self._written.append((running, sums, parents))
        self._alive = alive
        self.tokens, self.scores, self.parents = running, sums, parents
        self.finished = not alive or (len(self._ended) == beam_size and self._is_settled(length))

    def _parted(
        self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int], length: int
    ) -> tuple[list[int], list[float], list[int]]:
        """Takes note of those that end, and gives tokens, scores and rows of those that do not: K at most."""
        beam_size, options = self.beam_size, self._options
        at_maximum = length == options.max_length
        running: list[int] = []
        sums: list[float] = []
        parents: list[int] = []
        ended: list[_Ended] = []
        for rank, (token, score, row) in enumerate(zip(tokens, scores, rows, strict=True)):
            if not score > DEAD_SCORE:  # or NaN: so are all that follow
                break
            if at_maximum or token in self._eos_ids:
                if rank < beam_size:
                    final = normalised(score, length, options.length_penalty)
                    ended.append(_Ended(final, length - 1, row, (token, score)))
            else:
                running.append(token)
                sums.append(score)
                parents.append(row)
                if len(running) == beam_size:  # so `rank` is K - 1 at least, and nothing after it can end
                    break
        if ended:
            ended = self._ended + ended
            ended.sort(key=_by_score, reverse=True)  # stable: of equal ones the earlier stays first
            self._ended = ended[:beam_size]
        elif not running and not self._ended:  # constraints leave no continuation: the rows themselves are the result
            self._ended = [
                _Ended(normalised(score, length - 1, options.length_penalty), length - 1, row, None)
                for row, score in enumerate(self.scores[: self._alive])
            ]
        return running, sums, parents

    def _is_settled(self, length: int) -> bool:
        """Whether the full list of ended hypotheses is final when those that run have ``length`` new tokens."""
        options = self._options
        if options.early_stopping is True:
            return True
        # The best score that a running hypothesis is thought able to reach, if nothing more is taken from its sum: at
        # the length where the penalty favours it most ("never"), or by default at its present length.
        favours_length = options.early_stopping == "never" and options.length_penalty > 0
        hoped = options.max_length if favours_length else length
        return normalised(self.scores[0], hoped, options.length_penalty) <= self._ended[-1].score

    def sure_tokens(self) -> list[int]:
        if self.finished:
            return list(self._trace(self._ended[0]).token_ids) if self._ended else []
        # Of those that have ended only the best can win: nothing that follows changes their order.
        best = self._ended[0] if self._ended else None
        rows = {row for row in range(self._alive) if best is None or self._best_score_of(row) >= best.score}
        if best is not None and not rows:
            return list(self._trace(best).token_ids)
        # Rows have different histories, so what several share ends where their ways back meet.
        sure: list[int] = []
        for length in range(len(self._written), 0, -1):
            tokens, _, parents = self._written[length - 1]
            if best is not None and length == best.length:
                rows.add(best.row)
            met = len(rows) == 1 and (best is None or length <= best.length)
            if met:
                (row,) = rows
                sure.append(tokens[row])
            rows = {parents[row] for row in rows}
        sure.reverse()
        return sure

    def _best_score_of(self, row: int) -> float:
        """No hypothesis that continues the row ends with a better score: tokens' log-probabilities are 0 at most."""
        options = self._options
        lengths = (len(self._written) + 1, options.max_length)  # the score is monotonic in the length
        return max(normalised(self.scores[row], length, options.length_penalty) for length in lengths)

    def hypotheses(self) -> list[FinishedHypothesis]:
        if not self.finished:
            raise RuntimeError("this search has not finished; advance it until it has")
        return [self._trace(ended) for ended in self._ended[: self._options.num_hypotheses]]

    def _trace(self, ended: "_Ended") -> FinishedHypothesis:
        written: list[int] = []  # last to first
        sums: list[float] = []
        row = ended.row
        for tokens, scores, parents in reversed(self._written[: ended.length]):
            written.append(tokens[row])
            sums.append(scores[row])
            row = parents[row]
        written.reverse()
        sums.reverse()
        if ended.last is not None:
            token, total = ended.last
            written.append(token)
            sums.append(total)
        reached_eos = bool(written) and written[-1] in self._eos_ids
        reason = FinishReason.EOS if reached_eos else FinishReason.LENGTH
        return finished_hypothesis(written, sums, ended.score, reason)


class _Ended(NamedTuple):
    """The first ``length`` new tokens of a row, and the one behind them if that is what ended it."""

    score: float  # normalised
    length: int
    row: int
    last: tuple[int, float] | None


def _by_score(ended: _Ended) -> float:
    return ended.score
