"""Beam search, and what all searches share."""

# ruff: noqa: D102 - the contract is documented once, in Search

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from jumok_proto.results import FinishReason
from jumok_serve.search.constraints import NO_CONSTRAINTS, Constraints, rules_of
from jumok_serve.search.options import SearchOptions
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


_WrittenStep: TypeAlias = tuple[Sequence[int], Sequence[float], Sequence[int]]
"""Tokens, sums of token scores, and the rows that they continue, of one step."""


class Search(ABC):
    """The search for one sentence's translations: the contract of all searches, and what they share.

    Attributes of a search are the inputs of the next decoder step. `advance` takes in the outcome of the step, and
    changes them. Sequences belong to the search: read them before it advances, and do not change them. The attributes
    up to ``eos_ids`` never change.

    Attributes:
        beam_size: rows of the sentence at every step.
        num_continuations: number of best continuations that ``advance`` needs; 0: one per row.
        acts_on_logits: True if constraints act before the log-softmax, False if after.
        renormalizes: True if a log-softmax follows constraints on log-probabilities.
        eos_ids: tokens that end a hypothesis.
        tokens: tokens fed at the next step, [K].
        parents: parent row of each row, [K]; 0 at the first step.
        scores: sum of token scores per row, [K], or 0 with terms; at most `DEAD_SCORE` if dead.
        position: position of the next token: number of tokens fed so far.
        num_candidates: best candidates of each row that ``num_continuations`` takes.
        constraints: constraints on this step's scores, or `NO_CONSTRAINTS`; shared, so read-only.
        draws: sampling parameters of each row, [K]; None without sampling.
        finished: True if only ``hypotheses`` is left to read.

    Args:
        prompt: start token and target prefix.
        beam_size: rows of the sentence.
    """

    num_continuations = 0
    num_candidates = 1
    acts_on_logits = True
    renormalizes = False
    draws: list[Draw] | None = None

    def __init__(self, options: SearchOptions, prompt: Sequence[int], beam_size: int) -> None:
        self.eos_ids = options.eos_ids
        self.beam_size = beam_size
        self.tokens: Sequence[int] = [prompt[0]] * beam_size
        self.parents: Sequence[int] = [0] * beam_size
        self.scores: Sequence[float] = [0.0] * beam_size
        self.position = 0
        self.constraints = NO_CONSTRAINTS
        self.finished = False
        self._options = options
        self._prompt = prompt
        self._rules = rules_of(options, len(prompt), beam_size)
        self._histories = [tuple(prompt)]  # tokens of the live rows, if constraints need them
        self._forced: tuple[int, ...] | None = None  # the only tokens that can come next
        self._next_change = len(prompt)  # length at which constraints may change

    @property
    def boosts(self) -> Constraints:
        """Factors on log-probabilities that bring tokens among the candidates, or `NO_CONSTRAINTS`; with terms only.

        After `native_rows`, the arrays at that address say which.
        """
        return NO_CONSTRAINTS

    def _prepare_step(self) -> None:
        """Find the constraints of the next step."""
        length = self.position + 1
        self._next_change = self._rules.next_change(length)
        self._forced = self._rules.forced(length)
        self.constraints = self._rules.at(length, self._histories) if self._forced is None else NO_CONSTRAINTS

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
        if self.finished:
            raise RuntimeError("this search has finished; it cannot advance")
        self.position += 1
        if self.position < len(self._prompt):
            self.tokens = [self._prompt[self.position]] * self.beam_size
        else:
            self._take_in(tokens, scores, rows)
        if not self.finished and (self.draws is not None or self.position + 1 >= self._next_change):
            self._prepare_step()

    @abstractmethod
    def _take_in(self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]) -> None:
        """Take in continuations after the prompt; see `advance`."""

    @property
    def steady_steps(self) -> int:
        """Number of next steps with parameters independent of the chosen tokens.

        This holds while the best continuation of every row (or the K best of all rows, if ``num_continuations`` is
        not 0) is alive and no EOS. Those are then the inputs of the step after, and ``catch_up`` may take in several
        such steps later.
        """
        if self._forced is not None or self.finished or self.position + 1 < len(self._prompt):
            return 0
        last = len(self._prompt) + self._options.max_length  # length at which the search may stop
        return max(0, min(self._next_change, last) - self.position - 2)

    def native_rows(self) -> int:
        """Return the address of the ``TermRows`` that native steps advance; 0 without terms.

        Called when the search joins a batch with native steps.
        """
        return 0

    @abstractmethod
    def catch_up(self, tokens: NDArray[np.int64], scores: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        """Take in steady steps as ``advance`` would, at most ``steady_steps``.

        Args:
            tokens: tokens written, [steps, K].
            scores: sums of token scores, [steps, K].
            rows: the row that each token continues, [steps, K].
        """

    @abstractmethod
    def stable_tokens(self) -> list[int]:
        """Return the tokens with which the best hypothesis will begin.

        All rows and ended hypotheses that can still become the first have these tokens in common. The list never gets
        shorter. Callable between any two steps.
        """

    @abstractmethod
    def hypotheses(self) -> list[FinishedHypothesis]:
        """Return the ``num_hypotheses`` results, or all with a coverage penalty: best first, or in order of drawing.

        Constraints may leave fewer.

        Raises:
            RuntimeError: the search has not finished.
        """


class BeamSearch(Search):
    """Beam search as in Hugging Face's ``_beam_search``.

    The beam size is K, and n is the number of EOS ids.

    A step looks at the best (1 + n) * K continuations of all rows. Those among the first K that end with EOS, or
    reach the maximum length, become ended hypotheses, and the K best of them by normalized score are kept. The first K
    that do not end run on. Ties go to the lower row, then the lower token id, and to the earlier ended hypothesis.
    `_stops` is the stopping rule, by `early_stopping`; `kernels/runtime/term_step.h` has it again, for terms.

    K + n candidates of each row are enough. The first K continuations hold at most the best K candidates of a row. At
    most n candidates of a row are EOS, so its best K + n hold its best K that run on. (1 + n) * K continuations are
    enough, because at most n * K of them end.
    """

    def __init__(self, options: SearchOptions, prompt: Sequence[int]) -> None:
        super().__init__(options, prompt, options.beam_size)
        self.num_continuations = (1 + len(options.eos_ids)) * self.beam_size
        # Biases may be added before one log-softmax instead of between two, which costs more. Factors may not.
        self.acts_on_logits = options.renormalize and options.repetition_penalty == 1.0
        self.renormalizes = options.renormalize and not self.acts_on_logits
        # Live rows come first, best first. At the first step only one is alive: K equal rows would make K equal
        # hypotheses.
        self.scores = [0.0] + [DEAD_SCORE] * (self.beam_size - 1)
        self._sums: Sequence[float] = self.scores  # of token scores, by row
        self._merits: Sequence[float] = self._sums  # what hypotheses are ranked by, before normalization; never rises
        self._eos_ids = frozenset(options.eos_ids)
        self._live_rows = 1
        # Live rows with which steady steps begin, and ended hypotheses with which they stop.
        self._least_live = self._most_steady = options.beam_size
        self._steps: list[_WrittenStep] = []  # a trellis, so that a step copies no history
        self._enough_ended = self.beam_size  # that may end the search
        # A coverage penalty chooses among hypotheses after the search, also those that end in its last step.
        self._most_ended = 2 * self.beam_size if options.coverage_penalty else self.beam_size
        self._ended: list[Ended] = []  # best first
        if self._next_change == 1:
            self._prepare_step()

    def _prepare_step(self) -> None:
        super()._prepare_step()
        self.num_candidates = self.beam_size + len(self.eos_ids) if self._forced is None else 1

    def _take_in(self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]) -> None:
        if self._forced is not None:
            tokens, scores, rows = self._forced_continuations(self._forced)
        self._write(tokens, scores, rows)

    @property
    def steady_steps(self) -> int:
        if self._live_rows < self._least_live or len(self._ended) >= self._most_steady:  # then the search may stop
            return 0
        return super().steady_steps

    def catch_up(self, tokens: NDArray[np.int64], scores: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        self._steps.extend(zip(tokens.tolist(), scores.tolist(), rows.tolist(), strict=True))
        self.tokens, self.scores, self.parents = self._steps[-1]
        self._sums = self.scores
        self._merits = self._sums
        self.position += len(tokens)

    def _forced_continuations(self, forced: Sequence[int]) -> tuple[list[int], list[float], list[int]]:
        """Return the continuations with the forced tokens, in the order of ``best_continuations``."""
        added = -math.log(len(forced)) if forced and self._options.renormalize else 0.0
        ordered = sorted((-(self._sums[row] + added), row, token) for row in range(self._live_rows) for token in forced)
        return [token for *_, token in ordered], [-negated for negated, *_ in ordered], [row for _, row, _ in ordered]

    def _write(self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int]) -> None:
        """Continue the rows that do not end, and keep the ended hypotheses."""
        beam_size, length = self.beam_size, self.position + 1 - len(self._prompt)  # of the continuations
        running, sums, parents = tokens[:beam_size], scores[:beam_size], rows[:beam_size]
        # None of these is true at most steps: then the first K run on. NaN scores come last.
        if (
            length == self._options.max_length
            or not self._eos_ids.isdisjoint(running)
            or len(sums) < beam_size
            or not sums[-1] > DEAD_SCORE
        ):
            running, sums, parents = self._split_ended(tokens, scores, rows, length)
        self._run_on(running, sums, parents)
        self.scores = self._sums
        self.finished = not running or (len(self._ended) >= beam_size and self._stops(length))

    def _run_on(self, running: Sequence[int], sums: Sequence[float], parents: Sequence[int]) -> None:
        """Continue rows with tokens, sums of token scores and parents, best first; the others are dead."""
        alive = len(running)
        if self._rules.need_history:
            self._histories = [(*self._histories[row], token) for row, token in zip(parents, running, strict=True)]
        if dead := self.beam_size - alive:
            running = [*running, *[self._prompt[0]] * dead]
            sums = [*sums, *[DEAD_SCORE] * dead]
            parents = [*parents, *[0] * dead]
        self._steps.append((running, sums, parents))
        self._live_rows = alive
        self.tokens, self._sums, self.parents = running, sums, parents
        self._merits = sums

    def _split_ended(
        self, tokens: Sequence[int], scores: Sequence[float], rows: Sequence[int], length: int
    ) -> tuple[list[int], list[float], list[int]]:
        """Keep ended continuations; return the first K others: tokens, scores, rows."""
        beam_size, options = self.beam_size, self._options
        at_maximum = length == options.max_length
        running: list[int] = []
        sums: list[float] = []
        parents: list[int] = []
        ended: list[Ended] = []
        for rank, (token, score, row) in enumerate(zip(tokens, scores, rows, strict=True)):
            if not score > DEAD_SCORE:  # or NaN, as are all that follow
                break
            if at_maximum or token in self._eos_ids:
                if rank < beam_size:
                    final = normalized_score(score, length, options.length_penalty)
                    ended.append(Ended(final, length - 1, row, (token, score)))
            else:
                running.append(token)
                sums.append(score)
                parents.append(row)
                if len(running) == beam_size:  # `rank` is at least K - 1, so none after it can end
                    break
        if ended:
            ended = self._ended + ended
            ended.sort(key=by_score, reverse=True)  # stable: of equal ones the earlier stays first
            self._ended = ended[: self._most_ended]
        elif not running and not self._ended:  # constraints leave no continuation: the rows are the result
            self._ended = self._rows_as_ended(length - 1)
        return running, sums, parents

    def _rows_as_ended(self, length: int) -> "list[Ended]":
        """Return hypotheses of the rows as they are, with `length` tokens."""
        return [Ended(self._rank(row, length), length, row, None) for row in range(self._live_rows)]

    def _rank(self, row: int, length: int) -> float:
        """Return the score by which a row would be ranked if it ended with a length and its present merit."""
        return normalized_score(self._merits[row], length, self._options.length_penalty)

    def _stops(self, length: int) -> bool:
        """True if the search ends, by `early_stopping`; called when the list of ended hypotheses is full.

        `steady_steps` relies on that.
        """
        options = self._options
        if options.early_stopping is True:
            return True
        # The best score within reach of a running hypothesis: at the length that the penalty favours most ("never"), or
        # by default at its present length.
        favours_length = options.early_stopping == "never" and options.length_penalty > 0
        reachable_length = options.max_length if favours_length else length
        worst = self._ended[self._enough_ended - 1].score
        return max((self._rank(row, reachable_length) for row in self._rivals()), default=DEAD_SCORE) <= worst

    def _rivals(self) -> Iterable[int]:
        """Return the rows that ended hypotheses are compared with."""
        return range(self._live_rows)

    def stable_tokens(self) -> list[int]:
        if self.finished:
            return list(self._trace(self._ended[0]).token_ids) if self._ended else []
        # Of the ended hypotheses only the best can win: their order is final.
        best = self._ended[0] if self._ended else None
        rows = {row for row in range(self._live_rows) if best is None or self._best_score_of(row) >= best.score}
        if best is not None and not rows:
            return list(self._trace(best).token_ids)
        return self._shared_tokens(rows, self._ended[:1])

    def _shared_tokens(self, rows: set[int], ended: "Sequence[Ended]") -> list[int]:
        """Return the first tokens that some rows and some ended hypotheses share."""
        # Rows with different histories share the tokens up to the step at which their parents are the same row.
        stable: list[int] = []
        for length in range(len(self._steps), 0, -1):
            tokens, _, parents = self._steps[length - 1]
            rows |= {one.row for one in ended if one.length == length}
            if len(rows) == 1 and all(length <= one.length for one in ended):
                (row,) = rows
                stable.append(tokens[row])
            rows = {parents[row] for row in rows}
        stable.reverse()
        return stable

    def _best_score_of(self, row: int) -> float:
        """Return the upper bound of the scores that a row can reach.

        The bound holds because log-probabilities are at most 0.
        """
        lengths = (len(self._steps) + 1, self._options.max_length)  # the score is monotonic in the length
        return max(self._rank(row, length) for length in lengths)

    def hypotheses(self) -> list[FinishedHypothesis]:
        if not self.finished:
            raise RuntimeError("this search has not finished; advance it until it has")
        count = None if self._options.coverage_penalty else self._options.num_hypotheses
        return [self._trace(ended) for ended in self._ended[:count]]

    def _trace(self, ended: "Ended") -> FinishedHypothesis:
        written: list[int] = []  # last to first
        sums: list[float] = []
        row = ended.row
        for tokens, scores, parents in reversed(self._steps[: ended.length]):
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


class Ended(NamedTuple):
    """A row's first ``length`` new tokens, and the token that ended it."""

    score: float  # normalized
    length: int
    row: int
    last: tuple[int, float] | None


def by_score(ended: Ended) -> float:
    """Return the normalized score, to sort by."""
    return ended.score
