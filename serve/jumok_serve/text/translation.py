"""Translation of annotated texts: sentences go into the engine, and are joined with all that is around them."""

import math
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate, chain
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
from jumok_serve.text.annotated import AnnotatedText, Sentences, is_text, read_document, read_sentences, split_all
from jumok_serve.text.markup.parser import Block, Document
from jumok_serve.text.markup.placing import Pair, needs_alignment, write_block
from jumok_serve.text.sentence_splitting import MAX_SENTENCES, too_many_sentences
from jumok_serve.tokenizers.input_processor import InputProcessor, check_count


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
    documents: list[Document] | None = None
    if parameters.markup is not None:
        _check_markup(parameters, target_prefixes)
        target_prefixes = None
        documents = []
        for index, text in enumerate(texts):
            check(parameters.deadline, "markup was read")
            documents.append(read_document(text, index, parameters))
        inside = any(needs_alignment(block) for document in documents for block in document.blocks)
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
        None if documents is None else model.teacher_forcing,
        length_penalty=options.length_penalty,
    )


def _annotated(
    inputs: InputProcessor,
    engine: Engine,
    direction: Direction,
    parameters: TranslationParameters,
    *,
    texts: Sequence[str],
    documents: Sequence[Document] | None,
) -> list[AnnotatedText]:
    """Split and tokenize texts, or the blocks of documents."""
    if documents is None:
        blocks, counts = list(texts), [1] * len(texts)
    else:
        of_documents = [[block.text for block in document.blocks] or [""] for document in documents]
        blocks, counts = list(chain.from_iterable(of_documents)), [len(of_one) for of_one in of_documents]
    ends = list(accumulate(counts))
    with blamed_texts(partial(text_of_part, counts)):
        split_blocks = split_all(blocks, direction, parameters)
    with_content = sum(is_text(one) and bool(one.strip()) for block in split_blocks for one in block.sentences)
    engine.check_room(with_content, parameters.caller)
    sizes = [len(block.sentences) for block in split_blocks]
    with blamed_texts(lambda part: text_of_part(counts, text_of_part(sizes, part))):
        read = read_sentences(inputs, split_blocks, direction, parameters)
    return [
        AnnotatedText(None if documents is None else documents[index], read[end - count : end])
        for index, (count, end) in enumerate(zip(counts, ends, strict=True))
    ]


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
