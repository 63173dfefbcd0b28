"""Translation of annotated texts: tokenized sentences go into the engine, and are joined with all around them."""

import math
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple, Protocol

from jumok_proto.errors import AttentionUnavailableError, InvalidArgumentError
from jumok_proto.results import AppliedTerm, FinishReason, Hypothesis, TextSpan, Timings, Translation
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.sentence import Decoded, Future
from jumok_serve.interrupts import check
from jumok_serve.manifest.languages import Direction
from jumok_serve.search.options import DecodingOptions
from jumok_serve.search.search import normalized_score
from jumok_serve.tasks.model import TaskModel, TranslationParameters
from jumok_serve.tasks.stand_ins import Hole
from jumok_serve.tasks.teacher_forcing import TeacherForcing
from jumok_serve.tasks.terms import Kept
from jumok_serve.tasks.translation import PendingSentences, check_parameters, submit_sources
from jumok_serve.tasks.word_alignment import Pair, Place, TokenAlignment, align_words, token_places
from jumok_serve.text.holes import without
from jumok_serve.text.markup.parser import Block, Document, parse
from jumok_serve.text.markup.placing import WrittenForm, needs_alignment, write_block
from jumok_serve.text.messages import gaps
from jumok_serve.text.placeholders import MARK, Placeholder, PlaceholderReader, ReadText
from jumok_serve.text.sentence_splitting import (
    MAX_SENTENCES,
    SplitText,
    cut,
    joint,
    sentence_space,
    split,
    too_many_sentences,
)
from jumok_serve.text.splicing import PERCENT_SIGNS, Spliced, Splicing
from jumok_serve.tokenizers.input_processor import EMPTY_SOURCE, InputProcessor, Source, check_count, check_text


@dataclass(frozen=True, slots=True)
class Sentences:
    """The sentences of a plain text or a block, or parts of them.

    Attributes:
        sources: tokenized sentences, [n], at least one.
        places: first index of each in the text, and the index after it, [n].
        kept: text before, between and after their translations, [n + 1].
        cut: sentences that were too long and are several sources.
        read: the text.
        placeholders: those of each sentence, with places in it, [n].
        branches: sentences of the other branches of a message.
    """

    sources: tuple[Source, ...]
    places: tuple[tuple[int, int], ...]
    kept: tuple[str, ...]
    cut: tuple[str, ...]
    read: ReadText
    placeholders: tuple[tuple[Placeholder, ...], ...]
    branches: "tuple[Sentences, ...]" = ()

    @property
    def all_sources(self) -> list[Source]:
        """The sources, and those of the branches."""
        return [*self.sources, *(source for branch in self.branches for source in branch.sources)]

    @property
    def all_kept(self) -> list[list[Kept]]:
        """Places of the placeholders of all sources."""
        found = (one for part in (self, *self.branches) for one in part.placeholders)
        return [[one.place for one in of_source] for of_source in found]

    def text_of(self, number: int) -> str:
        """Return a sentence as it is read."""
        return self.read.text[slice(*self.places[number])]

    def begun(self, translations: Sequence[str]) -> str:
        """Join the first sentences' translations with the text before and between them."""
        return "".join(part for pair in zip(self.kept, translations, strict=False) for part in pair)

    def joined(self, translations: Sequence[str]) -> str:
        """Join all sentences' translations with the text around them."""
        return self.begun(translations) + self.kept[-1]


@dataclass(frozen=True, slots=True)
class AnnotatedText:
    """A text to translate.

    Attributes:
        document: blocks with their spans, and what stands between them; None: plain text.
        blocks: sentences of each block; plain text is one block, and a document without any has an empty one.
    """

    document: Document | None
    blocks: Sequence[Sentences]

    @property
    def num_sources(self) -> int:
        """Number of the sources of all blocks."""
        return sum(len(block.all_sources) for block in self.blocks)

    @property
    def spanned(self) -> Sequence[tuple[Block | None, Sentences]]:
        """Each block with its sentences; plain text, and a document without blocks, has one without a block."""
        blocks = () if self.document is None else self.document.blocks
        return list(zip(blocks or (None,), self.blocks, strict=True))


class Pending(Protocol):
    """Translations that are worked on."""

    @property
    def futures(self) -> Sequence[Future[Any]]:
        """One future per sentence; cancelling one frees its rows within a step."""

    @property
    def has_placeholders(self) -> bool:
        """True if `collect` may align placeholders, which takes time."""

    def cancel(self) -> None:
        """Cancel all sentences and attention that are not done."""

    def stable_texts(self) -> list[str]:
        """Return the beginning of each translation that further tokens cannot change.

        Without `on_progress`, it is empty until the text is decoded; with markup it is empty, as tags have their places
        only at the end. A sentence with placeholders is added when it is complete and has all of them.
        """

    def collect(self) -> list[Translation]:
        """Wait for the translations and return them in the order of the texts.

        If one text fails, the others are cancelled.

        Raises:
            DeadlineExceededError: the deadline has passed.
            UnavailableError: the model has failed or was stopped.
            BundleNotLoadedError: the weights were overwritten.
            CancelledError: of `concurrent.futures`: a text was cancelled.
        """

    def timings(self) -> Timings:
        """Wait for all sentences; return the longest queue, encode and decode times.

        The total ends at the first call.
        """


class Translated(NamedTuple):
    """Translations of a request in the order of its texts, and their longest times."""

    translations: list[Translation]
    timings: Timings


@dataclass(eq=False)
class PendingTexts:
    """Texts whose sentences are in the engine; see `Pending`.

    Attributes:
        sentences: the sentences of all texts.
        aligner: aligns words of texts with tags and placeholders; None: there are none, or the model has no aligner.
        prefixes: beginnings of the translations, one of each text.
        keeps_percentages: see `Splicing`.
        length_penalty: exponent of the length that a sum of scores is divided by.
    """

    sentences: PendingSentences
    texts: Sequence[AnnotatedText]
    aligner: TeacherForcing | None
    prefixes: Sequence[str]
    keeps_percentages: bool
    length_penalty: float

    def __post_init__(self) -> None:
        self.cancel, self.timings = self.sentences.cancel, self.sentences.timings
        self._firsts = [0, *accumulate(text.num_sources for text in self.texts)]
        self._decoded: list[list[str]] = [[] for _ in self.texts]  # finished sentences of each text

    @property
    def futures(self) -> tuple[Future[Decoded], ...]:
        """See `Pending`."""
        return self.sentences.futures

    @property
    def has_placeholders(self) -> bool:
        """See `Pending`."""
        return any(self._is_spliced(part, number) for *_, part in self._blocks() for number in range(len(part.sources)))

    def _is_spliced(self, part: Sentences, number: int) -> bool:
        """True if a sentence's translation may be changed after the search."""
        has_sign = self.keeps_percentages and not PERCENT_SIGNS.isdisjoint(part.text_of(number))
        return has_sign or bool(part.placeholders[number])

    def by_text(self) -> "list[PendingTexts]":
        """Return the translation of each text alone."""
        return [
            replace(
                self,
                sentences=self.sentences.part(*self._firsts[index : index + 2]),
                texts=[text],
                prefixes=self.prefixes[index : index + 1],
            )
            for index, text in enumerate(self.texts)
        ]

    def stable_texts(self) -> list[str]:
        """See `Pending`."""
        return [
            "" if text.document is not None or text.blocks[0].branches else self._stable_text(index)
            for index, text in enumerate(self.texts)
        ]

    def _stable_text(self, index: int) -> str:
        text, first, decoded = self.texts[index].blocks[0], self._firsts[index], self._decoded[index]
        while len(decoded) < len(text.sources) and self.sentences.is_final(first + len(decoded)):
            stable = self.sentences.stable_text(first + len(decoded))
            if self._is_spliced(text, len(decoded)):
                splicing = self._splicing(index, text, len(decoded), stable)
                if not splicing.complete:
                    break
                stable = splicing.spliced(None).text
            decoded.append(stable)
        if len(decoded) == len(text.sources):
            return text.joined(decoded)
        if self._is_spliced(text, len(decoded)):
            return text.begun(decoded)
        return text.begun([*decoded, self.sentences.stable_text(first + len(decoded))])

    def _splicing(self, index: int, sentences: Sentences, number: int, target: str) -> Splicing:
        """Return the splicing of a sentence's translation.

        Args:
            index: index of the text.
            number: index of the sentence in the block.
        """
        text = sentences.text_of(number)
        prefix = self.prefixes[index].rstrip() if sentences is self.texts[index].blocks[0] and number == 0 else ""
        if not sentences.sources[number].token_ids:  # nothing but placeholders
            target = text if text.startswith(prefix) else f"{prefix} {text}"
        begin = len(prefix) if target.startswith(prefix) else 0
        return Splicing(text, sentences.placeholders[number], target, begin, percentages=self.keeps_percentages)

    def collect(self) -> list[Translation]:
        """See `Pending`."""
        translations = self.sentences.collect()
        splicings = self._splicings(translations)
        pairs = {} if self.aligner is None else self._aligned_words(self.aligner, translations, splicings)
        for (index, rank), splicing in splicings.items():
            self.sentences.deadline.check("placeholders were placed")
            spliced = splicing.spliced(pairs.get((index, rank)))
            hypotheses = list(translations[index].hypotheses)
            hypotheses[rank] = with_placeholders(hypotheses[rank], spliced)
            translations[index] = replace(translations[index], hypotheses=tuple(hypotheses))
            if (index, rank) in pairs:
                pairs[index, rank] = spliced.words(pairs[index, rank])
        return [
            self._joined(text, translations, pairs, first)
            for text, first in zip(self.texts, self._firsts, strict=False)
        ]

    def _blocks(self) -> Iterator[tuple[int, int, Block | None, Sentences]]:
        """Yield all blocks and branches with the indices of their text and of their first source."""
        first = 0
        for index, text in enumerate(self.texts):
            for block, sentences in text.spanned:
                for part in (sentences, *sentences.branches):
                    yield index, first, block, part
                    first += len(part.sources)

    def _splicings(self, translations: Sequence[Translation]) -> dict[tuple[int, int], Splicing]:
        """Return the splicings of all hypotheses of sentences with placeholders, by index of the sentence and rank."""
        return {
            (first + number, rank): self._splicing(index, part, number, one.text)
            for index, first, _, part in self._blocks()
            for number in range(len(part.sources))
            if self._is_spliced(part, number)
            for rank, one in enumerate(translations[first + number].hypotheses)
        }

    def _aligned_words(
        self,
        aligner: TeacherForcing,
        translations: Sequence[Translation],
        splicings: Mapping[tuple[int, int], Splicing],
    ) -> dict[tuple[int, int], list[Pair]]:
        """Align the words of hypotheses that tags or placeholders are to be placed in."""
        inside = dict[tuple[int, int], str]()
        for _, first, block, part in self._blocks():
            tagged = block is not None and needs_alignment(block)
            for number in range(len(part.sources)):
                for rank in range(len(translations[first + number].hypotheses)):
                    key = first + number, rank
                    if tagged or (key in splicings and not splicings[key].complete):
                        inside[key] = part.text_of(number)
        attended = self.sentences.attended(list(inside), aligner)
        alignments = []
        for key, one in attended.items():
            self.sentences.deadline.check("words were aligned")
            index, rank = key
            source, target = inside[key], translations[index].hypotheses[rank].text
            columns, rows = token_places(one.source_tokens, source), token_places(one.target_tokens, target)
            alignments.append(TokenAlignment(one.weights, source, columns, target, rows))
        return dict(zip(attended, align_words(alignments, self.sentences.deadline.check), strict=True))

    def _joined(
        self,
        text: AnnotatedText,
        translations: Sequence[Translation],
        pairs: Mapping[tuple[int, int], list[Pair]],
        first: int,
    ) -> Translation:
        """Make a text's translation of those of its sentences.

        Args:
            translations: of the sentences of all texts.
            pairs: aligned words by the index of a sentence and the rank; a sentence without any has no tags inside.
            first: index of the text's first sentence.
        """
        blocks, written = list[Translation](), dict[Block, str]()
        for block, sentences in text.spanned:
            after = first + len(sentences.sources)
            of_block = translations[first:after]
            joined = self._joined_sentences(sentences, of_block)
            if sentences.branches:
                joined = self._message(sentences, joined, translations, after)
                if block is not None:
                    written[block] = block.escape(joined.text)
            elif block is not None:
                self.sentences.deadline.check("tags were placed")
                aligned = [
                    None if (found := pairs.get((index, 0))) is None else _with_terms(found, translations[index])
                    for index in range(first, after)
                ]
                texts, placed = (
                    [one.text for one in of_block],
                    _placed(block.read or ReadText(""), joined.hypotheses[0]),
                )
                forms = [WrittenForm(*span, block.written[number]) for span, number in placed]
                written[block] = write_block(block, sentences.places, sentences.kept, texts, aligned, forms=forms)
            elif sentences.read.placeholders:
                joined = _in_given(joined, sentences.read)
            blocks.append(joined)
            first += len(sentences.all_sources)
        if text.document is None:
            return blocks[0]
        terms = _without_places(block.hypotheses[0] for block in blocks)
        return self._as_one(blocks, text.document.written(written.__getitem__), terms=terms)

    def _message(
        self, sentences: Sentences, whole: Translation, translations: Sequence[Translation], first: int
    ) -> Translation:
        """Make a message's translation of those of its branches; tokens and scores are those of the first one.

        Args:
            whole: translation of the first branch.
            first: index of the source after that branch's.
        """
        message = sentences.read.message
        assert message is not None
        branches, others, parts = list[Translation](), list[Hypothesis](), list[list[str | Hole]]()
        for branch in sentences.branches:
            after = first + len(branch.sources)
            branches.append(self._joined_sentences(branch, translations[first:after]))
            others.append(branches[-1].hypotheses[0])
            parts.append(_parts(branch.read, others[-1]))
            first = after
        return replace(
            whole,
            hypotheses=tuple(
                replace(
                    one,
                    text=message.written([_parts(sentences.read, one), *parts]),
                    terms=_without_places((one, *others)),
                )
                for one in whole.hypotheses
            ),
            source_truncated=any(one.source_truncated for one in (whole, *branches)),
            cut_sentences=tuple(sentence for one in (whole, *branches) for sentence in one.cut_sentences),
        )

    def _joined_sentences(self, text: Sentences, parts: Sequence[Translation]) -> Translation:
        """Make a block's translation; a block that is one sentence has the sentence's."""
        if len(parts) == 1 and not text.cut and not any(text.kept):
            return parts[0]
        terms = list[AppliedTerm]()
        target = 0
        for kept, (source, _), part in zip(text.kept, text.places, parts, strict=False):
            target += len(kept)
            terms += [term.moved(source, target) for term in part.hypotheses[0].terms]
            target += len(part.text)
        joined = self._as_one(parts, text.joined([part.text for part in parts]), terms=tuple(terms))
        return replace(joined, cut_sentences=text.cut)

    def _as_one(self, parts: Sequence[Translation], text: str, *, terms: tuple[AppliedTerm, ...]) -> Translation:
        """Make one translation with a text of those of its parts."""
        best = [part.hypotheses[0] for part in parts]
        token_scores = tuple(score for one in best for score in one.token_scores)
        ended = all(one.finish_reason is FinishReason.EOS for one in best)
        hypothesis = Hypothesis(
            text=text,
            score=normalized_score(math.fsum(token_scores), len(token_scores), self.length_penalty),
            tokens=tuple(token for one in best for token in one.tokens),
            token_ids=tuple(token for one in best for token in one.token_ids),
            token_scores=token_scores,
            finish_reason=FinishReason.EOS if ended else FinishReason.LENGTH,
            terms=terms,
        )
        return replace(
            parts[0],
            hypotheses=(hypothesis,),
            source_token_count=sum(part.source_token_count for part in parts),
            source_truncated=any(part.source_truncated for part in parts),
            source_unknown_count=sum(part.source_unknown_count for part in parts),
            cut_sentences=tuple(sentence for part in parts for sentence in part.cut_sentences),
            beam_size=max((part.beam_size or 0 for part in parts), default=0) or None,
        )


def _without_places(hypotheses: Iterable[Hypothesis]) -> tuple[AppliedTerm, ...]:
    """Return the terms of parts of a text, whose places are of the parts."""
    return tuple(replace(term, source_span=None, target_span=None) for one in hypotheses for term in one.terms)


def with_placeholders(hypothesis: Hypothesis, spliced: Spliced) -> Hypothesis:
    """Return a hypothesis with the placeholders of its text, and the terms in the order of the text."""
    terms = list[AppliedTerm]()
    for term in hypothesis.terms:
        span = term.target_span
        if span is not None:
            moved = span.moved(spliced.moved(span.first) - span.first)
            same = spliced.text[moved.first : moved.after] == hypothesis.text[span.first : span.after]
            term = replace(term, target_span=moved if same else None)  # noqa: PLW2901
        terms.append(term)
    for number, (one, (first, after)) in enumerate(zip(spliced.placeholders, spliced.places, strict=True)):
        terms.append(
            AppliedTerm(
                source=one.content,
                targets=(one.content,),
                source_span=TextSpan(one.start, one.end),
                satisfied=True,
                target_span=TextSpan(first, after),
                spliced=one.spliced or number in spliced.missing,
            )
        )
    terms.sort(key=lambda term: -1 if term.source_span is None else term.source_span.first)
    return replace(hypothesis, text=spliced.text, terms=tuple(terms))


def _with_terms(pairs: Sequence[Pair], translation: Translation) -> list[Pair]:
    """Return aligned words. Those of a term are one, so that no tag divides it; no other word has its source words."""
    sources, terms, taken = sorted(pair.source for pair in pairs), list[Pair](), set[int]()
    for term in translation.hypotheses[0].terms:
        if term.target_span is not None and (span := term.source_span) is not None:
            last = sources[bisect_left(sources, (span.after,)) - 1] if sources else (0, 0)
            # In the text tags may divide it.
            source = last if span.first < last[0] < span.after else (span.first, span.after)
            terms.append(Pair((term.target_span.first, term.target_span.after), source))
            taken.update(range(span.first, span.after))
    terms.sort()
    ends = [term.place[1] for term in terms]

    def is_outside(place: Place) -> bool:
        number = bisect_right(ends, place[0])
        return number == len(terms) or place[1] <= terms[number].place[0]

    others = (Pair(pair.place, (0, 0)) if pair.source[0] in taken else pair for pair in pairs if is_outside(pair.place))
    return sorted([*others, *terms])


def _placed(read: ReadText, hypothesis: Hypothesis) -> list[tuple[TextSpan, int]]:
    """Return the places of placeholders in a translation, in their order, with their numbers."""
    numbers = {one.start: number for number, one in enumerate(read.placeholders)}
    return sorted(
        (term.target_span, numbers[term.source_span.first])
        for term in hypothesis.terms
        if term.source_span is not None and term.target_span is not None and term.source_span.first in numbers
    )


def _parts(read: ReadText, hypothesis: Hypothesis) -> list[str | Hole]:
    """Return the translation of a message's branch as texts and placeholders."""
    parts, done = list[str | Hole](), 0
    for span, number in _placed(read, hypothesis):
        one = read.placeholders[number]
        parts += (hypothesis.text[done : span.first], *([one.content] if one.holes[0].content else one.holes))
        done = span.after
    return [*parts, hypothesis.text[done:]]


def _in_given(translation: Translation, read: ReadText) -> Translation:
    """Return a translation whose terms have their places in the text as given."""

    def moved(term: AppliedTerm) -> AppliedTerm:
        span = term.source_span
        return term if span is None else replace(term, source_span=TextSpan(*map(read.given_place, span)))

    hypotheses = (replace(one, terms=tuple(map(moved, one.terms))) for one in translation.hypotheses)
    return replace(translation, hypotheses=tuple(hypotheses))


def submit_texts(
    model: TaskModel,
    engine: Engine,
    texts: Sequence[str],
    parameters: TranslationParameters,
    *,
    target_prefixes: Sequence[str | None] | None = None,
    on_progress: Callable[[], None] | None = None,
) -> PendingTexts:
    """Queue the sentences of texts; see `Translator.submit`."""
    started = time.monotonic()
    reader = None
    if parameters.placeholders is not None or parameters.markup is not None:
        reader = PlaceholderReader(parameters.placeholders, model.stand_ins(model.direction(parameters)))
    documents: Sequence[Document | None] = [None] * len(texts)
    if parameters.markup is not None:
        if any(target_prefixes or ()):
            raise InvalidArgumentError(
                "target prefixes have no tags: leave them out with markup", field="target_prefixes"
            )
        reason, attention = "tags are put into the best translation", "a text without tags: leave it out with markup"
        _check_options(parameters, "with markup", reason, attention)
        target_prefixes = None
        documents = parsed = [read_document(text, index, parameters, reader) for index, text in enumerate(texts)]
        inside = any(needs_alignment(block) for document in parsed for block in document.blocks)
        if inside and not model.teacher_forcing.can_align:
            raise AttentionUnavailableError.of(model.manifest.name)
    if parameters.in_parts:
        reason = "the text is made of the best of each sentence"
        attention = "one sentence: split texts yourself, or set split_sentences to False"
        _check_options(parameters, "if sentences are split", reason, attention)
        parameters = replace(parameters, options=_with_one_hypothesis(parameters.options))
    direction, options = check_parameters(model, parameters)
    annotated = _annotated(model.inputs, engine, direction, parameters, texts=texts, documents=documents, reader=reader)
    counts = [text.num_sources for text in annotated]
    if sum(counts) > max(MAX_SENTENCES, len(texts)):
        raise too_many_sentences()
    prefixes = None
    if target_prefixes is not None:  # only first sentences have one
        check_count("target_prefixes", target_prefixes, len(texts))
        target_prefixes = [
            _read_prefix(prefix, text.blocks[0]) for prefix, text in zip(target_prefixes, annotated, strict=True)
        ]
        zipped = zip(target_prefixes, counts, strict=True)
        prefixes = [one for prefix, count in zipped for one in (prefix, *[None] * (count - 1))]
    blocks = [block for text in annotated for block in text.blocks]
    with blamed_texts(partial(text_of_part, counts)):
        sentences = submit_sources(
            model,
            engine,
            [source for block in blocks for source in block.all_sources],
            parameters,
            target_prefixes=prefixes,
            on_progress=on_progress,
            firsts=[number == 0 for count in counts for number in range(count)],
            kept=[place for block in blocks for place in block.all_kept] if reader else None,
            started=started,
        )
    aligns = model.teacher_forcing.can_align and reader is not None
    return PendingTexts(
        sentences,
        annotated,
        model.teacher_forcing if aligns else None,
        [prefix or "" for prefix in target_prefixes or [None] * len(texts)],
        parameters.placeholders is not None and parameters.placeholders.keeps_percentages,
        options.length_penalty,
    )


def _read_prefix(prefix: str | None, sentences: Sentences) -> str | None:
    """Return the beginning of a translation with what the model reads in place of its first sentence's placeholders."""
    if prefix:
        text = sentences.text_of(0)
        for one in sentences.placeholders[0]:
            prefix = prefix.replace(one.content, text[one.start : one.end], 1)
    return prefix


def _annotated(
    inputs: InputProcessor,
    engine: Engine,
    direction: Direction,
    parameters: TranslationParameters,
    *,
    texts: Sequence[str],
    documents: Sequence[Document | None],
    reader: PlaceholderReader | None,
) -> list[AnnotatedText]:
    """Split and tokenize texts, or the blocks of their documents."""
    of_texts = [
        [ReadText(text) if reader is None or not is_text(text) else reader.read(text)]
        if document is None
        else [block.read or ReadText(block.text) for block in document.blocks] or [ReadText("")]
        for text, document in zip(texts, documents, strict=True)
    ]
    blocks = [part for of_text in of_texts for block in of_text for part in (block, *block.branches)]
    counts = [sum(1 + len(block.branches) for block in of_text) for of_text in of_texts]
    with blamed_texts(partial(text_of_part, counts)):
        split_blocks = split_all(blocks, direction, parameters)
    with_content = sum(is_text(one) and bool(one.strip()) for block in split_blocks for one in block.sentences)
    engine.check_room(with_content, parameters.caller)
    sizes = [len(block.sentences) for block in split_blocks]
    with blamed_texts(lambda part: text_of_part(counts, text_of_part(sizes, part))):
        read = iter(read_sentences(inputs, list(zip(blocks, split_blocks, strict=True)), direction, parameters))
    return [
        AnnotatedText(
            document, [replace(next(read), branches=tuple(islice(read, len(block.branches)))) for block in of_text]
        )
        for document, of_text in zip(documents, of_texts, strict=True)
    ]


def read_document(
    text: str, index: int, parameters: TranslationParameters, reader: PlaceholderReader | None
) -> Document:
    """Parse a text with markup.

    Args:
        index: of the text in its request.
        reader: finds placeholders; None: they are text.

    Raises:
        InvalidArgumentError: it cannot be used.
        DeadlineExceededError: the deadline has passed.
    """
    check(parameters.deadline, "markup was read")
    field = f"contents[{index}]"
    check_text(text, field)
    try:
        return parse(text, parameters.markup or "html", parameters.markup_rules, reader)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(error), field=field) from error


def split_all(texts: Sequence[ReadText], direction: Direction, parameters: TranslationParameters) -> list[SplitText]:
    """Split texts if that is wanted; an unusable one is not split, as reading it raises the error that says why.

    No placeholder is divided, or outside of all sentences.

    Raises:
        InvalidArgumentError: there are too many sentences.
        DeadlineExceededError: the deadline has passed.
    """
    split_texts: list[SplitText] = []
    left = MAX_SENTENCES
    for index, read in enumerate(texts):
        text = read.text
        found = SplitText((text,), ("", ""))
        if parameters.split_sentences and is_text(text):
            check(parameters.deadline, "texts were split into sentences")
            try:
                found = split(text, direction.source, max_sentences=left, deadline=parameters.deadline)
            except InvalidArgumentError as error:
                if left == MAX_SENTENCES:  # too many of this text alone
                    error.field = f"contents[{index}]"
                raise
            if read.placeholders:
                found = _around(found, read)
        split_texts.append(found)
        left -= len(found.sentences)
    return split_texts


def _around(found: SplitText, read: ReadText) -> SplitText:
    """Join sentences around placeholders and beside marks of direction; placeholders between them are sentences too."""
    places, end = [(one.start, one.end) for one in read.placeholders], len(found.kept[0])
    for sentence, kept in zip(found.sentences, found.kept[1:], strict=True):
        if sentence:
            places.append((end, end + len(sentence)))
        end += len(sentence) + len(kept)
    joined = list[Place]()
    for first, after in sorted(places):
        if joined and first < joined[-1][1] + (MARK in read.text[first - 1 : first + 1]):
            joined[-1] = joined[-1][0], max(after, joined[-1][1])
        else:
            joined.append((first, after))
    return SplitText(
        tuple(read.text[first:after] for first, after in joined),
        tuple(read.text[first:after] for first, after in gaps(joined, 0, end)),
    )


def read_sentences(
    inputs: InputProcessor,
    texts: Sequence[tuple[ReadText, SplitText]],
    direction: Direction,
    parameters: TranslationParameters,
) -> list[Sentences]:
    """Tokenize the sentences of texts, cut long ones, and keep unreadable ones.

    Raises:
        InvalidArgumentError: a sentence cannot be used; the index of its field counts the sentences of all texts.
        DeadlineExceededError: the deadline has passed.
    """

    def read(sentences: Sequence[str]) -> list[Source]:
        return inputs.sources(
            sentences,
            direction,
            truncate=parameters.truncate or parameters.cuts,
            deadline=parameters.deadline,
            keep_unknown=parameters.attention or parameters.markup is not None,
            keep_given=parameters.keeps_texts,
        )

    def is_copied(sentence: str, source: Source, placeholders: Sequence[Placeholder]) -> bool:
        if placeholders:
            sentence = without(sentence, (one.place for one in placeholders))
            if not any(map(str.isalnum, sentence)):
                return True
            source = read([sentence])[0] if parameters.copy_unreadable else source
        return parameters.copy_unreadable and not inputs.is_readable(sentence, source, direction)

    sources = iter(read([sentence for _, text in texts for sentence in text.sentences]))
    source_spaces, space = bool(sentence_space(direction.source)), sentence_space(direction.target)
    found = []
    for whole, text in texts:
        parts, places, cut_sentences = list[Source](), list[tuple[int, int]](), list[str]()
        of_target = text.for_target(direction.target).kept
        kept, end = [of_target[0]], len(text.kept[0])
        for sentence, after, skipped in zip(text.sentences, of_target[1:], text.kept[1:], strict=True):
            source, start = next(sources), end
            end += len(sentence) + len(skipped)
            placeholders = whole.within(start, start + len(sentence))
            pieces = [sentence]
            if is_copied(sentence, source, placeholders):
                if not placeholders:
                    kept[-1] += sentence + after
                    continue
                parts.append(EMPTY_SOURCE)
            elif source.truncated and parameters.cuts:
                cut_sentences.append(whole.given_part(start, start + len(sentence)))
                pieces = cut(
                    sentence, lambda piece: not read([piece])[0].truncated, [one.place for one in placeholders]
                )
                parts += read([piece.rstrip() for piece in pieces])
                kept += [joint(*pair, source_spaces=source_spaces, space=space) for pair in pairwise(pieces)]
            else:
                parts.append(source)
            kept.append(after)
            for piece in pieces:
                places.append((start, start + len(piece if parts[-1] is EMPTY_SOURCE else piece.rstrip())))
                start += len(piece)
        if not parts:
            parts, places, kept = [EMPTY_SOURCE], [(end, end)], [*kept, ""]
        found.append(
            Sentences(
                tuple(parts),
                tuple(places),
                tuple(kept),
                tuple(cut_sentences),
                whole,
                tuple(whole.within(*place) for place in places),
            )
        )
    return found


def is_text(text: object) -> bool:
    """True for a string that is Unicode."""
    try:
        return isinstance(text, str) and bool(text.encode("utf-8") or True)
    except UnicodeEncodeError:
        return False


def _check_options(parameters: TranslationParameters, condition: str, reason: str, attention: str) -> None:
    """Refuse what a translation that is made of several parts cannot have.

    Args:
        condition, reason: when and why there is one hypothesis.
        attention: what attention is of, and the way out.
    """
    if (hypotheses := parameters.options.num_hypotheses or 1) > 1:
        raise InvalidArgumentError(
            f"num_hypotheses must be 1 {condition}, got {hypotheses}: {reason}", field="options.num_hypotheses"
        )
    if parameters.attention:
        raise InvalidArgumentError(f"attention is that of {attention}", field="attention")


@lru_cache(16)
def _with_one_hypothesis(options: DecodingOptions) -> DecodingOptions:
    return replace(options, num_hypotheses=1)


@contextmanager
def blamed_texts(index_of: Callable[[int], int]) -> Iterator[None]:
    """Give errors of a part the field of its text.

    Args:
        index_of: returns the index of a part's text.
    """
    try:
        yield
    except InvalidArgumentError as error:
        blamed = re.fullmatch(r"(contents|target_prefixes)\[(\d+)\]", error.field)
        if blamed is None:
            raise
        field = f"{blamed[1]}[{index_of(int(blamed[2]))}]"
        if field == error.field:
            raise
        raise InvalidArgumentError(str(error).replace(error.field, field), field=field) from error


def text_of_part(counts: Sequence[int], part: int) -> int:
    """Return the index of a part's text, from the number of parts of each text."""
    return bisect_right(list(accumulate(counts)), part)
