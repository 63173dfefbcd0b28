"""Places of tags in the translation of a block, by aligned words."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from jumok_serve.tasks.word_alignment import Place, words
from jumok_serve.text.annotated import Sentences
from jumok_serve.text.markup.parser import Block
from jumok_serve.text.markup.transfer import Word, transfer, write_spans

Pair: TypeAlias = tuple[Place, Place]
"""A word of a translation, and the source word that it is aligned to."""
MAX_SEARCHED = 2**26
"""Characters of a block's translation that are searched for copies of ignored content, each as often as it is."""


def needs_alignment(block: Block) -> bool:
    """True if a span or a mark begins or ends inside of the text."""
    waiting = list(block.spans)
    while waiting:
        span = waiting.pop()
        if not {span.start, span.end} <= {0, len(block.text)}:
            return True
        waiting += span.children
    return False


def write_block(
    block: Block, text: Sentences, translations: Sequence[str], aligned_words: Sequence[Sequence[Pair] | None]
) -> str:
    """Write the translation of a block with its tags.

    Args:
        translations: of its sentences, [n].
        aligned_words: aligned words of each sentence; None: all tags are around it, [n].
    """
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
            written, pairs = translations[index], aligned_words[index]
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
