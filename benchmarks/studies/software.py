"""Score models on a test set beside a translation memory, with intervals by the paired bootstrap.

The memory answers with the translation of the training source that is nearest by chrF. The last columns are the
differences of the first model from each other system.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from benchmarks.common.bootstrap import Scores, score
from benchmarks.common.progress import progress
from benchmarks.common.ratios import markdown
from jumok_serve import Translator
from jumok_serve.evaluation.parallel_text import NAMES, bleu_tokenizer, read_parallel

ORDERS = 6
"""Longest n-grams of characters."""
BETA_SQUARED = 4.0
"""chrF2: recall counts twice."""

Gram = tuple[str, int]
"""An n-gram with the number of its earlier occurrences in the text: shared ones are the matches of chrF."""


def grams(text: str, order: int) -> Iterator[Gram]:
    """Yield the n-grams of a text without white space."""
    spelled = "".join(text.split())
    seen: Counter[str] = Counter()
    for start in range(len(spelled) - order + 1):
        gram = spelled[start : start + order]
        yield gram, seen[gram]
        seen[gram] += 1


def nearest(texts: Sequence[str], sources: Sequence[str]) -> NDArray[np.int64]:
    """Find the most similar source of each text by sacreBLEU's chrF, the source being the reference.

    Args:
        texts: texts to look up, N.
        sources: sources of the memory.

    Returns:
        Indices of the sources, [N]; the first of equal ones.
    """
    indexes = [_index(texts, sources, order) for order in range(1, ORDERS + 1)]
    lengths = np.array([len("".join(source.split())) for source in sources])
    found = np.empty(len(texts), np.int64)
    for number, text in enumerate(texts):
        found[number] = int(_similarities(text, indexes, lengths).argmax())
    return found


def _index(texts: Sequence[str], sources: Sequence[str], order: int) -> dict[Gram, NDArray[np.int32]]:
    """List the sources that have each n-gram of the texts."""
    listed: dict[Gram, list[int]] = {gram: [] for text in texts for gram in grams(text, order)}
    for number, source in enumerate(sources):
        for gram in grams(source, order):
            if (having := listed.get(gram)) is not None:
                having.append(number)
    return {gram: np.array(having, np.int32) for gram, having in listed.items()}


def _similarities(
    text: str, indexes: Sequence[dict[Gram, NDArray[np.int32]]], lengths: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Compute chrF of a text with each source, between 0 and 1, [sources]."""
    precision, recall, effective = (np.zeros(len(lengths)) for _ in range(3))
    for order, index in enumerate(indexes, start=1):
        having = [index[gram] for gram in grams(text, order)]
        if not having:
            break
        matches = np.bincount(np.concatenate(having), minlength=len(lengths))
        totals = np.maximum(lengths - order + 1, 0)
        # An order counts if both texts have such n-grams.
        precision += np.where(totals > 0, matches / len(having), 0.0)
        recall += matches / np.maximum(totals, 1)
        effective += totals > 0
    effective = np.maximum(effective, 1)
    precision, recall = precision / effective, recall / effective
    weighted = BETA_SQUARED * precision + recall
    similar: NDArray[np.float64] = (1 + BETA_SQUARED) * precision * recall / np.where(weighted > 0, weighted, 1.0)
    return similar


def translate(bundle: Path, precision: str, sources: Sequence[str], beam_size: int) -> list[str]:
    """Translate texts as a whole, as the models were trained."""
    with Translator(bundle, precision=precision) as translator:
        translator.warm_up()
        progress(f"{bundle.name}: translating {len(sources)} texts")
        found = translator.translate(sources, beam_size=beam_size, truncate=True, split_sentences=False)
    return [translation.text for translation in found]


def table(systems: dict[str, dict[str, Scores]]) -> str:
    """Format scores as a table in Markdown, with the first system's differences from the others."""
    first, *_ = systems.values()
    rows = [["system", *first, *(f"{name}, difference" for name in first)]]
    for system, scores in systems.items():
        cells = ["{:.2f} ({:.2f} to {:.2f})".format(one.value, *one.interval) for one in scores.values()]
        for name, one in scores.items():
            gain, (low, high) = first[name].over(one)
            cells.append("" if scores is first else f"{gain:+.2f} ({low:+.2f} to {high:+.2f})")
        rows.append([system, *cells])
    return markdown(rows)


def main() -> None:
    """Translate, score, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", metavar="BUNDLE", nargs="+", type=Path, help="the model, and others to compare")
    parser.add_argument("--test", metavar="FILE", nargs=2, type=Path, required=True, help="sources and references")
    parser.add_argument("--train", metavar="FILE", nargs=2, type=Path, help="sources and translations of the memory")
    parser.add_argument("--target-language", required=True, help="chooses BLEU's tokenizer")
    parser.add_argument("--bleu-tokenizer", choices=NAMES, help="default: that of the language")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--texts", type=int, help="number of texts (default: all)")
    options = parser.parse_args()
    sources, references = (lines[: options.texts] for lines in read_parallel(*options.test))
    outputs = {
        bundle.name: translate(bundle, options.precision, sources, options.beam_size) for bundle in options.bundles
    }
    if options.train is not None:
        known, translations = read_parallel(*options.train)
        progress(f"memory: indexing {len(known)} pairs")
        outputs["translation memory"] = [translations[index] for index in nearest(sources, known)]
    tokenizer = options.bleu_tokenizer or bleu_tokenizer(options.target_language)
    metrics = {"chrF": CHRF()} | ({} if tokenizer is None else {"BLEU": BLEU(tokenize=tokenizer)})
    progress("scoring, with intervals")
    scored = {
        system: {name: score(metric, texts, references) for name, metric in metrics.items()}
        for system, texts in outputs.items()
    }
    print(table(scored))
    for name, metric in metrics.items():
        print(f"{name}: {metric.get_signature()}")


if __name__ == "__main__":
    main()
