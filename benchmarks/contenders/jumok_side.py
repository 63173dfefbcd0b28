"""jumok's contender: a bundle in ``jumok_serve.Translator`` with its own choice of settings.

Only the public interface is used, so that the `Translator` may be that of any checkout: the one on the module path.
"""

import argparse
import gc

from benchmarks.contenders.worker import Run, Task, serve
from jumok_serve import FinishReason, Hypothesis, Translator


def main() -> None:
    """Translate tasks; tokenization and detokenization are within the time."""
    parser = argparse.ArgumentParser(description="jumok's side of a benchmark.")
    parser.add_argument("bundle")
    parser.add_argument("precision")
    parser.add_argument("--shortlist", action="store_true", help="use the bundle's shortlist")
    parser.add_argument("--whole", action="store_true", help="do not split texts into sentences")
    arguments = parser.parse_args()
    with Translator(arguments.bundle, precision=arguments.precision, shortlist=arguments.shortlist) as translator:
        gc.collect()
        gc.freeze()  # as `jumok serve` does

        def prepare(task: Task) -> Run:
            def run() -> list[list[str]]:
                translations = translator.translate(
                    task.texts,
                    split_sentences=False if arguments.whole else None,
                    beam_size=task.beam_size,
                    num_hypotheses=1,
                    length_penalty=1.0,
                    early_stopping=True,
                    min_length=task.min_length,
                    max_length=task.max_length,
                )
                return [_tokens(translation.hypotheses[0]) for translation in translations]

            return run

        serve(prepare)


def _tokens(hypothesis: Hypothesis) -> list[str]:
    *tokens, last = hypothesis.tokens
    return tokens if hypothesis.finish_reason is FinishReason.EOS else [*tokens, last]


if __name__ == "__main__":
    main()
