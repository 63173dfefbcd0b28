"""Translation of texts sentence by sentence, and the translations joined."""

import math
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, pairwise

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.results import AppliedTerm, FinishReason, Hypothesis, Timings, Translation
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.sentence import Decoded, Future
from jumok_serve.interrupts import Deadline, check
from jumok_serve.manifest.languages import Direction
from jumok_serve.search.options import DecodingOptions
from jumok_serve.search.search import normalized_score
from jumok_serve.tasks.best_attention import Attended, best_attention
from jumok_serve.tasks.model import TaskModel, TranslationParameters
from jumok_serve.tasks.teacher_forcing import TeacherForcing
from jumok_serve.tasks.translation import PendingTranslations, check_parameters, submit_sources
from jumok_serve.text.sentence_splitting import (
    MAX_SENTENCES,
    SplitText,
    cut,
    joint,
    sentence_space,
    split,
    too_many_sentences,
)
from jumok_serve.tokenizers.input_processor import EMPTY_SOURCE, InputProcessor, Source, check_count


@dataclass(frozen=True, slots=True)
class TextParts:
    """A text's parts in the engine.

    Attributes:
        sources: tokenized parts, [n], at least one.
        places: first index of each part in the text, and the index after it, [n].
        kept: text before, between and after their translations, [n + 1].
        cut: sentences that were too long and are several parts.
    """

    sources: tuple[Source, ...]
    places: tuple[tuple[int, int], ...]
    kept: tuple[str, ...]
    cut: tuple[str, ...] = ()


class PendingParts:
    """Texts whose parts are in the engine; see `Pending`.

    Args:
        length_penalty: exponent of the length that a sum of scores is divided by.
    """

    def __init__(self, pending: PendingTranslations, texts: Sequence[TextParts], *, length_penalty: float) -> None:
        self.texts = texts
        self.length_penalty = length_penalty
        self._pending = pending
        self._firsts = [0, *accumulate(len(text.sources) for text in texts)]
        self._decoded: list[list[str]] = [[] for _ in texts]  # finished parts of each text

    @property
    def futures(self) -> tuple[Future[Decoded], ...]:
        """One future per part in the engine."""
        return self._pending.futures

    @property
    def deadline(self) -> Deadline:
        """Deadline of the work after decoding."""
        return self._pending.deadline

    def cancel(self) -> None:
        """Cancel all parts that are not done."""
        self._pending.cancel()

    def by_text(self) -> "list[PendingParts]":
        """Return the translation of each text alone."""
        return [self.part(index, index + 1) for index in range(len(self.texts))]

    def part(self, first: int, after: int) -> "PendingParts":
        """Return the translations of some texts alone."""
        pending = self._pending.part(self._firsts[first], self._firsts[after])
        return PendingParts(pending, self.texts[first:after], length_penalty=self.length_penalty)

    def timings(self) -> Timings:
        """Return the longest times of a part; waits until all are done."""
        return self._pending.timings()

    def stable_texts(self) -> list[str]:
        """Return each translation's stable text, up to the first undecoded part."""
        return [
            self._stable_text(text, first, decoded)
            for text, first, decoded in zip(self.texts, self._firsts, self._decoded, strict=False)
        ]

    def _stable_text(self, text: TextParts, first: int, decoded: list[str]) -> str:
        while len(decoded) < len(text.sources) and self._pending.is_final(first + len(decoded)):
            decoded.append(self._pending.stable_text(first + len(decoded)))
        if len(decoded) == len(text.sources):
            return _join(text, decoded) + text.kept[-1]
        return _join(text, [*decoded, self._pending.stable_text(first + len(decoded))])

    def collect(self) -> list[Translation]:
        """Wait for the translations and return them in the order of the texts."""
        return [self.join(text, parts) for text, parts in zip(self.texts, self.collect_parts(), strict=True)]

    def collect_parts(self) -> list[list[Translation]]:
        """Wait for the translations of all parts, and return them by text."""
        translations = iter(self._pending.collect())
        return [[next(translations) for _ in text.sources] for text in self.texts]

    def join(self, text: TextParts, parts: Sequence[Translation]) -> Translation:
        """Make a text's translation of those of its parts; a text that is one part has the part's."""
        if len(parts) == 1 and not text.cut and not any(text.kept):
            return parts[0]
        joined = _join(text, [part.text for part in parts]) + text.kept[-1]
        translation = join_translations(
            parts, joined, length_penalty=self.length_penalty, terms=_joined_terms(text, parts)
        )
        return replace(translation, cut_sentences=text.cut)

    def attention(self, wanted: Sequence[bool], aligner: TeacherForcing) -> list[list[Attended | None] | None]:
        """Compute the attention of the parts of some texts; see `best_attention`."""
        places = [range(first, after) for first, after in pairwise(self._firsts)]
        indices = [index for place, one in zip(places, wanted, strict=True) if one for index in place]
        found = best_attention(self._pending, indices, aligner)
        return [
            [found.get(index) for index in place] if one else None for place, one in zip(places, wanted, strict=True)
        ]


def _joined_terms(text: TextParts, parts: Sequence[Translation]) -> tuple[AppliedTerm, ...]:
    """Return the terms of all parts, with their places in the whole text and translation."""
    terms = list[AppliedTerm]()
    target = 0
    for kept, (source, _), part in zip(text.kept, text.places, parts, strict=False):
        target += len(kept)
        terms += [term.moved(source, target) for term in part.hypotheses[0].terms]
        target += len(part.text)
    return tuple(terms)


def join_translations(
    parts: Sequence[Translation], text: str, *, length_penalty: float, terms: tuple[AppliedTerm, ...]
) -> Translation:
    """Make one translation with a text of those of its parts."""
    best = [part.hypotheses[0] for part in parts]
    token_scores = tuple(score for one in best for score in one.token_scores)
    ended = all(one.finish_reason is FinishReason.EOS for one in best)
    hypothesis = Hypothesis(
        text=text,
        score=normalized_score(math.fsum(token_scores), len(token_scores), length_penalty),
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


def _join(text: TextParts, translations: Sequence[str]) -> str:
    """Join the first parts' translations with the text before and between them."""
    return "".join(part for pair in zip(text.kept, translations, strict=False) for part in pair)


def submit_sentences(
    model: TaskModel,
    engine: Engine,
    texts: Sequence[str],
    parameters: TranslationParameters,
    *,
    target_prefixes: Sequence[str | None] | None = None,
    on_progress: Callable[[], None] | None = None,
    firsts: Sequence[bool] | None = None,
) -> PendingParts:
    """Queue the sentences of texts; see `Translator.submit`.

    Args:
        firsts: True for texts that count as one; None: all.
    """
    started = time.monotonic()
    parameters = one_hypothesis(parameters)
    if parameters.attention:
        raise InvalidArgumentError(
            "attention is that of one sentence: split texts yourself, or set split_sentences to False",
            field="attention",
        )
    direction, options = check_parameters(model, parameters)
    split_texts = _split_all(texts, direction, parameters)
    with_content = sum(_is_text(one) and bool(one.strip()) for text in split_texts for one in text.sentences)
    engine.check_room(with_content, parameters.caller)
    with blamed_texts(partial(text_of_part, [len(text.sentences) for text in split_texts])):
        parts = read_parts(model.inputs, split_texts, direction, parameters)
    sources = [source for text in parts for source in text.sources]
    if len(sources) > MAX_SENTENCES:
        raise too_many_sentences()
    with blamed_texts(partial(text_of_part, [len(text.sources) for text in parts])):
        pending = submit_sources(
            model,
            engine,
            sources,
            parameters,
            target_prefixes=_first_part_prefixes(target_prefixes, parts),
            on_progress=on_progress,
            firsts=[
                number == 0 and (firsts is None or firsts[index])
                for index, text in enumerate(parts)
                for number in range(len(text.sources))
            ],
            started=started,
        )
    return PendingParts(pending, parts, length_penalty=options.length_penalty)


def one_hypothesis(parameters: TranslationParameters) -> TranslationParameters:
    """Return parameters with one hypothesis, whatever the model's default is.

    Raises:
        InvalidArgumentError: several are requested.
    """
    hypotheses = parameters.options.num_hypotheses
    if hypotheses is None:
        return replace(parameters, options=_with_one_hypothesis(parameters.options))
    if hypotheses > 1:
        raise InvalidArgumentError(
            f"num_hypotheses must be 1 if sentences are split, got {hypotheses}: the text is made of the best of each "
            "sentence",
            field="options.num_hypotheses",
        )
    return parameters


@lru_cache(16)
def _with_one_hypothesis(options: DecodingOptions) -> DecodingOptions:
    return replace(options, num_hypotheses=1)


def _split_all(texts: Sequence[str], direction: Direction, parameters: TranslationParameters) -> list[SplitText]:
    """Split texts; an unusable one is not split, as reading it raises the error that says why."""
    split_texts: list[SplitText] = []
    left = MAX_SENTENCES
    for index, text in enumerate(texts):
        check(parameters.deadline, "texts were split into sentences")
        found = SplitText((text,), ("", ""))
        if parameters.split_sentences and _is_text(text):
            try:
                found = split(text, direction.source, max_sentences=left, deadline=parameters.deadline)
            except InvalidArgumentError as error:
                if left == MAX_SENTENCES:  # too many of this text alone
                    error.field = f"contents[{index}]"
                raise
        split_texts.append(found)
        left -= len(found.sentences)
    return split_texts


def read_parts(
    inputs: InputProcessor, texts: Sequence[SplitText], direction: Direction, parameters: TranslationParameters
) -> list[TextParts]:
    """Tokenize the sentences of texts, cut long ones, and keep unreadable ones.

    Raises:
        InvalidArgumentError: a sentence cannot be used; the index of its field counts the sentences of all texts.
        DeadlineExceededError: the deadline has passed.
    """

    def read(sentences: Sequence[str]) -> list[Source]:
        truncate = parameters.truncate or parameters.cuts
        return inputs.sources(
            sentences,
            direction,
            truncate=truncate,
            deadline=parameters.deadline,
            keep_unknown=parameters.markup is not None,
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
        found.append(TextParts(tuple(parts), tuple(places), tuple(kept), tuple(cut_sentences)))
    return found


def _is_text(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(text.encode("utf-8") or True)
    except UnicodeEncodeError:
        return False


def _first_part_prefixes(prefixes: Sequence[str | None] | None, texts: Sequence[TextParts]) -> list[str | None] | None:
    """Return the target prefix of each part: only first parts have one."""
    if prefixes is None:
        return None
    check_count("target_prefixes", prefixes, len(texts))
    return [
        prefix if number == 0 else None
        for prefix, text in zip(prefixes, texts, strict=True)
        for number in range(len(text.sources))
    ]


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
        raise InvalidArgumentError(str(error).replace(error.field, field), field=field) from error


def text_of_part(counts: Sequence[int], part: int) -> int:
    """Return the index of a part's text, from the number of parts of each text."""
    return bisect_right(list(accumulate(counts)), part)
