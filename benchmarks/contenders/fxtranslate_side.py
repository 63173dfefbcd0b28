"""fxtranslate's contender: the engine of Firefox's models in Rust, which translates one text at a time."""

import argparse
import multiprocessing
import sys
from pathlib import Path

from benchmarks.contenders.worker import Run, Task, serve

_ENGINES: list[object] = []
"""The engine of this process, after `load`."""


def load(package: str, model: str, vocabulary: str, shortlist: str) -> None:
    """Load the model in this process."""
    sys.path.append(package)
    import fxtranslate  # noqa: PLC0415

    pieces = Path(vocabulary).read_bytes()
    _ENGINES.append(
        fxtranslate.Translator(
            model=Path(model).read_bytes(),
            src_vocab=pieces,
            trg_vocab=pieces,
            shortlist=Path(shortlist).read_bytes() if shortlist else None,
        )
    )


def translate(text: str) -> str:
    """Translate one text."""
    translated: str = _ENGINES[0].translate(text)  # type: ignore[attr-defined]  # the package is not installed here
    return translated


def main() -> None:
    """Run tasks. Each process translates one text at a time."""
    parser = argparse.ArgumentParser(description="fxtranslate's side of a benchmark.")
    parser.add_argument("package", help="folder in which it is installed")
    parser.add_argument("model")
    parser.add_argument("vocabulary")
    parser.add_argument("--shortlist", default="")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    files = (arguments.package, arguments.model, arguments.vocabulary, arguments.shortlist)
    load(*files)
    spawned = multiprocessing.get_context("spawn")  # its processes end with this one
    pool = spawned.Pool(arguments.processes, load, files) if arguments.processes > 1 else None

    def prepare(task: Task) -> Run:
        def run() -> list[list[str]]:
            if pool is None or task.one_by_one:
                return [[translate(text)] for text in task.texts]
            return [[text] for text in pool.map(translate, task.texts, chunksize=8)]

        return run

    serve(prepare)


if __name__ == "__main__":
    main()
