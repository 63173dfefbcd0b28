"""Translation of documents with markup: their blocks as texts, and the tags around the translations."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import TypeAlias

from jumok_proto.errors import AttentionUnavailableError, InvalidArgumentError
from jumok_proto.results import AppliedTerm, Timings, Translation
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.sentence import Decoded, Future
from jumok_serve.interrupts import Deadline, check
from jumok_serve.tasks.best_attention import Attended
from jumok_serve.tasks.model import TaskModel, TranslationParameters
from jumok_serve.tasks.teacher_forcing import TeacherForcing
from jumok_serve.tasks.word_alignment import Place, TokenAlignment, align_words, token_places, words
from jumok_serve.text.markup.parser import Block, Document, parse
from jumok_serve.text.markup.transfer import Word, transfer, write_spans
from jumok_serve.text.sentence_translation import (
    PendingParts,
    TextParts,
    blamed_texts,
    join_translations,
    one_hypothesis,
    submit_sentences,
    text_of_part,
)
from jumok_serve.tokenizers.input_processor import check_text

Pair: TypeAlias = tuple[Place, Place]
"""A word of a translation, and the source word that it is aligned to."""
MAX_SEARCHED = 2**26
"""Characters of a block's translation that are searched for copies of ignored content, each as often as it is."""


class PendingDocuments:
    """Documents whose sentences are in the engine; see `Pending`.

    Args:
        pending: the blocks of all documents as texts; a document without any has an empty one.
    """

    def __init__(self, pending: PendingParts, documents: Sequence[Document], aligner: TeacherForcing) -> None:
        self._pending = pending
        self._documents = documents
        self._aligner = aligner
        self._firsts = [0, *accumulate(max(1, len(document.blocks)) for document in documents)]

    @property
    def futures(self) -> tuple[Future[Decoded], ...]:
        """One future per sentence in the engine."""
        return self._pending.futures

    def cancel(self) -> None:
        """Cancel all sentences that are not done."""
        self._pending.cancel()

    def by_text(self) -> "list[PendingDocuments]":
        """Return the translation of each document alone."""
        return [
            PendingDocuments(self._pending.part(*self._firsts[index : index + 2]), [document], self._aligner)
            for index, document in enumerate(self._documents)
        ]

    def timings(self) -> Timings:
        """Return the longest times of a sentence; waits until all are done."""
        return self._pending.timings()

    def stable_texts(self) -> list[str]:
        """Return empty texts: tags have their places only at the end."""
        return [""] * len(self._documents)

    def collect(self) -> list[Translation]:
        """Wait for the translations, align them, and return the documents in their order."""
        parts = self._pending.collect_parts()
        blocks: list[Block | None] = []
        for document in self._documents:
            blocks += document.blocks or [None]
        deadline = self._pending.deadline
        attention = self._pending.attention(
            [block is not None and _needs_alignment(block) for block in blocks], self._aligner
        )
        aligned = iter(_aligned_words(blocks, self._pending.texts, parts, attention, deadline))
        written: dict[Block, str] = {}
        joined: list[Translation] = []
        for block, text, of_text, of_block in zip(blocks, self._pending.texts, parts, attention, strict=True):
            joined.append(self._pending.join(text, of_text))
            if block is not None:
                deadline.check("tags were placed")
                of_parts = [None if one is None else next(aligned) for one in of_block or [None] * len(of_text)]
                written[block] = _written(block, text, of_text, of_parts)
        return [
            join_translations(
                joined[first:after],
                document.written(written.__getitem__),
                length_penalty=self._pending.length_penalty,
                terms=_without_places(joined[first:after]),
            )
            for document, first, after in zip(self._documents, self._firsts, self._firsts[1:], strict=False)
        ]


def _without_places(blocks: Sequence[Translation]) -> tuple[AppliedTerm, ...]:
    """Return the terms of blocks; their places in the texts of blocks are none in the document."""
    terms = (term for block in blocks for term in block.hypotheses[0].terms)
    return tuple(replace(term, source_span=None, target_span=None) for term in terms)


def _needs_alignment(block: Block) -> bool:
    """True if a span or a mark begins or ends inside of the text."""
    waiting = list(block.spans)
    while waiting:
        span = waiting.pop()
        if not {span.start, span.end} <= {0, len(block.text)}:
            return True
        waiting += span.children
    return False


def _aligned_words(
    blocks: Sequence[Block | None],
    texts: Sequence[TextParts],
    parts: Sequence[Sequence[Translation]],
    attention: Sequence[Sequence[Attended | None] | None],
    deadline: Deadline,
) -> list[list[Pair]]:
    """Align the words of all parts with attention, in their order."""
    sentences = []
    for block, text, of_text, of_block in zip(blocks, texts, parts, attention, strict=True):
        if block is None or of_block is None:
            continue
        for (start, end), translation, attended in zip(text.places, of_text, of_block, strict=True):
            if attended is None:
                continue
            deadline.check("words were aligned")
            source, target = block.text[start:end], translation.hypotheses[0].text
            sentences.append(
                TokenAlignment(
                    attended.weights,
                    source,
                    token_places(attended.source_tokens, source),
                    target,
                    token_places(attended.target_tokens, target),
                )
            )
    return align_words(sentences, deadline.check)


def _written(
    block: Block, text: TextParts, translations: Sequence[Translation], aligned_parts: Sequence[Sequence[Pair] | None]
) -> str:
    """Write the translation of a block with its tags."""
    aligned: list[Word] = []
    places: list[Place] = []
    sentences: list[Place] = []
    target = ""

    def add(written: str, source: Place, pairs: Iterable[Pair]) -> None:
        nonlocal target
        at, shift, sentence = len(target), source[0], len(sentences)
        for (first, after), (start, end) in pairs:
            places.append((at + first, at + after))
            aligned.append(Word(shift + start, shift + end, sentence))
        sentences.append(source)
        target += written

    end = 0
    for index, (kept, place) in enumerate(zip(text.kept, (*text.places, (len(block.text),) * 2), strict=True)):
        add(kept, (end, place[0]), [(word, word) for word in words(kept)] if kept else ())
        if index < len(translations):
            written = translations[index].hypotheses[0].text
            pairs = aligned_parts[index]
            if pairs is None:
                everything = -place[0], len(block.text) - place[0]  # all spans have all words
                pairs = [(word, everything) for word in words(written)]
            add(written, place, pairs)
        end = place[1]
    align_copies(block, target, places, aligned)
    intervals = transfer(block.spans, block.text, aligned, sentences)
    return write_spans(block.spans, block.text, intervals, target, places, block.escape)


def align_copies(block: Block, target: str, places: Sequence[Place], aligned: list[Word]) -> None:
    """Align ignored content with its copy in the translation, if there is one, and with nothing else."""
    waiting, done, searched = block.spans[::-1], 0, 0
    by_source = sorted(range(len(aligned)), key=lambda index: aligned[index].start)
    starts = [aligned[index].start for index in by_source]
    while waiting:
        span = waiting.pop()
        waiting += reversed(span.children)
        if span.content is None or searched > MAX_SEARCHED:
            continue
        first = target.find(block.text[span.start : span.end], done)
        searched += (len(target) if first < 0 else first) - done
        if first < 0:
            continue
        done = first + span.end - span.start
        for index in by_source[bisect_left(starts, span.start) : bisect_right(starts, span.end)]:
            word = aligned[index]
            if span.start <= word.start and word.end <= span.end:
                aligned[index] = Word(0, 0, word.sentence)
        for index in range(bisect_left(places, (first, first)), bisect_right(places, (done, done))):
            if first <= places[index][0] and places[index][1] <= done:
                aligned[index] = Word(span.start, span.end, aligned[index].sentence)


def submit_documents(
    model: TaskModel,
    engine: Engine,
    texts: Sequence[str],
    parameters: TranslationParameters,
    *,
    target_prefixes: Sequence[str | None] | None = None,
    on_progress: Callable[[], None] | None = None,
) -> PendingDocuments:
    """Queue the sentences of documents; see `Translator.submit`."""
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
    documents = []
    for index, text in enumerate(texts):
        check(parameters.deadline, "markup was read")
        documents.append(_parsed(text, index, parameters))
    if not model.teacher_forcing.can_align and any(
        _needs_alignment(block) for document in documents for block in document.blocks
    ):
        raise AttentionUnavailableError.of(model.manifest.name)
    contents = [[block.text for block in document.blocks] or [""] for document in documents]
    with blamed_texts(partial(text_of_part, [len(of_one) for of_one in contents])):
        pending = submit_sentences(
            model,
            engine,
            [text for of_one in contents for text in of_one],
            one_hypothesis(parameters),
            on_progress=on_progress,
            firsts=[number == 0 for of_one in contents for number in range(len(of_one))],
        )
    return PendingDocuments(pending, documents, model.teacher_forcing)


def _parsed(text: str, index: int, parameters: TranslationParameters) -> Document:
    field = f"contents[{index}]"
    check_text(text, field)
    try:
        return parse(text, parameters.markup or "html", parameters.markup_rules)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(error), field=field) from error
