"""Translate with the `Translator` of any checkout of the project: the one on the module path.

Only the public interface is used.
"""

import argparse

from benchmarks.contenders.worker import Run, Task, serve
from jumok_serve import Translator


def main() -> None:
    """Translate the tasks that arrive on standard input."""
    parser = argparse.ArgumentParser(description="A side of a comparison of checkouts.")
    parser.add_argument("bundle")
    parser.add_argument("precision")
    arguments = parser.parse_args()
    with Translator(arguments.bundle, precision=arguments.precision) as translator:

        def prepare(task: Task) -> Run:
            def run() -> list[list[str]]:
                translations = translator.translate(
                    task.texts,
                    split_sentences=False,  # older checkouts do not split by default
                    beam_size=task.beam_size,
                    length_penalty=1.0,
                    min_length=task.min_length,
                    max_length=task.max_length,
                )
                return [list(translation.hypotheses[0].tokens) for translation in translations]

            return run

        serve(prepare)


if __name__ == "__main__":
    main()
