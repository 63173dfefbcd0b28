"""A reader under libFuzzer: ``python -m tests.faults.guided.target MODULE:READER BUNDLE CORPUS [OPTIONS]``."""

import random
import sys
from pathlib import Path

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]  # for some platforms only

from jumok_serve.forks import end_with_parent
from tests.faults.guided.reader import load


def main() -> None:
    """Fuzz a reader from its seeds, in the folder of the corpus, or read one input; ends the process."""
    end_with_parent()
    name, bundle, corpus, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["jumok_serve", "jumok_proto"]):
        reader = load(name, Path(bundle))
    if Path(corpus).is_dir():
        for number, seed in enumerate(reader.seeds()):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        changed = reader.mutate(data, random.Random(seed))
        return bytes(atheris.Mutate(data, most)) if changed is None else changed[:most]

    atheris.Setup([sys.argv[0], corpus, *options], reader.read, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
