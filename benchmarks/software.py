"""Score models on a test set beside a translation memory, with intervals by the paired bootstrap.

The memory answers with the translation of the training source that is nearest by chrF. The last columns are the
differences of the first model from each other system.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from benchmarks.common.bootstrap import Scores, score
from benchmarks.common.progress import progress
from benchmarks.common.translation_memory import nearest
from jumok_serve import DecodingOptions, Translator
from jumok_serve.evaluation.evaluation import translate_corpus
from jumok_serve.evaluation.parallel_text import NAMES, bleu_tokenizer, read_parallel
from jumok_serve.tasks.parameters import TranslationParameters

PROGRESS_TEXTS = 200


class Counted:
    """Reports how many texts of a system are done."""

    def __init__(self, system: str, texts: int) -> None:
        self._system, self._texts, self._done = system, texts, 0

    def __call__(self, further: int) -> None:
        """Count further texts."""
        before, self._done = self._done, self._done + further
        if before // PROGRESS_TEXTS < self._done // PROGRESS_TEXTS or self._done == self._texts:
            progress(f"{self._system}: {self._done} of {self._texts} texts")


def translate(bundle: Path, precision: str, sources: Sequence[str], beam_size: int) -> list[str]:
    """Translate texts as a whole, as the models were trained."""
    parameters = TranslationParameters(options=DecodingOptions(beam_size=beam_size), truncate=True)
    with Translator(bundle, precision=precision) as translator:
        translator.warm_up()
        submit = partial(translator.submit, parameters=parameters)
        started = time.perf_counter()
        found = translate_corpus(submit, sources, Counted(bundle.name, len(sources)))
        progress(f"{bundle.name}: {len(sources) / (time.perf_counter() - started):.1f} texts a second")
    return [translation.text for translation in found]


def remembered(sources: Sequence[str], train: tuple[Sequence[str], Sequence[str]]) -> list[str]:
    """Answer each text from the training pairs."""
    progress(f"memory: indexing {len(train[0])} pairs")
    return [train[1][index] for index in nearest(sources, train[0], Counted("memory", len(sources)))]


def table(systems: dict[str, dict[str, Scores]]) -> str:
    """Format scores as a table in Markdown, with the first system's differences from the others."""
    first, *_ = systems.values()
    names = list(first)
    lines = [
        f"| system | {' | '.join(names)} | {' | '.join(f'{name}, difference' for name in names)} |",
        f"| --- |{' --- |' * (2 * len(names))}",
    ]
    for system, scores in systems.items():
        cells = ["{:.2f} ({:.2f} to {:.2f})".format(one.value, *one.interval) for one in scores.values()]
        for name, one in scores.items():
            gain, (low, high) = first[name].over(one)
            cells.append("" if scores is first else f"{gain:+.2f} ({low:+.2f} to {high:+.2f})")
        lines.append(f"| {system} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
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
    options = parser.parse_args(arguments)
    sources, references = (lines[: options.texts] for lines in read_parallel(*options.test))
    outputs = {
        bundle.name: translate(bundle, options.precision, sources, options.beam_size) for bundle in options.bundles
    }
    if options.train is not None:
        outputs["translation memory"] = remembered(sources, read_parallel(*options.train))
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
