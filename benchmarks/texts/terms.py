"""Measure search with terms: random rare words of the references, as Post and Vilar (2018) did.

Each source sentence gets some words of its reference translation as terms. The terms must appear and raise BLEU;
translating with them is slower than without. Rounds with and without terms take turns.

With `--peer`, the search of Post and Vilar finds translations with the same model and terms, and as many rows: about an
hour for 1,000 sentences.
"""

import argparse
import json
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sacrebleu.metrics.bleu import BLEU

from benchmarks.common.models import corpus
from benchmarks.common.progress import described, progress
from benchmarks.common.trained import dequantized
from benchmarks.texts.beam_allocation import search
from jumok_proto.results import Translation
from jumok_serve import DecodingOptions, Translator
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.tasks.parameters import TranslationParameters
from jumok_serve.tasks.terms import TermMatch

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "multi30k-en-de-transformer"
RARE = 50
"""Most occurrences of a rare word in the training references."""
FEW = "1/32"
"""The case in which one of 32 sentences has a term: shows the cost for the others."""
SEED = 1
PEER_LENGTH = 80
"""Most new tokens of the peer's translations."""


class GivenTerms(NamedTuple):
    """Words that the translation of one text must contain; a `TermFinder`."""

    words: tuple[str, ...]

    def find(self, text: str) -> list[TermMatch]:
        """Return a match at the beginning of the text for each word."""
        return [TermMatch(0, 0, (word,)) for word in self.words]


def rare_words(references: Sequence[str], counts: Mapping[str, int], most: int) -> list[tuple[str, ...]]:
    """Return up to `most` random rare words of each reference, in their order."""
    generator = random.Random(SEED)
    chosen = []
    for reference in references:
        words = [word for word in re.findall(r"[^\W\d_]{3,}", reference) if counts[word] <= RARE]
        places = sorted(generator.sample(range(len(words)), min(most, len(words))))
        chosen.append(tuple(words[place] for place in places))
    return chosen


class Peer:
    """Search by dynamic beam allocation, with the dequantized weights of an int8 bundle.

    Raises:
        ValueError: the model is no Transformer.
    """

    def __init__(self, folder: Path) -> None:
        bundle = Bundle.open(folder)
        self._tokenizer, special = bundle.tokenizer, bundle.manifest.special_tokens
        self._start, self._end = special.start, special.eos[0]
        self._model = dequantized(folder)

    def translate(self, text: str, words: Sequence[str], beam_size: int) -> str:
        """Return a translation with all words, if the search finds one, with as many rows as our search has."""
        rows = max(beam_size, 1 << (2 * len(words) + 1).bit_length() if words else 1)
        found = search(
            self._model,
            [*self._tokenizer.encode(text), self._end],
            [tuple(self._tokenizer.encode_target(word)) for word in words],
            start=self._start,
            end=self._end,
            rows=rows,
            max_length=PEER_LENGTH,
        )
        return self._tokenizer.decode(found)


class Run(NamedTuple):
    """Translations of all texts, and the seconds that they took."""

    translations: list[Translation]
    seconds: float


def translate(translator: Translator, texts: Sequence[str], terms: Sequence[tuple[str, ...]], beam_size: int) -> Run:
    """Translate all texts at once, each with its own terms."""
    options = DecodingOptions(beam_size=beam_size)
    started = time.perf_counter()
    pending = [
        translator.submit([text], TranslationParameters(options=options, terms=GivenTerms(words) if words else None))
        for text, words in zip(texts, terms, strict=True)
    ]
    translations = [one.collect()[0] for one in pending]
    return Run(translations, time.perf_counter() - started)


def main() -> None:
    """Measure, print a table, and write a report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--peer", action="store_true", help="search as Post and Vilar do, too; for Transformers")
    parser.add_argument("--quick", action="store_true", help="only show that the benchmark runs")
    parser.add_argument("--out", type=Path, help="JSON file for the report")
    arguments = parser.parse_args()
    rounds, count = (1, 40) if arguments.quick else (arguments.rounds, arguments.sentences)
    texts, references = corpus("test_2016_flickr.en")[:count], corpus("test_2016_flickr.de")[:count]
    counts = Counter(word for line in corpus("train.de") for word in re.findall(r"\w+", line))
    cases = {str(number): rare_words(references, counts, number) for number in range(4)}
    cases[FEW] = [words if index % 32 == 0 else () for index, words in enumerate(cases["1"])]
    peer = Peer(arguments.model) if arguments.peer else None
    report: dict[str, Any] = {"setup": described(arguments.threads), "beam_size": arguments.beam_size, "terms": {}}
    with Translator(arguments.model, precision=arguments.precision, threads=arguments.threads) as translator:
        translator.warm_up()
        seconds: dict[str, list[float]] = {number: [] for number in cases}
        for turn in range(rounds + 1):  # the first warms up
            for number, terms in cases.items():
                run = translate(translator, texts, terms, arguments.beam_size)
                if turn:
                    seconds[number].append(run.seconds)
                else:
                    report["terms"][number] = _quality([one.text for one in run.translations], terms, references)
            progress(f"round {turn} of {rounds}")
    print(f"{'terms':>5} {'given':>6} {'appear':>7} {'BLEU':>6} {'sentences/s':>12} {'of none':>8}")
    for number, row in report["terms"].items():
        row["sentences_per_s"] = len(texts) / statistics.median(seconds[number])
        row["of_none"] = statistics.median(a / b for a, b in zip(seconds["0"], seconds[number], strict=True))
        print(
            f"{number:>5} {row['given']:>6} {row['appear']:>7.1%} {row['bleu']:>6.2f} {row['sentences_per_s']:>12.1f} "
            f"{row['of_none']:>8.2f}"
        )
    if peer is not None:
        print(f"{'terms':>5} {'appear':>7} {'BLEU':>6}, by Post and Vilar")
        for number in map(str, range(4)):
            found = []
            for done, (text, words) in enumerate(zip(texts, cases[number], strict=True), 1):
                found.append(peer.translate(text, words, arguments.beam_size))
                if done % 100 == 0:
                    progress(f"{done} of {len(texts)} by the peer, at most {number} terms")
            row = report["terms"][number]["peer"] = _quality(found, cases[number], references)
            print(f"{number:>5} {row['appear']:>7.1%} {row['bleu']:>6.2f}")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _quality(
    translations: Sequence[str], terms: Sequence[tuple[str, ...]], references: Sequence[str]
) -> dict[str, float]:
    found = given = 0
    for translation, words in zip(translations, terms, strict=True):
        written = Counter(re.findall(r"\w+", translation))
        for word, needed in Counter(words).items():
            given += needed
            found += min(needed, written[word])
    bleu = BLEU().corpus_score(list(translations), [list(references)]).score
    return {"given": given, "appear": found / given if given else 1.0, "bleu": bleu}


if __name__ == "__main__":
    main()
