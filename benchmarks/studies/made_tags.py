"""Measure tags around random words of plain sentences, against an independent aligner.

Random inline tags are put around random words of test sentences. The model translates the sentences. eflomal, which
knows nothing of the model, aligns the words of the training text and of the translations. A target word is tagged
rightly if it is linked to a word inside of the source's span. Precision, recall and F1 count words of all spans.

eflomal is not a dependency of this project: `pip install eflomal` compiles it.
"""

import argparse
import html
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.common.data import corpus
from benchmarks.common.progress import progress
from benchmarks.common.trained import dequantized
from benchmarks.studies.markup import (
    Heads,
    Pair,
    by_gain,
    by_position,
    check_translations,
    heads_of,
    pairs_of,
    sources_by_token,
    spans_of,
)
from jumok_export.bundles.alignment_heads import AlignmentText
from jumok_export.bundles.source_texts import greedy_search
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.tasks.word_alignment import Floats, Place, words
from jumok_serve.text.markup.parser import Span

SEED = 1
TAGS = ("b", "i", 'a href="{}"', 'span class="n{}"')
MOST_WORDS = 4
"""Most words of a made span."""
MOST_SPANS = 3
"""Most spans of a sentence."""

Links: TypeAlias = set[tuple[int, int]]
"""Indices of a source word and of a target word that translate each other."""
Tagged: TypeAlias = dict[Span, set[int]]
"""Indices of the target words inside of each span."""


def with_tags(sentence: str, chosen: random.Random) -> str:
    """Put one to three tags around random words, apart or one inside of another."""
    places = [(start, end) for start, end in words(sentence) if sentence[start:end].isalnum()]
    spans: list[Place] = []
    for _ in range(chosen.randint(1, MOST_SPANS) if places else 0):
        first = chosen.randrange(len(places))
        last = min(first + chosen.randint(1, MOST_WORDS), len(places)) - 1
        span = places[first][0], places[last][1]
        if all(_is_apart(span, other) or _is_inside(span, other) or _is_inside(other, span) for other in spans):
            spans.append(span)
    spans = list(dict.fromkeys(spans))
    openings: dict[int, list[tuple[int, str]]] = {}
    closings: dict[int, list[tuple[int, str]]] = {}
    for number, (start, end) in enumerate(spans):
        tag = chosen.choice(TAGS).format(number)
        openings.setdefault(start, []).append((-end, f"<{tag}>"))  # the longer outside
        closings.setdefault(end, []).append((-start, f"</{tag.partition(' ')[0]}>"))
    parts = []
    for index in range(len(sentence) + 1):
        parts += [tag for _, tag in sorted(closings.get(index, []))]
        parts += [tag for _, tag in sorted(openings.get(index, []))]
        parts.append(html.escape(sentence[index : index + 1], quote=False))
    return "".join(parts)


def _is_apart(one: Place, other: Place) -> bool:
    return one[1] <= other[0] or other[1] <= one[0]


def _is_inside(one: Place, other: Place) -> bool:
    return other[0] <= one[0] and one[1] <= other[1]


def tokenized(text: str) -> list[str]:
    """Return the words and signs of a text in small letters."""
    return [text[start:end].lower() for start, end in words(text)]


def eflomal_links(pairs: Sequence[tuple[str, str]], last: int) -> list[Links]:
    """Align the words of all pairs, and return the links of the last ones, of both directions together.

    Raises:
        SystemExit: eflomal is not installed.
    """
    try:
        from eflomal import Aligner  # noqa: PLC0415 - no dependency
    except ImportError as error:
        sys.exit(f"eflomal cannot be imported ({error}): run 'pip install eflomal', which needs a C compiler")
    with tempfile.TemporaryDirectory() as folder:
        sides = [Path(folder, name) for name in ("source", "target", "forward", "backward")]
        for path, side in zip(sides, zip(*pairs, strict=True), strict=False):
            lines = [" ".join(tokenized(text)) or "-" for text in side]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        with sides[0].open(encoding="utf-8") as sources, sides[1].open(encoding="utf-8") as targets:
            Aligner().align(sources, targets, links_filename_fwd=str(sides[2]), links_filename_rev=str(sides[3]))
        forward, backward = (
            [_links(line) for line in path.read_text(encoding="utf-8").splitlines()[-last:]] for path in sides[2:]
        )
    return [grow_diagonal(one, other) for one, other in zip(forward, backward, strict=True)]


def _links(line: str) -> Links:
    return {(int(one), int(other)) for one, _, other in (pair.partition("-") for pair in line.split())}


def grow_diagonal(forward: Links, backward: Links) -> Links:
    """Join the links of two directions, as "grow-diag-final-and" of Koehn et al. (2005)."""
    found, both = forward & backward, forward | backward
    grown = True
    while grown:
        grown = False
        for one, other in sorted(found):
            for near in ((one + left, other + up) for left in (-1, 0, 1) for up in (-1, 0, 1)):
                if near in both and near not in found and not _are_linked(found, near):
                    found.add(near)
                    grown = True
    for link in (*sorted(forward), *sorted(backward)):
        if link[0] not in {one for one, _ in found} and link[1] not in {other for _, other in found}:
            found.add(link)
    return found


def _are_linked(links: Links, link: tuple[int, int]) -> bool:
    """True if both words have links."""
    return any(one == link[0] for one, _ in links) and any(other == link[1] for _, other in links)


def linked_words(pair: Pair, links: Links) -> Tagged:
    """Return the target words that are linked to a word inside of each span."""
    source, target = words(pair.source.text), words(pair.target.text)
    found: Tagged = {}
    for span in spans_of(pair.source.spans):
        inside = {index for index, (start, end) in enumerate(source) if span.start <= start and end <= span.end}
        found[span] = {
            other for one, other in links if one in inside and pair.target.text[slice(*target[other])].isalnum()
        }
    return found


def words_of(places: Mapping[Span, Place], pair: Pair) -> Tagged:
    """Return the target words within the place of each span."""
    target = pair.target.text
    return {
        span: {
            index
            for index, (start, end) in enumerate(words(target))
            if first <= start and end <= after and target[start:end].isalnum()
        }
        for span, (first, after) in places.items()
    }


def words_by_token(pair: Pair, attention: Floats) -> Tagged:
    """Return the target words whose first token has its source token inside of each span (Bergamot's rule)."""
    sources = dict(zip((start for start, _ in pair.target_tokens), sources_by_token(pair, attention), strict=True))
    found: Tagged = {span: set() for span in spans_of(pair.source.spans)}
    for index, (start, end) in enumerate(words(pair.target.text)):
        if not pair.target.text[start:end].isalnum() or start not in sources:
            continue
        for span in found:
            if sources[start][0] < span.end and sources[start][1] > span.start:
                found[span].add(index)
    return found


def scores(found: Sequence[Tagged], wanted: Sequence[Tagged]) -> tuple[float, float, float]:
    """Return precision, recall and F1 of the words of all spans, in percent."""
    right = written = linked = 0
    for of_pair, gold in zip(found, wanted, strict=True):
        for span, of_span in gold.items():
            tagged = of_pair.get(span, set())
            right += len(tagged & of_span)
            written += len(tagged)
            linked += len(of_span)
    return 100 * right / max(written, 1), 100 * right / linked, 200 * right / (written + linked)


def chosen_heads(path: Path, bundle: Bundle, sources: Sequence[str], targets: Sequence[str]) -> tuple[str, Heads]:
    """Choose heads as `jumok export --alignments` does, and return them with their name."""
    manifest = bundle.manifest
    direction = manifest.languages.direction()
    search = greedy_search(direction, manifest.special_tokens, manifest.generation, manifest.limits)
    found = AlignmentText(sources=sources, targets=targets).choose_heads(
        dequantized(path), bundle.tokenizer, direction, search, manifest.limits, progress=progress
    )
    return str(found), [(one.layer, one.head) for one in found.heads]


def ways(pair: Pair) -> Iterator[tuple[str, Tagged]]:
    """Yield the words that each way to place tags finds, with its name."""
    for name, attention in pair.attention.items():
        yield f"intervals of gain: {name}", words_of(by_gain(pair, attention), pair)
        yield f"token before: {name}", words_by_token(pair, attention)
    yield "position", words_of(by_position(pair, np.zeros(0)), pair)


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="a Transformer from English to German, with an aligner")
    parser.add_argument("--sentences", type=int, default=1000, help="test sentences")
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--tags-only", action="store_true", help="only check that all tags come out, without eflomal")
    options = parser.parse_args()
    plain = corpus("test_2016_flickr.en")[: options.sentences]
    chosen = random.Random(SEED)
    sources = [with_tags(sentence, chosen) for sentence in plain]
    bundle = Bundle.open(options.bundle)
    precision = "fp32" if "fp32" in bundle.manifest.precisions else next(iter(bundle.manifest.precisions))
    if options.tags_only:
        with Translator(options.bundle, precision=precision, replicas=1) as translator:
            check_translations(translator, sources, options.beam_size)
        return
    train = corpus("train.en"), corpus("train.de")
    heads = heads_of(bundle, precision)
    if bundle.manifest.alignment is None:
        name, of_name = chosen_heads(options.bundle, bundle, *train)
        heads = {name: of_name, **heads}
    with Translator(options.bundle, precision=precision, replicas=1) as translator:
        check_translations(translator, sources, options.beam_size)
        translations = [
            one.text for one in translator.translate(plain, beam_size=options.beam_size, split_sentences=True)
        ]
        references = [html.escape(text, quote=False) for text in translations]
        pairs = list(pairs_of(translator, sources, references, heads, None))
    texts = [(pair.source.text, pair.target.text) for pair in pairs]
    links = eflomal_links([*zip(*train, strict=True), *texts], len(texts))
    wanted = [linked_words(pair, one) for pair, one in zip(pairs, links, strict=True)]
    spans, tagged = sum(map(len, wanted)), sum(len(one) for gold in wanted for one in gold.values())
    print(f"{spans} spans of {len(pairs)} translations, {tagged} words linked to theirs, in {precision}")
    found: dict[str, list[Tagged]] = {}
    for pair in pairs:
        for name, of_pair in ways(pair):
            found.setdefault(name, []).append(of_pair)
    for name, of_way in found.items():
        precise, recalled, f1 = scores(of_way, wanted)
        print(f"precision {precise:5.1f}, recall {recalled:5.1f}, F1 {f1:5.1f}: {name}")


if __name__ == "__main__":
    main()
