"""Attention of hypotheses after decoding: coverage penalty, replaced unknown words, and weights."""

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.results import AppliedTerm, Hypothesis
from jumok_serve.engine.sentence import Decoded, Future
from jumok_serve.engine.statistics import Progress
from jumok_serve.interrupts import Deadline
from jumok_serve.manifest.languages import Direction, writes_spaces
from jumok_serve.runtime.graphs import Floats
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.search import FinishedHypothesis
from jumok_serve.tasks.model import TaskModel
from jumok_serve.tasks.teacher_forcing import GivenTarget, TeacherForcing
from jumok_serve.tasks.terms import SentenceTerms
from jumok_serve.tasks.word_alignment import token_places, words
from jumok_serve.tokenizers.input_processor import Source
from jumok_serve.tokenizers.tokenizer import Tokenizer

MAX_ATTENTION_WEIGHTS = 2**23
"""Limit for all hypotheses of a request together, if each had the maximum length; target prefixes count."""

_OPENING = {"Ps", "Pi"}
"""Unicode categories of signs without a space after them."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One text in work.

    Attributes:
        prompt: start token and target prefix.
        future: result of the engine; None for a text without content, which is not decoded.
        progress: tokens so far; None if the caller does not follow the progress.
        terms: terms of the text, or None.
        beam_size: beam size if terms needed a larger one, or None.
        free: result of the engine without terms, beside the one with terms; None: not needed.
    """

    source: Source
    prompt: tuple[int, ...]
    future: Future[Decoded] | None
    progress: Progress | None = None
    terms: SentenceTerms | None = None
    beam_size: int | None = None
    free: Future[Decoded] | None = None

    def given(self, token_ids: Sequence[int]) -> GivenTarget:
        """Return a hypothesis as a target of the aligner, the target prefix included."""
        start, *prefix = self.prompt
        return GivenTarget(self.source.token_ids, start, [*prefix, *token_ids])


Ranking = tuple[Job, tuple[FinishedHypothesis, ...]]
"""Hypotheses of a text, best first."""


@dataclass(frozen=True, eq=False)
class HypothesisAttention:
    """Computes attention of hypotheses, and what depends on it.

    Attributes:
        options: options of the search of texts without prefix.
        attention: True to add attention to hypotheses.
    """

    model: TaskModel
    direction: Direction
    options: SearchOptions
    attention: bool
    deadline: Deadline

    def ranked(self, found: Sequence[Ranking]) -> list[Ranking]:
        """Order hypotheses by scores with coverage penalty, if there is one."""
        penalty, count = self.options.coverage_penalty, self.options.num_hypotheses
        if not penalty:
            return list(found)
        given = [job.given(one.token_ids) for job, of_text in found for one in of_text]
        coverage = iter(log_coverage(self.model.teacher_forcing, given, self.deadline))
        return [
            (job, tuple(ranked(of_text, [next(coverage) for _ in of_text], penalty)[:count])) for job, of_text in found
        ]

    def with_words(
        self, jobs: Sequence[Job], hypotheses: Sequence[tuple[Hypothesis, ...]]
    ) -> list[tuple[Hypothesis, ...]]:
        """Replace unknown tokens in texts, if requested."""
        unknown = self.model.tokenizer.target_unknown if self.options.replace_unknowns else None
        if unknown is None:
            return list(hypotheses)
        given = {
            (text, rank): job.given(one.token_ids)
            for text, (job, of_text) in enumerate(zip(jobs, hypotheses, strict=True))
            for rank, one in enumerate(of_text)
            if job.source.token_ids and unknown in (*job.prompt[1:], *one.token_ids)
        }
        weights = dict(
            zip(given, self.model.teacher_forcing.alignments(list(given.values()), self.deadline), strict=True)
        )
        spaced = writes_spaces(self.direction.target)

        @cache
        def words_of(text: int) -> list[str]:
            source = jobs[text].source
            return source_words(source.given, self.model.inputs.spelled_text(source, self.direction))

        def replaced(text: int, rank: int, one: Hypothesis) -> Hypothesis:
            if (text, rank) not in given:
                return one
            self.deadline.check("unknown words were replaced")
            written = given[text, rank].target_ids
            rows = [row for row, token in enumerate(written) if token == unknown]
            pairs = list(zip(rows, aligned_words(weights[text, rank], rows, words_of(text)), strict=True))
            changed = replace_unknown(self.model.tokenizer, written, one.text, pairs, spaced=spaced)
            return replace(one, text=changed.text, terms=changed.moved(one.terms))

        return [
            tuple(replaced(text, rank, one) for rank, one in enumerate(of_text))
            for text, of_text in enumerate(hypotheses)
        ]

    def with_attention(
        self, jobs: Sequence[Job], hypotheses: Sequence[tuple[Hypothesis, ...]]
    ) -> list[tuple[Hypothesis, ...]]:
        """Add attention to hypotheses if requested, without rows of start token and prefix."""
        if not self.attention:
            return list(hypotheses)
        given = {
            (text, rank): job.given(one.token_ids)
            for text, (job, of_text) in enumerate(zip(jobs, hypotheses, strict=True))
            for rank, one in enumerate(of_text)
            if one.token_ids
        }
        found = self.model.teacher_forcing.attention(list(given.values()), self.deadline)
        weights = dict(zip(given, found, strict=True))

        def rows(text: int, rank: int, hypothesis: Hypothesis) -> tuple[tuple[float, ...], ...]:
            if not hypothesis.token_ids:
                return ()
            return tuple(map(tuple, weights[text, rank][-len(hypothesis.token_ids) :].tolist()))

        return [
            tuple(replace(one, attention=rows(text, rank, one)) for rank, one in enumerate(of_text))
            for text, of_text in enumerate(hypotheses)
        ]


def check_attention(sources: Sequence[Source], prefixes: Sequence[Sequence[int]], options: SearchOptions) -> None:
    """Check the number of weights that a request returns.

    Raises:
        InvalidArgumentError: it is over MAX_ATTENTION_WEIGHTS.
    """
    weights = options.num_hypotheses * sum(
        len(source.token_ids) * (len(prefix) + options.max_length)
        for source, prefix in zip(sources, prefixes, strict=True)
    )
    if weights > MAX_ATTENTION_WEIGHTS:
        raise InvalidArgumentError(
            f"attention of all hypotheses could be {weights} weights, more than the {MAX_ATTENTION_WEIGHTS} of a "
            "request: send several requests, or lower max_length or num_hypotheses",
            field="attention",
        )


def log_coverage(aligner: TeacherForcing, given: Sequence[GivenTarget], deadline: Deadline) -> list[float]:
    """Compute the log-coverage of each target: the sum of log(min(attention, 1)) over source tokens (Wu et al., 2016).

    The attention of a source token is the sum over all target tokens, of the mean over layers and heads. A source token
    without any is left out, as in CTranslate2.

    Args:
        given: targets; the log-coverage of an empty one is 0.

    Raises:
        DeadlineExceededError, CancelledError: see `TeacherForcing.attention_of`.
    """

    def summed(weights: Floats) -> Floats:
        over_target: Floats = weights.mean(axis=(1, 2), dtype=np.float32).sum(axis=1, keepdims=True)  # [B, 1, S]
        return over_target

    found = iter(aligner.attention_of(("cross",), [one for one in given if one.target_ids], summed, deadline))
    sums = []
    for one in given:
        attention = next(found)[0] if one.target_ids else np.zeros((1, 0), np.float32)
        sums.append(float(np.log(np.minimum(attention[attention > 0], 1.0, dtype=float)).sum()))
    return sums


def ranked(
    hypotheses: Sequence[FinishedHypothesis], log_coverages: Sequence[float], penalty: float
) -> list[FinishedHypothesis]:
    """Add penalty * log-coverage to scores, and order hypotheses by them.

    Those that satisfy more terms stay first.
    """
    scored = [
        one._replace(score=one.score + penalty * coverage)
        for one, coverage in zip(hypotheses, log_coverages, strict=True)
    ]
    return sorted(scored, key=lambda one: (sum(term is not None for term in one.terms), one.score), reverse=True)


@dataclass(frozen=True, slots=True)
class Replaced:
    """A text with source words in place of unknown tokens.

    Attributes:
        changes: place of each replaced part in the text before, and by how much longer its word is.
    """

    text: str
    changes: tuple[tuple[int, int], ...]

    def moved(self, terms: Sequence[AppliedTerm]) -> tuple[AppliedTerm, ...]:
        """Return terms with their places in the new text."""
        return tuple(
            term if term.target_span is None else term.moved(0, self._shift(term.target_span.first)) for term in terms
        )

    def _shift(self, place: int) -> int:
        return sum(longer for start, longer in self.changes if start < place)


def source_words(text: str, source_tokens: Sequence[str]) -> list[str]:
    """Return the word of a text that each of its tokens begins in; empty for tokens without one.

    Args:
        source_tokens: spelling of the source tokens, empty for special ones, [S].
    """
    of_text = words(text)
    ends = [end for _, end in of_text]
    found = []
    for first, after in token_places(source_tokens, text):
        start, end = of_text[index] if (index := bisect_right(ends, first)) < len(of_text) else (after, after)
        found.append(text[start:end] if start < after else "")
    return found


def aligned_words(attention: Floats, rows: Sequence[int], word_of: Sequence[str]) -> list[str]:
    """Return the source word that each of some target tokens attends to most; empty if the source has no word.

    Args:
        attention: cross-attention, [T, S].
        rows: places of the target tokens.
        word_of: word of each source token, [S].
    """
    spelled = np.array([bool(word) for word in word_of])
    if not spelled.any():
        return [""] * len(rows)
    return [word_of[int(np.where(spelled, attention[row], -np.inf).argmax())] for row in rows]


def replace_unknown(
    tokenizer: Tokenizer, token_ids: Sequence[int], text: str, found: Sequence[tuple[int, str]], *, spaced: bool
) -> Replaced:
    """Write words into a text instead of unknown tokens.

    Args:
        token_ids: tokens of the text.
        text: the text that the tokenizer makes of them.
        found: place of each unknown token among the tokens, and its word.
        spaced: True if the language writes spaces between words.
    """
    written, done = "", 0
    changes: list[tuple[int, int]] = []
    for place, word in found:
        before, through = tokenizer.decode(token_ids[:place]), tokenizer.decode(token_ids[: place + 1])
        if not word or len(before) < done or not text.startswith(before) or not text.startswith(through):
            continue  # a decoder that writes tokens differently if others follow: leave its text
        start, end = len(before), len(through)
        written += text[done:start]
        lead = " " if spaced and written and not _ends_open(written) else ""
        trail = " " if spaced and start == end and text[end : end + 1].isalnum() else ""
        replacement = f"{lead}{word}{trail}"
        written += replacement
        changes.append((start, len(replacement) - (end - start)))
        done = end
    return Replaced(written + text[done:], tuple(changes))


def _ends_open(text: str) -> bool:
    """True if a word follows a text without a space."""
    return text[-1].isspace() or unicodedata.category(text[-1]) in _OPENING
