"""Translation of sentences: they go into the engine's queue, and hypotheses become translations."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

from jumok_proto.errors import AttentionUnavailableError, InvalidArgumentError, SamplingUnavailableError
from jumok_proto.results import FinishReason, Hypothesis, Timings, Translation
from jumok_serve.bundle.bundle import MappedFile
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.sentence import Decoded, Future, Sentence
from jumok_serve.engine.statistics import Progress
from jumok_serve.interrupts import Deadline, check
from jumok_serve.manifest.languages import Direction
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.runtime.graphs import Floats
from jumok_serve.search.options import SearchOptions
from jumok_serve.search.plan import SearchPlan
from jumok_serve.search.search import FinishedHypothesis
from jumok_serve.search.terms import NO_TERMS, options_with_terms
from jumok_serve.tasks.hypothesis_attention import HypothesisAttention, Job, check_attention
from jumok_serve.tasks.model import TaskModel, TranslationParameters
from jumok_serve.tasks.teacher_forcing import GivenTarget, TeacherForcing
from jumok_serve.tasks.term_placing import TermPlacing
from jumok_serve.tasks.terms import Kept, with_tokens
from jumok_serve.tokenizers.input_processor import InputProcessor, Source
from jumok_serve.tokenizers.tokenizer import Tokenizer

EMPTY_HYPOTHESIS = Hypothesis(
    text="", score=0.0, tokens=(), token_ids=(), token_scores=(), finish_reason=FinishReason.EOS
)
"""Translation of a text without content."""


class Attended(NamedTuple):
    """Cross-attention of a hypothesis.

    Attributes:
        weights: attention, [T, S].
        target_tokens: spelling of the target prefix and the hypothesis' tokens, empty for special ones, [T].
        source_tokens: spelling of the sentence's tokens, empty for special ones, [S].
    """

    weights: Floats
    target_tokens: Sequence[str]
    source_tokens: Sequence[str]


@dataclass(eq=False)
class PendingSentences:
    """Sentences in the engine.

    It refers to the graphs only for attention: results that a slow reader has not fetched must not keep an unloaded
    model in memory.

    Attributes:
        options: options of the search of sentences without prefix.
        attending: computes attention of hypotheses; None: not needed.
        placing: chooses between hypotheses with terms; None: not needed.
        started: arrival of the sentences, in `time.monotonic()` seconds.
    """

    manifest: Manifest
    weights: MappedFile
    tokenizer: Tokenizer
    inputs: InputProcessor
    direction: Direction
    source_confidence: float | None
    jobs: Sequence[Job]
    options: SearchOptions
    attending: HypothesisAttention | None
    placing: TermPlacing | None
    deadline: Deadline
    started: float
    _decoded: list[Decoded] | None = field(default=None, init=False)
    _finished: dict[Job, tuple[FinishedHypothesis, ...]] = field(default_factory=dict, init=False)
    _timings: Timings | None = field(default=None, init=False)

    @cached_property
    def futures(self) -> tuple[Future[Decoded], ...]:
        """Futures of the sentences with content; cancelling one frees its rows within a step."""
        return tuple(future for job in self.jobs for future in (job.future, job.free) if future is not None)

    def cancel(self) -> None:
        """Cancel all sentences and attention that are not done."""
        self.deadline.cancel()
        for future in self.futures:
            future.cancel()

    def part(self, first: int, after: int) -> "PendingSentences":
        """Return the translations of some sentences alone."""
        return replace(self, jobs=self.jobs[first:after], deadline=Deadline(self.deadline.at))

    def stable_text(self, index: int) -> str:
        """Return the beginning of one translation that further tokens cannot change.

        It ends before an unknown token that a word will replace, and is empty while the order of hypotheses may change.
        """
        job = self.jobs[index]
        _, *prefix = job.prompt
        if self.options.coverage_penalty or job.free is not None:
            return ""
        if job.future is not None and self._is_decoded(index):
            best = next(iter(job.future.result().hypotheses), None)
            written = () if best is None else (*prefix, *best.token_ids)
            known = self._known(written)
            decode = self.tokenizer.decode if len(known) == len(written) else self.tokenizer.decode_stable
            return decode(known)
        return (
            ""
            if job.progress is None
            else self.tokenizer.decode_stable(self._known([*prefix, *job.progress.token_ids]))
        )

    def _known(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Tokens before the first unknown one that will be replaced."""
        unknown = self.tokenizer.target_unknown if self.options.replace_unknowns else None
        return token_ids[: token_ids.index(unknown)] if unknown is not None and unknown in token_ids else token_ids

    def is_final(self, index: int) -> bool:
        """True if a text has its hypotheses, and its stable text is the whole translation."""
        future = self.jobs[index].future
        if future is None or not self._is_decoded(index):
            return future is None
        best = next(iter(future.result().hypotheses), None)
        written = () if best is None else best.token_ids
        settled = not self.options.coverage_penalty and self.jobs[index].free is None
        return settled and len(self._known(written)) == len(written)

    def _is_decoded(self, index: int) -> bool:
        future = self.jobs[index].future
        return future is None or (future.done() and not future.cancelled() and future.exception() is None)

    def collect(self) -> list[Translation]:
        """Wait for the translations and return them in the order of the sentences.

        If one fails, the others are cancelled; see `jumok_serve.text.translation.Pending.collect` for errors.
        """
        try:
            found = self._hypotheses()
            hypotheses = [found.get(job) or (EMPTY_HYPOTHESIS,) for job in self.jobs]
            if self.attending is not None:
                hypotheses = self.attending.with_words(self.jobs, hypotheses)
                hypotheses = self.attending.with_attention(self.jobs, hypotheses)
        except BaseException:
            self.cancel()
            self.weights.check()  # other content may be the reason
            raise
        self.weights.check()
        timings = self.timings()
        return [self._translation(job, of_text, timings) for job, of_text in zip(self.jobs, hypotheses, strict=True)]

    def attended(
        self, hypotheses: Sequence[tuple[int, int]], aligner: TeacherForcing
    ) -> dict[tuple[int, int], Attended]:
        """Compute the attention that aligns some hypotheses, in this thread, after `collect`.

        Args:
            hypotheses: indices of sentences, and ranks of their hypotheses; those without tokens have none in the
                result.

        Raises:
            DeadlineExceededError, CancelledError: the deadline passed, or the sentences were cancelled, between
                batches.
        """
        special = self.manifest.special_tokens
        unspelled = {*special.eos, special.pad, special.start, self.direction.forced_first}
        given: dict[tuple[int, int], GivenTarget] = {}
        for index, rank in hypotheses:
            of_sentence = self._finished.get(self.jobs[index], ())[rank : rank + 1]
            if of_sentence and of_sentence[0].token_ids:
                given[index, rank] = self.jobs[index].given(of_sentence[0].token_ids)
        attended: dict[tuple[int, int], Attended] = {}
        found = aligner.alignments(list(given.values()), self.deadline)
        for ((index, rank), target), weights in zip(given.items(), found, strict=True):
            tokens = zip(target.target_ids, self.tokenizer.tokens(target.target_ids), strict=True)
            attended[index, rank] = Attended(
                weights[-len(target.target_ids) :],
                ["" if token in unspelled else text for token, text in tokens],
                self.inputs.spelled_text(self.jobs[index].source, self.direction),
            )
        return attended

    def timings(self) -> Timings:
        """Return the longest times of a sentence; waits until all are done."""
        if self._timings is None:
            decoded = self._results()
            self._timings = Timings(
                queue_s=max((result.queue_s for result in decoded), default=0.0),
                encode_s=max((result.encode_s for result in decoded), default=0.0),
                decode_s=max((result.decode_s for result in decoded), default=0.0),
                total_s=time.monotonic() - self.started,
            )
        return self._timings

    def _hypotheses(self) -> dict[Job, tuple[Hypothesis, ...]]:
        if _AllDone(self.futures).wait_for_failure():
            for future in self.futures:
                if future.done():
                    future.result()  # raises at once; the futures that are not done may take long
        jobs = (job for job in self.jobs if job.future is not None)
        found = [(job, result.hypotheses) for job, result in zip(jobs, self._results(), strict=True)]
        if self.placing is not None:
            found = self.placing.chosen(found)
        if self.attending is not None:
            found = self.attending.ranked(found)
        self._finished = dict(found)
        texts = iter(
            self.tokenizer.decode_all([(*job.prompt[1:], *one.token_ids) for job, of_text in found for one in of_text])
        )
        hypotheses = {}
        for job, of_text in found:
            check(None, "hypotheses were written")
            hypotheses[job] = tuple(self._hypothesis(next(texts), one, job) for one in of_text)
        return hypotheses

    def _results(self) -> list[Decoded]:
        if self._decoded is None:
            self._decoded = [job.future.result() for job in self.jobs if job.future is not None]
        return self._decoded

    def _hypothesis(self, text: str, hypothesis: FinishedHypothesis, job: Job) -> Hypothesis:
        return Hypothesis(
            text=text,
            score=hypothesis.score,
            tokens=tuple(self.tokenizer.tokens(hypothesis.token_ids)),
            token_ids=hypothesis.token_ids,
            token_scores=hypothesis.token_scores,
            finish_reason=hypothesis.finish_reason,
            terms=() if job.terms is None else job.terms.applied(hypothesis, text, job.prompt[1:], self.tokenizer),
        )

    def _translation(self, job: Job, hypotheses: tuple[Hypothesis, ...], timings: Timings) -> Translation:
        source = job.source
        attends = self.attending is not None and self.attending.attention
        spelled = self.inputs.spelled(source, self.direction) if attends else ()
        return Translation(
            hypotheses=hypotheses,
            source_token_count=len(source.token_ids),
            source_truncated=source.truncated,
            source_unknown_count=source.unknown,
            prefix_unknown_count=self.inputs.unknown_in_target(job.prompt[1:]),
            source_tokens=tuple(text for text, _ in spelled),
            source_language=self.direction.source,
            target_language=self.direction.target,
            source_confidence=self.source_confidence,
            model=self.manifest.name,
            model_version=self.manifest.version,
            beam_size=job.beam_size,
            timings=timings,
        )


class _AllDone:
    """Wait for many futures at once."""

    def __init__(self, futures: Sequence[Future[Decoded]]) -> None:
        self._left = len(futures)
        self._failed = False
        self._lock = threading.Lock()
        self._over = threading.Lock()  # held until it is over; an Event takes several times as long
        if futures:
            self._over.acquire()
        for future in futures:
            future.add_done_callback(self._count)

    def _count(self, future: Future[Decoded]) -> None:
        failed = future.cancelled() or future.exception() is not None
        with self._lock:
            self._left -= 1
            over = not self._failed and (failed or not self._left)
            self._failed = self._failed or failed
        if over:
            self._over.release()

    def wait_for_failure(self) -> bool:
        """Wait until one future fails (True) or all have results (False)."""
        with self._over:
            return self._failed


def check_parameters(model: TaskModel, parameters: TranslationParameters) -> tuple[Direction, SearchOptions]:
    """Return the direction, and the search options of texts without prefix.

    Raises:
        InvalidArgumentError, LanguageNotFoundError: an option or a language cannot be used.
        AttentionUnavailableError, SamplingUnavailableError: the bundle lacks the graph.
    """
    if parameters.attends_to_hypotheses and not model.teacher_forcing.can_align:
        raise AttentionUnavailableError.of(model.manifest.name)
    direction = model.direction(parameters)
    options = model.resolve(parameters.options, direction.forced_first, ())
    if options.sampling is not None and not model.can_sample:
        raise SamplingUnavailableError.of(model.manifest.name)
    if options.sampling is not None and parameters.terms is not None:
        raise InvalidArgumentError(
            "terms need a search: leave out the glossary, or sample and its options", field="options"
        )
    return direction, options


def submit_sources(
    model: TaskModel,
    engine: Engine,
    sources: Sequence[Source],
    parameters: TranslationParameters,
    *,
    started: float,
    target_prefixes: Sequence[str | None] | None = None,
    on_progress: Callable[[], None] | None = None,
    firsts: Sequence[bool] | None = None,
    kept: Sequence[Sequence[Kept]] | None = None,
) -> PendingSentences:
    """Queue tokenized sentences; see `Translator.submit`.

    Args:
        started: arrival of the texts, in `time.monotonic()` seconds.
        firsts: True for those that count as a text, as not all sentences of a text do; None: all.
        kept: places of their placeholders, which terms do not overlap; None: there are none.
    """
    inputs = model.inputs
    direction, text_options = check_parameters(model, parameters)
    if parameters.later_sentences:
        engine.limits.check_work(
            parameters.later_sentences * SearchPlan(text_options, inputs.start(direction)).most_work
        )
    prefixes = inputs.prefixes(target_prefixes, len(sources), text_options.forced_first_token)
    if parameters.attention:
        check_attention(sources, prefixes, text_options)
    jobs, sentences = [], []
    places = parameters.terms is not None and text_options.num_hypotheses == 1 and model.teacher_forcing.can_place
    start = (inputs.start(direction),)
    for index, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
        prompt = (*start, *prefix) if prefix else start
        future = progress = terms = beam_size = free = None
        if source.token_ids:
            options = text_options
            if prefix:
                try:
                    options = model.resolve(parameters.options, direction.forced_first, prefix)
                except InvalidArgumentError as error:
                    if error.field == "target_prefix":
                        error.field = f"target_prefixes[{index}]"
                    raise
            if parameters.terms is not None:
                check(parameters.deadline, "terms were looked for")
                terms = model.term_tokenizer.find(
                    source.given,
                    parameters.terms,
                    direction,
                    field=f"contents[{index}]",
                    kept=() if kept is None else kept[index],
                )
                widened = options_with_terms(options, terms.tokens)
                beam_size = widened.beam_size if widened.beam_size > options.beam_size else None
                options = widened
            tokens = NO_TERMS if terms is None else terms.tokens
            progress = None if on_progress is None else Progress(on_progress)
            allowed = model.shortlist_columns(source.token_ids, direction)
            make = partial(
                Sentence, source_ids=source.token_ids, deadline=parameters.deadline, caller=parameters.caller
            )
            sentence = make(
                plan=SearchPlan(options, prompt[0], prefix, source.token_ids, tokens),
                allowed_tokens=allowed if terms is None else with_tokens(allowed, tokens),
                progress=progress,
                counts_as_text=firsts is None or firsts[index],
            )
            sentences.append(sentence)
            future = sentence.future
            if places and not prefix and any(tokens.alternatives):
                free_sentence = make(
                    plan=SearchPlan(text_options, prompt[0], (), source.token_ids),
                    allowed_tokens=allowed,
                    counts_as_text=False,
                )
                sentences.append(free_sentence)
                free = free_sentence.future
        jobs.append(Job(source, prompt, future, progress, terms, beam_size, free))
    if on_progress is None:
        # Sentences of similar lengths are encoded together without padding, and the shortest run last.
        sentences.sort(key=lambda sentence: len(sentence.source_ids), reverse=True)
    engine.submit(sentences)
    deadline, attending = Deadline(parameters.deadline), None
    if parameters.attends_to_hypotheses:
        attending = HypothesisAttention(
            model=model,
            direction=direction,
            options=text_options,
            attention=parameters.attention,
            deadline=deadline,
        )
    placing = None
    if places:
        placing = TermPlacing(
            aligner=model.teacher_forcing,
            tokenizer=model.tokenizer,
            terms=model.term_tokenizer,
            inputs=inputs,
            direction=direction,
            options=text_options,
            deadline=deadline,
        )
    return PendingSentences(
        manifest=model.manifest,
        weights=model.weights,
        tokenizer=model.tokenizer,
        inputs=inputs,
        direction=direction,
        source_confidence=parameters.source_confidence,
        jobs=jobs,
        options=text_options,
        attending=attending,
        placing=placing,
        deadline=deadline,
        started=started,
    )
