"""Annotated texts: the tokenized sentences of a text, the tags in it, and all that is kept around them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.interrupts import check
from jumok_serve.manifest.languages import Direction
from jumok_serve.tasks.model import TranslationParameters
from jumok_serve.text.markup.parser import Block, Document, parse
from jumok_serve.text.sentence_splitting import MAX_SENTENCES, SplitText, cut, joint, sentence_space, split
from jumok_serve.tokenizers.input_processor import EMPTY_SOURCE, InputProcessor, Source, check_text


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


def read_document(text: str, index: int, parameters: TranslationParameters) -> Document:
    """Parse a text with markup.

    Args:
        index: of the text in its request.

    Raises:
        InvalidArgumentError: it cannot be used.
    """
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
