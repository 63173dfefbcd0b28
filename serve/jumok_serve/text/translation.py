"""Translation of annotated texts: tokenized sentences go into the engine, and are joined with all around them."""

import math
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, Protocol

from jumok_proto.errors import AttentionUnavailableError, InvalidArgumentError
from jumok_proto.results import AppliedTerm, FinishReason, Hypothesis, Timings, Translation
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.sentence import Decoded, Future
from jumok_serve.interrupts import check
from jumok_serve.manifest.languages import Direction
from jumok_serve.search.options import DecodingOptions
from jumok_serve.search.search import normalized_score
from jumok_serve.tasks.model import TaskModel, TranslationParameters
from jumok_serve.tasks.teacher_forcing import TeacherForcing
from jumok_serve.tasks.translation import PendingSentences, check_parameters, submit_sources
from jumok_serve.tasks.word_alignment import TokenAlignment, align_words, token_places
from jumok_serve.text.markup.parser import Block, Document, parse
from jumok_serve.text.markup.placing import Pair, needs_alignment, write_block
from jumok_serve.text.sentence_splitting import (
    MAX_SENTENCES,
    SplitText,
    cut,
    joint,
    sentence_space,
    split,
    too_many_sentences,
)
from jumok_serve.tokenizers.input_processor import EMPTY_SOURCE, InputProcessor, Source, check_count, check_text


@dataclass(frozen=True, slots=True)
class Sentences:
    """The sentences of a plain text or a block, or parts of them.

    Attributes:
        sources: tokenized sentences, [n], at least one.
        places: first index of each in the text, and the index after it, [n].
        kept: text before, between and after their translations, [n + 1].
        cut: sentences that were too long and are several sources.
    """

    sources: tuple[Source, ...]
    places: tuple[tuple[int, int], ...]
    kept: tuple[str, ...]
    cut: tuple[str, ...] = ()

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
        return sum(len(block.sources) for block in self.blocks)

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

    def cancel(self) -> None:
        """Cancel all sentences and attention that are not done."""

    def stable_texts(self) -> list[str]:
        """Return the beginning of each translation that further tokens cannot change.

        Without `on_progress`, it is empty until the text is decoded; with markup it is empty, as tags have their places
        only at the end.
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


class PendingOfModel(Pending, Protocol):
    """Translations of one model."""

    def by_text(self) -> Sequence[Pending]:
        """Return the translation of each text alone."""


class Translated(NamedTuple):
    """Translations of a request in the order of its texts, and their longest times."""

    translations: list[Translation]
    timings: Timings


class PendingTexts:
    """Texts whose sentences are in the engine; see `PendingOfModel`.

    Args:
        sentences: the sentences of all texts.
        aligner: aligns words of texts with tags; None: there are none.
        length_penalty: exponent of the length that a sum of scores is divided by.
    """

    def __init__(
        self,
        sentences: PendingSentences,
        texts: Sequence[AnnotatedText],
        aligner: TeacherForcing | None,
        *,
        length_penalty: float,
    ) -> None:
        self._sentences = sentences
        self._texts = texts
        self._aligner = aligner
        self._length_penalty = length_penalty
        self._firsts = [0, *accumulate(text.num_sources for text in texts)]
        self._decoded: list[list[str]] = [[] for _ in texts]  # finished sentences of each text
        self.cancel = sentences.cancel
        self.timings = sentences.timings

    @property
    def futures(self) -> tuple[Future[Decoded], ...]:
        """See `Pending`."""
        return self._sentences.futures

    def by_text(self) -> "list[PendingTexts]":
        """See `PendingOfModel`."""
        return [
            PendingTexts(
                self._sentences.part(*self._firsts[index : index + 2]),
                [text],
                self._aligner,
                length_penalty=self._length_penalty,
            )
            for index, text in enumerate(self._texts)
        ]

    def stable_texts(self) -> list[str]:
        """See `Pending`."""
        return [
            "" if text.document is not None else self._stable_text(text.blocks[0], first, decoded)
            for text, first, decoded in zip(self._texts, self._firsts, self._decoded, strict=False)
        ]

    def _stable_text(self, text: Sentences, first: int, decoded: list[str]) -> str:
        while len(decoded) < len(text.sources) and self._sentences.is_final(first + len(decoded)):
            decoded.append(self._sentences.stable_text(first + len(decoded)))
        if len(decoded) == len(text.sources):
            return text.joined(decoded)
        return text.begun([*decoded, self._sentences.stable_text(first + len(decoded))])

    def collect(self) -> list[Translation]:
        """See `Pending`."""
        translations = self._sentences.collect()
        pairs = {} if self._aligner is None else self._aligned_words(self._aligner, translations)
        return [
            self._joined(text, translations, pairs, first)
            for text, first in zip(self._texts, self._firsts, strict=False)
        ]

    def _aligned_words(self, aligner: TeacherForcing, translations: Sequence[Translation]) -> dict[int, list[Pair]]:
        """Align the words of sentences that tags stand in, by the index of the sentence."""
        inside: dict[int, str] = {}
        index = 0
        for text in self._texts:
            for block, sentences in text.spanned:
                if block is not None and needs_alignment(block):
                    inside |= {
                        index + number: block.text[slice(*place)] for number, place in enumerate(sentences.places)
                    }
                index += len(sentences.sources)
        attended = self._sentences.attended(list(inside), aligner)
        alignments = []
        for index, one in attended.items():
            self._sentences.deadline.check("words were aligned")
            source, target = inside[index], translations[index].text
            alignments.append(
                TokenAlignment(
                    one.weights,
                    source,
                    token_places(one.source_tokens, source),
                    target,
                    token_places(one.target_tokens, target),
                )
            )
        return dict(zip(attended, align_words(alignments, self._sentences.deadline.check), strict=True))

    def _joined(
        self, text: AnnotatedText, translations: Sequence[Translation], pairs: dict[int, list[Pair]], first: int
    ) -> Translation:
        """Make a text's translation of those of its sentences.

        Args:
            translations: of the sentences of all texts.
            pairs: aligned words by the index of a sentence; a sentence without any has no tags inside.
            first: index of the text's first sentence.
        """
        blocks, written = list[Translation](), dict[Block, str]()
        for block, sentences in text.spanned:
            after = first + len(sentences.sources)
            of_block = translations[first:after]
            blocks.append(self._joined_sentences(sentences, of_block))
            if block is not None:
                self._sentences.deadline.check("tags were placed")
                aligned = [pairs.get(index) for index in range(first, after)]
                texts = [one.text for one in of_block]
                written[block] = write_block(block, sentences.places, sentences.kept, texts, aligned)
            first = after
        if text.document is None:
            return blocks[0]
        terms = (term for block in blocks for term in block.hypotheses[0].terms)
        return self._as_one(
            blocks,
            text.document.written(written.__getitem__),
            terms=tuple(replace(term, source_span=None, target_span=None) for term in terms),  # places are of blocks
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
            score=normalized_score(math.fsum(token_scores), len(token_scores), self._length_penalty),
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
    documents: Sequence[Document | None] = [None] * len(texts)
    if parameters.markup is not None:
        _check_markup(parameters, target_prefixes)
        target_prefixes = None
        documents = parsed = [read_document(text, index, parameters) for index, text in enumerate(texts)]
        inside = any(needs_alignment(block) for document in parsed for block in document.blocks)
        if inside and not model.teacher_forcing.can_align:
            raise AttentionUnavailableError.of(model.manifest.name)
    if parameters.in_parts:
        parameters = _one_hypothesis(parameters)
    direction, options = check_parameters(model, parameters)
    annotated = _annotated(model.inputs, engine, direction, parameters, texts=texts, documents=documents)
    counts = [text.num_sources for text in annotated]
    if parameters.in_parts and sum(counts) > MAX_SENTENCES:
        raise too_many_sentences()
    prefixes = None
    if target_prefixes is not None:  # only first sentences have one
        check_count("target_prefixes", target_prefixes, len(texts))
        prefixes = list[str | None]()
        for prefix, count in zip(target_prefixes, counts, strict=True):
            prefixes += [prefix, *[None] * (count - 1)]
    with blamed_texts(partial(text_of_part, counts)):
        sentences = submit_sources(
            model,
            engine,
            [source for text in annotated for block in text.blocks for source in block.sources],
            parameters,
            target_prefixes=prefixes,
            on_progress=on_progress,
            firsts=[number == 0 for count in counts for number in range(count)],
            started=started,
        )
    return PendingTexts(
        sentences,
        annotated,
        None if parameters.markup is None else model.teacher_forcing,
        length_penalty=options.length_penalty,
    )


def _annotated(
    inputs: InputProcessor,
    engine: Engine,
    direction: Direction,
    parameters: TranslationParameters,
    *,
    texts: Sequence[str],
    documents: Sequence[Document | None],
) -> list[AnnotatedText]:
    """Split and tokenize texts, or the blocks of their documents."""
    of_texts = [
        [text] if document is None else [block.text for block in document.blocks] or [""]
        for text, document in zip(texts, documents, strict=True)
    ]
    blocks, counts = list(chain.from_iterable(of_texts)), list(map(len, of_texts))
    with blamed_texts(partial(text_of_part, counts)):
        split_blocks = split_all(blocks, direction, parameters)
    with_content = sum(is_text(one) and bool(one.strip()) for block in split_blocks for one in block.sentences)
    engine.check_room(with_content, parameters.caller)
    sizes = [len(block.sentences) for block in split_blocks]
    with blamed_texts(lambda part: text_of_part(counts, text_of_part(sizes, part))):
        read = read_sentences(inputs, split_blocks, direction, parameters)
    return [
        AnnotatedText(document, read[end - count : end])
        for document, count, end in zip(documents, counts, accumulate(counts), strict=True)
    ]


def read_document(text: str, index: int, parameters: TranslationParameters) -> Document:
    """Parse a text with markup.

    Args:
        index: of the text in its request.

    Raises:
        InvalidArgumentError: it cannot be used.
        DeadlineExceededError: the deadline has passed.
    """
    check(parameters.deadline, "markup was read")
    field = f"contents[{index}]"
    check_text(text, field)
    try:
        return parse(text, parameters.markup or "html", parameters.markup_rules)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(error), field=field) from error


def split_all(texts: Sequence[str], direction: Direction, parameters: TranslationParameters) -> list[SplitText]:
    """Split texts if that is wanted; an unusable one is not split, as reading it raises the error that says why.

    Raises:
        InvalidArgumentError: there are too many sentences.
        DeadlineExceededError: the deadline has passed.
    """
    split_texts: list[SplitText] = []
    left = MAX_SENTENCES
    for index, text in enumerate(texts):
        found = SplitText((text,), ("", ""))
        if parameters.split_sentences and is_text(text):
            check(parameters.deadline, "texts were split into sentences")
            try:
                found = split(text, direction.source, max_sentences=left, deadline=parameters.deadline)
            except InvalidArgumentError as error:
                if left == MAX_SENTENCES:  # too many of this text alone
                    error.field = f"contents[{index}]"
                raise
        split_texts.append(found)
        left -= len(found.sentences)
    return split_texts


def read_sentences(
    inputs: InputProcessor, texts: Sequence[SplitText], direction: Direction, parameters: TranslationParameters
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

    sources = iter(read([sentence for text in texts for sentence in text.sentences]))
    source_spaces, space = bool(sentence_space(direction.source)), sentence_space(direction.target)
    found = []
    for text in texts:
        parts, places, cut_sentences = list[Source](), list[tuple[int, int]](), list[str]()
        of_target = text.for_target(direction.target).kept
        kept, end = [of_target[0]], len(text.kept[0])
        for sentence, after, skipped in zip(text.sentences, of_target[1:], text.kept[1:], strict=True):
            source, start = next(sources), end
            end += len(sentence) + len(skipped)
            if parameters.copy_unreadable and not inputs.is_readable(sentence, source, direction):
                kept[-1] += sentence + after
                continue
            pieces = [sentence]
            if source.truncated and parameters.cuts:
                cut_sentences.append(sentence)
                pieces = cut(sentence, lambda piece: not read([piece])[0].truncated)
                parts += read([piece.rstrip() for piece in pieces])
                kept += [joint(*pair, source_spaces=source_spaces, space=space) for pair in pairwise(pieces)]
            else:
                parts.append(source)
            kept.append(after)
            for piece in pieces:
                places.append((start, start + len(piece.rstrip())))
                start += len(piece)
        if not parts:
            parts, places, kept = [EMPTY_SOURCE], [(end, end)], [*kept, ""]
        found.append(Sentences(tuple(parts), tuple(places), tuple(kept), tuple(cut_sentences)))
    return found


def is_text(text: object) -> bool:
    """True for a string that is Unicode."""
    try:
        return isinstance(text, str) and bool(text.encode("utf-8") or True)
    except UnicodeEncodeError:
        return False


def _check_markup(parameters: TranslationParameters, target_prefixes: Sequence[str | None] | None) -> None:
    """Refuse what texts with markup cannot have."""
    if any(target_prefixes or ()):
        raise InvalidArgumentError("target prefixes have no tags: leave them out with markup", field="target_prefixes")
    if parameters.attention:
        raise InvalidArgumentError(
            "attention is that of a text without tags: leave it out with markup", field="attention"
        )
    if (hypotheses := parameters.options.num_hypotheses or 1) > 1:
        raise InvalidArgumentError(
            f"num_hypotheses must be 1 with markup, got {hypotheses}: tags are put into the best translation",
            field="options.num_hypotheses",
        )


def _one_hypothesis(parameters: TranslationParameters) -> TranslationParameters:
    """Return parameters with one hypothesis, whatever the model's default is.

    Raises:
        InvalidArgumentError: several are requested, or attention.
    """
    hypotheses = parameters.options.num_hypotheses or 1
    if hypotheses > 1:
        raise InvalidArgumentError(
            f"num_hypotheses must be 1 if sentences are split, got {hypotheses}: the text is made of the best of each "
            "sentence",
            field="options.num_hypotheses",
        )
    if parameters.attention:
        raise InvalidArgumentError(
            "attention is that of one sentence: split texts yourself, or set split_sentences to False",
            field="attention",
        )
    return replace(parameters, options=_with_one_hypothesis(parameters.options))


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
