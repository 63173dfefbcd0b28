"""Measure the placement of tags on texts that people translated with their tags.

Each line of a source and of its reference is a fragment of HTML with the same inline tags. Three ways place the tags of
the source over the plain reference, by the attention of a model that is forced over the reference: intervals of the
largest gain, as the server does; positions in proportion; and the tag of each token's source token, where a word goes
with its first token (Bergamot's rule). A span is recovered if its characters are those of the reference's span.
"""

import argparse
import gzip
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.progress import progress
from jumok_proto.alignments import Alignment
from jumok_proto.errors import InvalidArgumentError
from jumok_serve import Translator
from jumok_serve.tasks.word_alignment import Floats, Place, align_words, token_places, words
from jumok_serve.text.markup.document import Block, Span
from jumok_serve.text.markup.parser import parse
from jumok_serve.text.markup.transfer import Word, transfer

TAG = re.compile(r"</?[A-Za-z][^>]*>")
Placed = Callable[["Pair"], dict[Span, Place]]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A source and its reference.

    Attributes:
        attention: mean over the heads of a layer, [T, S].
        source_tokens, target_tokens: parts of the texts that the tokens spell.
    """

    source: Block
    target: Block
    attention: Floats
    source_tokens: Sequence[Place]
    target_tokens: Sequence[Place]


def read_lines(path: Path) -> list[str]:
    """Read the lines of a compressed file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def spans_of(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield spans with text, outer ones first."""
    for span in spans:
        if not span.is_mark:
            yield span
        yield from spans_of(span.children)


def key(span: Span) -> str:
    """Return a span's tag without addresses, which differ by language."""
    return re.sub(r" href=\S*\"", "", span.opening).strip()


def by_gain(pair: Pair) -> dict[Span, Place]:
    """Place spans as the server does."""
    source, target = pair.source.text, pair.target.text
    aligned = align_words(pair.attention, source, pair.source_tokens, target, pair.target_tokens)
    places = words(target)
    found = transfer(pair.source.spans, source, [Word(*one, 0) for one in aligned], [(0, len(source))])
    return {
        span: (places[first][0], places[after - 1][1]) if first < after else (0, 0)
        for span, (first, after) in found.items()
    }


def by_position(pair: Pair) -> dict[Span, Place]:
    """Place spans over the same share of words as in the source."""
    of_source, of_target = words(pair.source.text), words(pair.target.text)
    share = len(of_target) / len(of_source)
    found = {}
    for span in spans_of(pair.source.spans):
        inside = [index for index, (start, end) in enumerate(of_source) if start < span.end and end > span.start]
        if inside and of_target:
            first = min(round(inside[0] * share), len(of_target) - 1)
            last = min(max(round((inside[-1] + 1) * share) - 1, first), len(of_target) - 1)
            found[span] = (of_target[first][0], of_target[last][1])
    return found


def by_token(pair: Pair) -> dict[Span, Place]:
    """Place spans by the source token of each token; one inside of a word goes with the token before."""
    best = pair.attention[:, [end > start for start, end in pair.source_tokens]].argmax(axis=1)
    sources = [place for place in pair.source_tokens if place[1] > place[0]]
    aligned: list[Place] = []
    for row, (first, _) in enumerate(pair.target_tokens):
        inside = aligned and first > 0 and not pair.target.text[first - 1].isspace()
        aligned.append(aligned[-1] if inside else sources[int(best[row])])
    found = {}
    for span in spans_of(pair.source.spans):
        runs: list[list[Place]] = [[]]
        for (start, end), place in zip(aligned, pair.target_tokens, strict=True):
            if place[1] <= place[0]:
                continue
            if start < span.end and end > span.start:
                runs[-1].append(place)
            elif runs[-1]:
                runs.append([])
        filled = [run for run in runs if run]
        if len(filled) == 1:
            found[span] = (filled[0][0][0], filled[0][-1][1])
    return found


def recovered(pair: Pair, place: Placed) -> int:
    """Count the spans of a reference that a way of placing recovers."""
    found = Counter((key(span), where) for span, where in place(pair).items() if not span.is_mark)
    wanted = Counter((key(span), (span.start, span.end)) for span in spans_of(pair.target.spans))
    return (found & wanted).total()


def pairs_of(
    translator: Translator, sources: Sequence[str], references: Sequence[str], layer: int | None
) -> Iterator[Pair]:
    """Yield the pairs of one block each that the model can read and write."""
    for source, reference in zip(sources, references, strict=True):
        of_source, of_target = parse(source, "html").blocks, parse(reference, "html").blocks
        if len(of_source) != 1 or len(of_target) != 1:
            continue
        try:
            alignment = translator.align(of_source[0].text, of_target[0].text, each_head=True)
        except InvalidArgumentError as error:
            progress(f"left out: {error}")
            continue
        yield Pair(
            source=of_source[0],
            target=of_target[0],
            attention=of_layer(alignment, layer),
            source_tokens=token_places(_spelled(alignment.source_tokens), of_source[0].text),
            target_tokens=token_places(_spelled(alignment.target_tokens), of_target[0].text),
        )


def _spelled(tokens: Sequence[object]) -> list[str]:
    return ["" if getattr(token, "special", False) else str(getattr(token, "text", token)) for token in tokens]


def of_layer(alignment: Alignment, layer: int | None) -> Floats:
    """Return the mean over the heads of a layer; None: the layer before the last."""
    cross = alignment.cross
    if cross is None or cross.by_head is None:
        raise ValueError("the model has no cross-attention")
    by_head = np.array(cross.by_head)
    weights: Floats = by_head[max(0, len(by_head) - 2) if layer is None else layer].mean(axis=0)
    return weights


def check_translations(translator: Translator, sources: Sequence[str], beam_size: int) -> None:
    """Translate with tags and without, and print the share with all tags once, the same words, and the cost."""
    started = time.perf_counter()
    marked = translator.translate(sources, markup="html", beam_size=beam_size, split_sentences=True)
    with_tags_s = time.perf_counter() - started
    plain_texts = ["\n".join(block.text for block in parse(source, "html").blocks) for source in sources]
    started = time.perf_counter()
    plain = translator.translate(plain_texts, beam_size=beam_size, split_sentences=True)
    plain_s = time.perf_counter() - started
    once = sum(Counter(TAG.findall(a)) == Counter(TAG.findall(b.text)) for a, b in zip(sources, marked, strict=True))
    nested = sum(_is_nested(one.text) for one in marked)
    same = sum(a.hypotheses[0].token_ids == b.hypotheses[0].token_ids for a, b in zip(marked, plain, strict=True))
    print(f"translated {len(sources)} texts with beam size {beam_size}")
    print(f"every tag once: {once}; well formed: {nested}; tokens as without tags: {same}")
    print(f"seconds: {with_tags_s:.1f} with tags, {plain_s:.1f} without")


def _is_nested(text: str) -> bool:
    stack: list[str] = []
    for tag in TAG.findall(text):
        name = re.split(r"[\s/>]", tag.strip("</"))[0]
        if tag.startswith("</"):
            if not stack or stack.pop() != name:
                return False
        elif name != "br":
            stack.append(name)
    return not stack


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, help="a model of the texts' languages, with an aligner")
    parser.add_argument("source", type=Path, help="fragments of HTML, one a line, compressed")
    parser.add_argument("reference", type=Path, help="their translations")
    parser.add_argument("--texts", type=int, default=None, help="number of texts (default: all)")
    parser.add_argument("--layer", type=int, default=None, help="decoder layer (default: the one before the last)")
    parser.add_argument("--beam-size", type=int, default=4)
    options = parser.parse_args(arguments)
    sources = read_lines(options.source)[: options.texts]
    references = read_lines(options.reference)[: options.texts]
    with Translator(options.bundle, precision="fp32", replicas=1) as translator:
        pairs = list(pairs_of(translator, sources, references, options.layer))
        total = sum(len(list(spans_of(pair.target.spans))) for pair in pairs)
        print(f"{total} spans of {len(pairs)} references, with attention forced over them; recovered exactly:")
        for name, place in (("intervals of gain", by_gain), ("position", by_position), ("token before", by_token)):
            count = sum(recovered(pair, place) for pair in pairs)
            print(f"{name:20} {count:5} {count / total:7.1%}")
        check_translations(translator, sources, options.beam_size)


if __name__ == "__main__":
    main()
