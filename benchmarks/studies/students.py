"""Compare an imported student with Firefox's engine, which it was made for.

The folder has the files of a student of Firefox. fxtranslate, Firefox's engine in Rust, reads the files that the import
reads. Translations are compared text by text. Speeds are of all texts, in rounds in which both sides take turns.
"""

import argparse
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.common.data import MULTI30K
from benchmarks.common.processes import Process, Program
from benchmarks.common.progress import progress, setup
from benchmarks.common.ratios import aligned, ratio, turns
from benchmarks.contenders.worker import Task
from jumok_export.importers.marian.importing import import_marian
from jumok_serve import Translator
from jumok_serve.evaluation.parallel_text import read_lines

FXTRANSLATE = "fxtranslate==0.5.0"
LONGEST = 100


def installed(folder: Path) -> Path:
    """Install fxtranslate into a folder of its own, once."""
    target = folder / FXTRANSLATE
    if not target.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--target", str(target), FXTRANSLATE], check=True)
    return target


def main() -> None:
    """Import the student, and print equal texts and speeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("student", type=Path, help="folder with model.*.bin, vocab.*.spm and lex.*.bin")
    parser.add_argument("--source", type=Path, default=MULTI30K / "test_2016_flickr.en.gz", help="texts, one a line")
    parser.add_argument("--texts", type=int, default=1000, help="number of texts; default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="threads of both sides; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count; default: %(default)s")
    parser.add_argument("--engine", type=Path, default=Path("build/students"), help="folder to install fxtranslate in")
    arguments = parser.parse_args()
    print(setup(arguments.threads, ("jumok", "onnxruntime")))
    package = installed(arguments.engine.resolve())
    texts = read_lines(arguments.source)[: arguments.texts]
    files = [next(arguments.student.resolve().glob(name)) for name in ("model.*.bin", "vocab.*.spm", "lex.*.bin")]
    model, vocabulary, shortlist = map(str, files)
    rows = [["texts", "shortlist", "equal", "sentences/s", "fxtranslate", "ratio (range)"]]
    with tempfile.TemporaryDirectory() as folder:
        bundle = str(Path(folder) / "bundle")
        import_marian(
            arguments.student,
            Path(bundle),
            precisions=("int8",),
            max_source_length=LONGEST,
            max_target_length=LONGEST,
            progress=progress,
        )
        for listed in (False, True):
            with Translator(bundle, precision="int8", shortlist=listed, threads=arguments.threads) as translator:
                found = [one.text for one in translator.translate(texts, beam_size=1, max_length=LONGEST)]
            threads, lists = f"{arguments.threads}", ["--shortlist"] if listed else []
            theirs = (package, model, vocabulary, "--processes", threads, *([*lists, shortlist] if listed else []))
            sides = (
                Program.of("jumok", "jumok_side", bundle, "int8", "--threads", threads, *lists),
                Program.of("fxtranslate", "fxtranslate_side", *theirs),
            )
            with ExitStack() as stack:
                processes = {side.name: stack.enter_context(Process(side)) for side in sides}
                for one_by_one in (True, False):
                    task = Task(texts=texts, beam_size=1, max_length=LONGEST, one_by_one=one_by_one)
                    seconds: dict[str, list[float]] = {name: [] for name in processes}
                    for number, name in turns(processes, arguments.rounds):
                        turn = processes[name].measure(task)
                        if number:
                            seconds[name].append(turn.median)
                        if name == "fxtranslate":
                            answers = [text for [text] in turn.tokens]
                    rows.append(
                        [
                            "one by one" if one_by_one else "together",
                            "yes" if listed else "no",
                            f"{sum(one == other for one, other in zip(found, answers, strict=True))} of {len(texts)}",
                            *(f"{len(texts) / sorted(taken)[len(taken) // 2]:.0f}" for taken in seconds.values()),
                            str(ratio(seconds["jumok"], seconds["fxtranslate"])),
                        ]
                    )
    print(aligned(rows))


if __name__ == "__main__":
    main()
