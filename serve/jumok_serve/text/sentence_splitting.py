"""Translation of texts sentence by sentence: splitting, and joining the translations."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.results import FinishReason, Hypothesis, Timings, Translation
from jumok_serve.engine.engine import Engine
from jumok_serve.engine.future import Future
from jumok_serve.engine.sentence import Decoded
from jumok_serve.manifest.languages import Direction
from jumok_serve.search.search import normalized_score
from jumok_serve.tasks.model import TaskModel
from jumok_serve.tasks.parameters import TranslationParameters
from jumok_serve.tasks.translation import PendingTranslations, submit_texts
from jumok_serve.text.sentence_boundaries import sentence_spans
from jumok_serve.tokenizers.input_processor import check_count

MAX_SENTENCES = 4096
"""Limit for all texts of a request together."""
WITHOUT_SPACES = frozenset("zh zho cmn yue wuu ja jpn th tha lo lao km khm my mya bo bod".split())  # noqa: SIM905
"""Languages that write no space between sentences."""


@dataclass(frozen=True, slots=True)
class SplitText:
    """A text's sentences, at least one, and all white space around them."""

    sentences: tuple[str, ...]
    spaces: tuple[str, ...]


def split(text: str, language: str, *, max_sentences: int = MAX_SENTENCES, deadline: float | None = None) -> SplitText:
    """Split a text into sentences by sentencex and at line breaks.

    Sentences and spaces joined in turn are the text. A text of white space is its only sentence.

    Raises:
        InvalidArgumentError: the text has more than ``max_sentences`` sentences.
        DeadlineExceededError: the deadline, in `time.monotonic()` seconds, has passed.
    """
    sentences: list[str] = []
    spaces: list[str] = []
    end = 0
    for first, after in sentence_spans(text, _primary(language), deadline=deadline):
        if len(sentences) >= max_sentences:
            raise InvalidArgumentError(
                f"a request takes at most {MAX_SENTENCES} sentences, all texts together: send several", field="contents"
            )
        spaces.append(text[end:first])
        sentences.append(text[first:after])
        end = after
    if not sentences:
        return SplitText((text,), ("", ""))
    return SplitText(tuple(sentences), (*spaces, text[end:]))


def _primary(language: str) -> str:
    return re.split("[-_]", language, maxsplit=1)[0].lower()


class PendingSplitTexts:
    """Texts whose sentences are in the engine; see `Pending`.

    Args:
        length_penalty: exponent of the length that a sum of scores is divided by.
    """

    def __init__(
        self, pending: PendingTranslations, texts: Sequence[SplitText], *, direction: Direction, length_penalty: float
    ) -> None:
        self._pending = pending
        self._texts = texts
        self._firsts = [0, *accumulate(len(text.sentences) for text in texts)][:-1]
        self._decoded: list[list[str]] = [[] for _ in texts]  # finished sentences of each text
        self._direction = direction
        self._spaceless = _primary(direction.target) in WITHOUT_SPACES
        self._length_penalty = length_penalty

    @property
    def futures(self) -> tuple[Future[Decoded], ...]:
        """One future per sentence in the engine."""
        return self._pending.futures

    def cancel(self) -> None:
        """Cancel all sentences that are not done."""
        self._pending.cancel()

    def by_text(self) -> "list[PendingSplitTexts]":
        """Return the translation of each text alone."""
        return [
            PendingSplitTexts(
                self._pending.part(first, first + len(text.sentences)),
                [text],
                direction=self._direction,
                length_penalty=self._length_penalty,
            )
            for text, first in zip(self._texts, self._firsts, strict=True)
        ]

    def timings(self) -> Timings:
        """Return the longest times of a sentence; waits until all are done."""
        return self._pending.timings()

    def stable_texts(self) -> list[str]:
        """Return each translation's stable text, up to the first undecoded sentence."""
        return [
            self._stable_text(text, first, decoded)
            for text, first, decoded in zip(self._texts, self._firsts, self._decoded, strict=True)
        ]

    def _stable_text(self, text: SplitText, first: int, decoded: list[str]) -> str:
        while len(decoded) < len(text.sentences) and self._pending.is_decoded(first + len(decoded)):
            decoded.append(self._pending.stable_text(first + len(decoded)))
        if len(decoded) == len(text.sentences):
            return self._join(text, decoded) + text.spaces[-1]
        return self._join(text, [*decoded, self._pending.stable_text(first + len(decoded))])

    def collect(self) -> list[Translation]:
        """Wait for the translations and return them in the order of the texts."""
        translations = iter(self._pending.collect())
        return [self._translation(text, [next(translations) for _ in text.sentences]) for text in self._texts]

    def _translation(self, text: SplitText, parts: Sequence[Translation]) -> Translation:
        best = [part.hypotheses[0] for part in parts]
        token_scores = tuple(score for one in best for score in one.token_scores)
        ended = all(one.finish_reason is FinishReason.EOS for one in best)
        hypothesis = Hypothesis(
            text=self._join(text, [one.text for one in best]) + text.spaces[-1],
            score=normalized_score(math.fsum(token_scores), len(token_scores), self._length_penalty),
            tokens=tuple(token for one in best for token in one.tokens),
            token_ids=tuple(token for one in best for token in one.token_ids),
            token_scores=token_scores,
            finish_reason=FinishReason.EOS if ended else FinishReason.LENGTH,
        )
        return replace(
            parts[0],
            hypotheses=(hypothesis,),
            source_token_count=sum(part.source_token_count for part in parts),
            source_truncated=any(part.source_truncated for part in parts),
            source_unknown_count=sum(part.source_unknown_count for part in parts),
        )

    def _join(self, text: SplitText, translations: Sequence[str]) -> str:
        """Join the first sentences' translations with the spaces before and between them."""
        between = (self._between(space) for space in text.spaces[1 : len(translations)])
        first, *others = translations
        return text.spaces[0] + first + "".join(part for pair in zip(between, others, strict=True) for part in pair)

    def _between(self, space: str) -> str:
        """Replace a single or no space by the target language's; keep other white space."""
        return ("" if self._spaceless else " ") if space in {"", " "} else space


def submit_sentences(
    model: TaskModel,
    engine: Engine,
    texts: Sequence[str],
    parameters: TranslationParameters,
    *,
    target_prefixes: Sequence[str | None] | None = None,
    on_progress: Callable[[], None] | None = None,
) -> PendingSplitTexts:
    """Queue the sentences of texts; see `Translator.submit`."""
    generation, options = model.manifest.generation, parameters.options
    hypotheses = generation.num_hypotheses if options.num_hypotheses is None else options.num_hypotheses
    if hypotheses > 1:
        raise InvalidArgumentError(
            f"num_hypotheses must be 1 if sentences are split, got {hypotheses}: the text is made of the best of each "
            "sentence",
            field="options.num_hypotheses",
        )
    if parameters.attention:
        raise InvalidArgumentError(
            "attention is that of one sentence: split texts yourself, or leave out split_sentences", field="attention"
        )
    direction = model.direction(parameters)
    # An unusable text is not split: reading it raises the error that says why.
    split_texts: list[SplitText] = []
    left = MAX_SENTENCES
    for index, text in enumerate(texts):
        try:
            found = (
                split(text, direction.source, max_sentences=left, deadline=parameters.deadline)
                if _is_text(text)
                else SplitText((text,), ("", ""))
            )
        except InvalidArgumentError as error:
            if left == MAX_SENTENCES:  # too many of this text alone
                error.field = f"contents[{index}]"
            raise
        split_texts.append(found)
        left -= len(found.sentences)
    sentences = [sentence for text in split_texts for sentence in text.sentences]
    text_numbers = [index for index, text in enumerate(split_texts) for _ in text.sentences]
    try:
        pending = submit_texts(
            model,
            engine,
            sentences,
            parameters,
            target_prefixes=_first_sentence_prefixes(target_prefixes, split_texts),
            on_progress=on_progress,
            firsts=[number == 0 for text in split_texts for number in range(len(text.sentences))],
        )
    except InvalidArgumentError as error:
        raise _blame_text(error, text_numbers) from error
    penalty = generation.length_penalty if options.length_penalty is None else options.length_penalty
    return PendingSplitTexts(pending, split_texts, direction=direction, length_penalty=penalty)


def _is_text(text: object) -> bool:
    try:
        return isinstance(text, str) and bool(text.encode("utf-8") or True)
    except UnicodeEncodeError:
        return False


def _first_sentence_prefixes(
    prefixes: Sequence[str | None] | None, texts: Sequence[SplitText]
) -> list[str | None] | None:
    """Return the target prefix of each sentence: only first sentences have one."""
    if prefixes is None:
        return None
    check_count("target_prefixes", prefixes, len(texts))
    return [
        prefix if number == 0 else None
        for prefix, text in zip(prefixes, texts, strict=True)
        for number in range(len(text.sentences))
    ]


def _blame_text(error: InvalidArgumentError, numbers: Sequence[int]) -> InvalidArgumentError:
    """Return the error of a sentence, with the field of its text."""
    blamed = re.fullmatch(r"(contents|target_prefixes)\[(\d+)\]", error.field)
    if blamed is None:
        return error
    field = f"{blamed[1]}[{numbers[int(blamed[2])]}]"
    return InvalidArgumentError(str(error).replace(error.field, field), field=field)
