"""Measure the placement of tags on texts that people translated with their tags.

Each line of a source and of its reference is a fragment of HTML with the same inline tags. Alignments of the source's
tokens with the reference's come of a model that is forced over the reference: of the heads that its manifest names, of
all heads of the layer before the last, and of all heads. With `--parallel`, another one comes of the aligner that
guided alignment learns from, fitted to this parallel text and the test texts.

Two ways place the tags of the source over the plain reference by each alignment: intervals of the largest gain, as the
server does; and the tag of each token's source token, where a word goes with its first token (Bergamot's rule). A third
way is by position. A span is recovered if its characters are those of the reference's span. A token's alignment is an
error if the elements around its source token are not those around itself.
"""

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.progress import progress
from jumok_export.shortlists.sources import MOST_TOKENS
from jumok_export.shortlists.token_alignment import align_tokens
from jumok_proto.attention import AlignedToken
from jumok_proto.errors import InvalidArgumentError
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.evaluation.parallel_text import read_lines
from jumok_serve.tasks.word_alignment import Floats, Place, TokenAlignment, align_words, token_places, words
from jumok_serve.text.markup.parser import Block, Span, parse
from jumok_serve.text.markup.placing import Word, transfer
from jumok_serve.tokenizers.tokenizer import Tokenizer

Heads = Sequence[tuple[int, int]]
IN_TREE = "aligner of guided alignment"
TAG = re.compile(r"</?[A-Za-z][^>]*>")
Placed = Callable[["Pair", Floats], dict[Span, Place]]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A source and its reference.

    Attributes:
        attention: weights of each way to align by its name, [T, S] each.
        source_tokens, target_tokens: parts of the texts that the tokens spell.
    """

    source: Block
    target: Block
    attention: Mapping[str, Floats]
    source_tokens: Sequence[Place]
    target_tokens: Sequence[Place]


def spans_of(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield spans with text, outer ones first."""
    for span in spans:
        if not span.is_mark:
            yield span
        yield from spans_of(span.children)


def key(span: Span) -> str:
    """Return a span's tag without addresses, which differ by language."""
    return re.sub(r" href=\S*\"", "", span.opening).strip()


def by_gain(pair: Pair, attention: Floats) -> dict[Span, Place]:
    """Place spans as the server does."""
    source, target = pair.source.text, pair.target.text
    (aligned,) = align_words([TokenAlignment(attention, source, pair.source_tokens, target, pair.target_tokens)])
    places = [one.place for one in aligned]
    read = [Word(*one.source, 0, one.shares) for one in aligned]
    found = transfer(pair.source.spans, source, read, [(0, len(source))])
    return {
        span: (places[first][0], places[after - 1][1]) if first < after else (0, 0)
        for span, (first, after) in found.items()
    }


def by_position(pair: Pair, _: Floats) -> dict[Span, Place]:
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


def sources_by_token(pair: Pair, attention: Floats) -> list[Place]:
    """Return the source token of each token; one inside of a word has that of the token before."""
    best = attention[:, [end > start for start, end in pair.source_tokens]].argmax(axis=1)
    sources = [place for place in pair.source_tokens if place[1] > place[0]]
    aligned: list[Place] = []
    for row, (first, _) in enumerate(pair.target_tokens):
        inside = aligned and first > 0 and not pair.target.text[first - 1].isspace()
        aligned.append(aligned[-1] if inside else sources[int(best[row])])
    return aligned


def by_token(pair: Pair, attention: Floats) -> dict[Span, Place]:
    """Place spans by the source token of each token; one inside of a word goes with the token before."""
    aligned = sources_by_token(pair, attention)
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


def token_errors(pair: Pair, attention: Floats) -> tuple[int, int]:
    """Count the tokens that are aligned with a token inside of other elements, and all aligned tokens."""
    spelled = [index for index, (start, end) in enumerate(pair.source_tokens) if end > start]
    best = attention[:, spelled].argmax(axis=1)
    aligned = attention.max(axis=1) > 0
    rows = [row for row, (start, end) in enumerate(pair.target_tokens) if end > start and aligned[row]]
    wrong = sum(
        _around(pair.source, pair.source_tokens[spelled[int(best[row])]])
        != _around(pair.target, pair.target_tokens[row])
        for row in rows
    )
    return wrong, len(rows)


def _around(block: Block, place: Place) -> Counter[str]:
    """Return the tags of the elements that a token is in by its first character."""
    return Counter(key(span) for span in spans_of(block.spans) if span.start <= place[0] < span.end)


def recovered(pair: Pair, place: Placed, attention: Floats) -> int:
    """Count the spans of a reference that a way of placing recovers."""
    found = Counter((key(span), where) for span, where in place(pair, attention).items() if not span.is_mark)
    wanted = Counter((key(span), (span.start, span.end)) for span in spans_of(pair.target.spans))
    return (found & wanted).total()


def pairs_of(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    heads: Mapping[str, Heads],
    linked: Callable[[str, str], Floats] | None,
) -> Iterator[Pair]:
    """Yield the pairs of one block each that the model can read and write.

    Args:
        heads: layers and heads whose mean aligns, by name.
        linked: function of a source and a target that gives another alignment of their tokens, [T, S]; or None.
    """
    for source, reference in zip(sources, references, strict=True):
        of_source, of_target = parse(source, "html").blocks, parse(reference, "html").blocks
        if len(of_source) != 1 or len(of_target) != 1:
            continue
        try:
            alignment = translator.align(of_source[0].text, of_target[0].text, each_head=True)
        except InvalidArgumentError as error:
            progress(f"left out: {error}")
            continue
        if alignment.cross is None or alignment.cross.by_head is None:
            raise ValueError("the model has no cross-attention")
        by_head = np.array(alignment.cross.by_head)
        attention: dict[str, Floats] = {
            name: by_head[tuple(np.array(of_name).T)].mean(axis=0) for name, of_name in heads.items()
        }
        if linked is not None:
            spelled = [
                [not token.special for token in side] for side in (alignment.target_tokens, alignment.source_tokens)
            ]
            attention[IN_TREE] = np.zeros(by_head.shape[2:])
            attention[IN_TREE][np.ix_(*spelled)] = linked(of_source[0].text, of_target[0].text)
        yield Pair(
            source=of_source[0],
            target=of_target[0],
            attention=attention,
            source_tokens=token_places(_spelled(alignment.source_tokens), of_source[0].text),
            target_tokens=token_places(_spelled(alignment.target_tokens), of_target[0].text),
        )


def _spelled(tokens: Sequence[AlignedToken]) -> list[str]:
    return ["" if token.special else token.text for token in tokens]


def heads_of(bundle: Bundle, precision: str) -> dict[str, Heads]:
    """Return the heads that are compared, by name."""
    sizes = bundle.variant(precision).attention()
    if sizes is None:
        raise SystemExit(f"{bundle.path} has no aligner")
    layers, heads = (range(size) for size in sizes)
    penultimate = max(0, len(layers) - 2)
    found: dict[str, Heads] = {
        "layer before the last": [(penultimate, head) for head in heads],
        "all heads": [(layer, head) for layer in layers for head in heads],
    }
    named = bundle.manifest.alignment
    return found if named is None else {str(named): [(one.layer, one.head) for one in named.heads], **found}


def fit_links(tokenizer: Tokenizer, texts: Sequence[tuple[str, str]]) -> Callable[[str, str], Floats]:
    """Align the tokens of sentence pairs, and return a function that gives the links of one of them, [T, S]."""
    encoded = {pair: (tokenizer.encode(pair[0]), tokenizer.encode_target(pair[1])) for pair in texts}
    fitting = [pair for pair, sides in encoded.items() if all(0 < len(side) <= MOST_TOKENS for side in sides)]
    links = align_tokens(
        [(np.array(encoded[pair][0], np.int32), np.array(encoded[pair][1], np.int32)) for pair in fitting],
        source_vocabulary=tokenizer.source_vocab_size,
        target_vocabulary=tokenizer.vocab_size,
        progress=progress,
    )
    index = {pair: number for number, pair in enumerate(fitting)}

    def linked(source: str, target: str) -> Floats:
        of_source, of_target = encoded[source, target]
        found = np.zeros((len(of_target), len(of_source)))
        if (number := index.get((source, target))) is not None:
            part = slice(*np.searchsorted(links.pairs, (number, number + 1)))
            found[links.targets[part], links.sources[part]] = links.weights[part]
        return found

    return linked


def plain(fragments: Sequence[str]) -> list[str]:
    """Return the texts of fragments of one block; empty of others."""
    parsed = [parse(fragment, "html").blocks for fragment in fragments]
    return [blocks[0].text if len(blocks) == 1 else "" for blocks in parsed]


def check_translations(translator: Translator, sources: Sequence[str], beam_size: int) -> None:
    """Translate with tags and without, and print the share with all tags once, and with the same words."""
    plain_texts = ["\n".join(block.text for block in parse(source, "html").blocks) for source in sources]
    marked = translator.translate(sources, markup="html", beam_size=beam_size, split_sentences=True)
    plain = translator.translate(plain_texts, beam_size=beam_size, split_sentences=True)
    once = sum(Counter(TAG.findall(a)) == Counter(TAG.findall(b.text)) for a, b in zip(sources, marked, strict=True))
    nested = sum(_is_nested(one.text) for one in marked)
    same = sum(a.hypotheses[0].token_ids == b.hypotheses[0].token_ids for a, b in zip(marked, plain, strict=True))
    print(f"translated {len(sources)} texts with beam size {beam_size}")
    print(f"every tag once: {once}; well formed: {nested}; tokens as without tags: {same}")


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


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, help="a model of the texts' languages, with an aligner")
    parser.add_argument("source", type=Path, help="fragments of HTML, one a line, compressed")
    parser.add_argument("reference", type=Path, help="their translations")
    parser.add_argument("--texts", type=int, default=None, help="number of texts (default: all)")
    parser.add_argument("--parallel", type=Path, nargs=2, metavar="FILE", help="parallel text to fit an aligner to")
    parser.add_argument("--beam-size", type=int, default=4, help="beam size of translations with tags; 0: none")
    options = parser.parse_args()
    sources = read_lines(options.source)[: options.texts]
    references = read_lines(options.reference)[: options.texts]
    bundle = Bundle.open(options.bundle)
    precision = "fp32" if "fp32" in bundle.manifest.precisions else next(iter(bundle.manifest.precisions))
    heads, linked = heads_of(bundle, precision), None
    if options.parallel is not None:
        texts = [
            *zip(*map(read_lines, options.parallel), strict=True),
            *zip(plain(sources), plain(references), strict=True),
        ]
        linked = fit_links(bundle.tokenizer, texts)
    with Translator(options.bundle, precision=precision, replicas=1) as translator:
        pairs = list(pairs_of(translator, sources, references, heads, linked))
        total = sum(len(list(spans_of(pair.target.spans))) for pair in pairs)
        print(f"{total} spans of {len(pairs)} references, in {precision}; recovered exactly, and errors of tokens:")
        for name in pairs[0].attention:
            wrong, tokens = np.sum([token_errors(pair, pair.attention[name]) for pair in pairs], axis=0)
            counts = [sum(recovered(pair, way, pair.attention[name]) for pair in pairs) for way in (by_gain, by_token)]
            gain, token = (f"{count:5} {count / total:6.1%}" for count in counts)
            print(f"intervals of gain {gain}, token before {token}, errors {wrong / tokens:6.1%}: {name}")
        count = sum(recovered(pair, by_position, np.zeros(0)) for pair in pairs)
        print(f"position          {count:5} {count / total:6.1%}")
        if options.beam_size:
            check_translations(translator, sources, options.beam_size)


if __name__ == "__main__":
    main()
