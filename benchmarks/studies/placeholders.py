"""Count the placeholders that translations keep, beside texts that are masked and texts that are left as they are.

Names and numbers that a text and its human translation both have once become placeholders of the same kinds in both,
so the human translation has them where its grammar wants them. Texts that have the same placeholders on both sides
already stay as they are.
"""

import argparse
import html
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sacrebleu.metrics.chrf import CHRF

from benchmarks.common.progress import progress
from benchmarks.common.ratios import markdown
from jumok_serve import Translator
from jumok_serve.evaluation.parallel_text import read_parallel
from jumok_serve.text.terms.glossary import PLACEHOLDERS

KINDS = (
    *("{0}", "{name}", "{{ user }}", "${file}", "%s", "%1$s", "%(count)d", "%{total}", "%@"),
    *("https://example.org/help?id=7", "anna@example.org"),
)
NAME = re.compile(r"(?<![\w.,<-])(?:[A-Z][a-z]+[A-Z]\w*|[A-Z]{2,}\d*|[A-Z]\d+|\d{2,}|Basic|Java)(?![\w.,>)-]*\w)")
MOST_CHARACTERS = 300


class Pair(NamedTuple):
    """A text and its human translation, with their placeholders in the order of the text."""

    text: str
    reference: str
    placeholders: Sequence[str]


def found(text: str) -> list[str]:
    """Return the placeholders of a text."""
    return [text[hole.first : hole.after] for hole in PLACEHOLDERS.find(text)]


def pairs_of(texts: Sequence[str], references: Sequence[str], rng: random.Random) -> Iterator[Pair]:
    """Yield the pairs with placeholders."""
    for text, reference in zip(texts, references, strict=True):
        names = [name for name in dict.fromkeys(NAME.findall(text)) if text.count(name) == reference.count(name) == 1]
        if found(text) or not names or len(text) > MOST_CHARACTERS:
            made = text, reference
        else:
            chosen = rng.sample(names, min(len(names), rng.choice([1, 1, 2])))
            kinds = dict(zip(chosen, rng.sample(KINDS, len(chosen)), strict=True))
            pattern = re.compile("|".join(map(re.escape, sorted(chosen, key=len, reverse=True))))
            replaced = partial(pattern.sub, lambda name, kinds=kinds: kinds[name[0]])
            made = replaced(text), replaced(reference)
        kept = found(made[0])
        if kept and sorted(kept) == sorted(found(made[1])):
            yield Pair(made[0], made[1], kept)


def masked(pair: Pair) -> str:
    """Return a text in HTML with an empty element in place of each placeholder."""
    parts, done = list[str](), 0
    for number, hole in enumerate(PLACEHOLDERS.find(pair.text)):
        parts += (html.escape(pair.text[done : hole.first], quote=False), f'<x id="{number}"/>')
        done = hole.after
    return "".join((*parts, html.escape(pair.text[done:], quote=False)))


def unmasked(translation: str, pair: Pair) -> str:
    """Return a translation with the placeholders in place of its empty elements."""
    return html.unescape(re.sub(r'<x id="(\d+)"/>', lambda tag: pair.placeholders[int(tag[1])], translation))


def keeps_all(translation: str, pair: Pair) -> bool:
    """True if a translation has each placeholder as often as its text."""
    return all(translation.count(one) == pair.text.count(one) for one in pair.placeholders)


def main() -> None:
    """Translate in all ways, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", metavar="BUNDLE", type=Path)
    parser.add_argument("--test", metavar="FILE", nargs=2, type=Path, required=True, action="append")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--beam-size", type=int, default=5)
    options = parser.parse_args()
    rng = random.Random(1)
    pairs = [pair for files in options.test for pair in pairs_of(*read_parallel(*files), rng)]
    texts = [pair.text for pair in pairs]
    with Translator(options.bundle, precision=options.precision) as translator:
        translator.warm_up()

        def translate(sources: Sequence[str], **more: object) -> list[str]:
            settings = {"beam_size": options.beam_size, "split_sentences": False, "truncate": True, **more}
            return [one.text for one in translator.translate(sources, **settings)]

        def by_masks() -> list[str]:
            written = translate([masked(pair) for pair in pairs], markup="html")
            return [unmasked(one, pair) for one, pair in zip(written, pairs, strict=True)]

        systems: dict[str, Callable[[], list[str]]] = {
            "kept": lambda: translate(texts, placeholders=True),
            'masked by `<x id="1"/>`': by_masks,
            "read as text": lambda: translate(texts),
        }
        rows = [["placeholders", "texts with each once", "chrF", "texts a second"]]
        for name, run in systems.items():
            progress(f"{name}: translating {len(pairs)} texts")
            started = time.monotonic()
            written = run()
            taken = time.monotonic() - started
            whole = sum(keeps_all(one, pair) for one, pair in zip(written, pairs, strict=True))
            score = CHRF().corpus_score(written, [[pair.reference for pair in pairs]]).score
            rows.append([name, f"{whole} of {len(pairs)}", f"{score:.1f}", f"{len(pairs) / taken:.0f}"])
    print(markdown(rows))


if __name__ == "__main__":
    main()
