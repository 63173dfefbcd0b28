"""Attention of hypotheses after decoding: coverage penalty, replaced unknown words, and weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.results import Hypothesis
from jumok_serve.interrupts import Deadline
from jumok_serve.manifest.languages import Direction, writes_spaces
from jumok_serve.search import FinishedHypothesis
from jumok_serve.search.options import SearchOptions
from jumok_serve.tasks.coverage import log_coverage, ranked
from jumok_serve.tasks.job import Job
from jumok_serve.tasks.teacher_forcing import TeacherForcing
from jumok_serve.tasks.unknown_words import aligned_words, replace_unknown, source_words
from jumok_serve.tokenizers.input_processor import InputProcessor, Source
from jumok_serve.tokenizers.tokenizer import Tokenizer

MAX_ATTENTION_WEIGHTS = 2**23
"""Limit for all hypotheses of a request together, if each had the maximum length; target prefixes count."""

Ranking = tuple[Job, tuple[FinishedHypothesis, ...]]
"""Hypotheses of a text, best first."""


@dataclass(frozen=True, eq=False)
class HypothesisAttention:
    """Computes attention of hypotheses, and what depends on it.

    Attributes:
        aligner: computes attention.
        options: options of the search of texts without prefix.
        attention: True to add attention to hypotheses.
    """

    aligner: TeacherForcing
    tokenizer: Tokenizer
    inputs: InputProcessor
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
        coverage = iter(log_coverage(self.aligner, given, self.deadline))
        return [
            (job, tuple(ranked(of_text, [next(coverage) for _ in of_text], penalty)[:count])) for job, of_text in found
        ]

    def with_words(
        self, jobs: Sequence[Job], hypotheses: Sequence[tuple[Hypothesis, ...]]
    ) -> list[tuple[Hypothesis, ...]]:
        """Replace unknown tokens in texts, if requested."""
        unknown = self.tokenizer.target_unknown if self.options.replace_unknowns else None
        if unknown is None:
            return list(hypotheses)
        given = {
            (text, rank): job.given(one.token_ids)
            for text, (job, of_text) in enumerate(zip(jobs, hypotheses, strict=True))
            for rank, one in enumerate(of_text)
            if job.source.token_ids and unknown in (*job.prompt[1:], *one.token_ids)
        }
        weights = dict(zip(given, self.aligner.alignments(list(given.values()), self.deadline), strict=True))
        spaced = writes_spaces(self.direction.target)

        @cache
        def words_of(text: int) -> list[str]:
            source = jobs[text].source
            return source_words(source.given, self.inputs.spelled_text(source, self.direction))

        def replaced(text: int, rank: int, one: Hypothesis) -> Hypothesis:
            if (text, rank) not in given:
                return one
            self.deadline.check("unknown words were replaced")
            written = given[text, rank].target_ids
            rows = [row for row, token in enumerate(written) if token == unknown]
            pairs = list(zip(rows, aligned_words(weights[text, rank], rows, words_of(text)), strict=True))
            changed = replace_unknown(self.tokenizer, written, one.text, pairs, spaced=spaced)
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
        given = {}
        for text, (job, of_text) in enumerate(zip(jobs, hypotheses, strict=True)):
            for rank, hypothesis in enumerate(of_text):
                if hypothesis.token_ids:
                    given[text, rank] = job.given(hypothesis.token_ids)
        found = self.aligner.attention(list(given.values()), self.deadline)
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
