"""Compare an imported student of Firefox's kind with the engines that it was made for.

A student of the tiny shape of mozilla/translations learns the translations of Multi30k by a trained model of this
project, if the folder does not have it, and is written as Marian's files. Bergamot's WebAssembly engine and fxtranslate
read the same files as the import. Translations are compared text by text. Where they differ, the margin of our choice
is compared with the int8 error that the bundle states. Marian's arithmetic in NumPy tells where differences come from.
No sum of the student saturates in Bergamot's 16 bits; for another student, these are emulated too. Speeds are of the
whole test set, in rounds in which both sides take turns.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from operator import eq
from pathlib import Path

import sacrebleu
import torch

from benchmarks.common.models import MULTI30K, TRAINED
from benchmarks.common.processes import Process, Program
from benchmarks.common.progress import described, progress
from benchmarks.common.ratios import Ratio, aligned, ratio
from benchmarks.contenders.worker import Task
from benchmarks.student_tools.arithmetic import StudentArithmetic, saturating_pairs
from benchmarks.student_tools.distillation import teach
from benchmarks.student_tools.files import MODEL, SHORTLIST, VOCABULARY, write_release
from benchmarks.student_tools.margins import Margin, margins
from benchmarks.student_tools.training import SIZES, parallel_ids, read_lines, train
from jumok_export.importers.marian.binary_file import read_binary
from jumok_export.importers.marian.importing import import_marian
from jumok_serve import Translator
from jumok_serve.bundle.bundle import Bundle
from tests.support.checkpoints.bergamot import install, translate

FOLDER = Path(__file__).resolve().parents[1] / "build" / "students"
FXTRANSLATE = "fxtranslate==0.5.0"
EPOCHS = 4
LONGEST = 100
LENGTH_FACTOR = 2
"""Most tokens of Bergamot's translations as a multiple of the source's tokens, the end included."""
EQUAL_SHARE = 0.97
"""Share of texts that must be equal to Bergamot's."""
MOST_NOISE = 3.0
"""Most multiples of the stated int8 error by which our best two logits may be apart where translations differ."""
GOALS = {True: 1.5, False: 3.0}
"""Goals of the ratio of speeds: one text at a time, and the whole file."""
BERGAMOT_S = 900.0


@dataclass(frozen=True, kw_only=True)
class Equality:
    """Translations that equal another engine's.

    Attributes:
        differing: margins where they differ.
        bleu: ours and theirs.
    """

    peer: str
    shortlist: bool
    texts: int
    differing: tuple[Margin, ...]
    bleu: tuple[float, float]

    @property
    def passed(self) -> bool:
        """True if enough texts are equal, and the others differ within the noise."""
        enough = len(self.differing) <= (1 - EQUAL_SHARE) * self.texts
        return enough and all(margin.multiple <= MOST_NOISE for margin in self.differing)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Sentences a second of both sides by round."""

    shortlist: bool
    threads: int
    one_by_one: bool
    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> Ratio:
        """Ratio of the speeds."""
        return ratio(self.theirs, self.ours)


def prepare(folder: Path, corpus: Path, epochs: int) -> None:
    """Train and write the student, and import it, each unless the folder has it."""
    release = folder / "ende"
    if not (release / SHORTLIST).exists():
        run = folder / "run"
        run.mkdir(parents=True, exist_ok=True)
        texts = read_lines(corpus / "train.en.gz")
        translations = teach(TRAINED, texts, run / "translations.de", progress)
        model = train(corpus, translations, run, epochs, progress)
        vocabulary = (run / "vocabulary.spm").read_bytes()
        validation = [read_lines(corpus / f"val.{language}.gz") for language in ("en", "de")]
        pairs = [parallel_ids(vocabulary, *sides) for sides in ((texts, translations), validation)]
        write_release(release, model, vocabulary, *pairs)
    if not (folder / "bundle").exists():
        import_marian(
            release,
            folder / "bundle",
            precisions=("int8",),
            max_source_length=LONGEST,
            max_target_length=LONGEST,
            progress=progress,
        )


def translate_by_both(
    folder: Path, worker: Path, texts: Sequence[str], *, listed: bool
) -> tuple[list[list[int]], list[str]]:
    """Translate with our int8 bundle, to tokens without the end, and with Bergamot's engine."""
    release = folder / "ende"
    progress(f"translating {len(texts)} texts with Bergamot's engine, {'with' if listed else 'without'} shortlist")
    shortlist = release / SHORTLIST if listed else None
    theirs = translate(
        worker, release / MODEL, release / VOCABULARY, texts, shortlist=shortlist, timeout_s=BERGAMOT_S
    ).texts
    with Translator(folder / "bundle", precision="int8", shortlist=listed, threads=1) as translator:
        found = [one.hypotheses[0] for one in translator.translate(texts, beam_size=1, max_length=LONGEST)]
        [end] = translator.manifest.special_tokens.eos
        limits = [LENGTH_FACTOR * (1 + len(tokens)) for tokens in translator.tokenizer.encode_all(texts)]
    # Bergamot ends at a multiple of the source's length.
    tokens = [
        [token for token in one.token_ids[:limit] if token != end] for one, limit in zip(found, limits, strict=True)
    ]
    return tokens, theirs


def compare(
    folder: Path,
    texts: Sequence[str],
    references: Sequence[str],
    tokens: Sequence[Sequence[int]],
    theirs: Sequence[str],
    *,
    listed: bool,
) -> Equality:
    """Compare our translations with Bergamot's."""
    bundle = Bundle.open(folder / "bundle")
    return Equality(
        peer="Bergamot",
        shortlist=listed,
        texts=len(texts),
        differing=tuple(margins(bundle, texts, tokens, theirs, listed=listed)),
        bleu=(bleu(bundle.tokenizer.decode_all(tokens), references), bleu(theirs, references)),
    )


def emulate(folder: Path, texts: Sequence[str], *, saturating: bool) -> list[str]:
    """Translate with Marian's arithmetic in NumPy, without shortlist."""
    bundle = Bundle.open(folder / "bundle")
    special = bundle.manifest.special_tokens
    student = StudentArithmetic(read_binary(folder / "ende" / MODEL), heads=SIZES["heads"], saturating=saturating)
    progress(f"translating {len(texts)} texts with Marian's arithmetic, sums of {16 if saturating else 32} bits")
    sources = [[*tokens, *special.eos] for tokens in bundle.tokenizer.encode_all(texts)]
    found = [student.translate(source, LENGTH_FACTOR * len(source), special.suppress) for source in sources]
    return bundle.tokenizer.decode_all(found)


def bleu(found: Sequence[str], references: Sequence[str]) -> float:
    """BLEU with sacreBLEU's defaults."""
    return float(sacrebleu.corpus_bleu(list(found), [list(references)]).score)


def measure(
    folder: Path, package: Path, texts: Sequence[str], *, threads: int, listed: bool, rounds: int
) -> list[Speed]:
    """Measure sentences a second, one at a time and all at once."""
    release, bundle = folder / "ende", folder / "bundle"
    ours = Program(
        name="jumok",
        module="benchmarks.contenders.jumok_side",
        arguments=(str(bundle), "int8", "--threads", str(threads), *(["--shortlist"] if listed else [])),
    )
    theirs = Program(
        name="fxtranslate",
        module="benchmarks.contenders.fxtranslate_side",
        arguments=(
            *(str(package), str(release / MODEL), str(release / VOCABULARY)),
            *("--processes", str(threads), *(["--shortlist", str(release / SHORTLIST)] if listed else [])),
        ),
    )
    found: list[Speed] = []
    with ExitStack() as stack:
        processes = [stack.enter_context(Process(program)) for program in (ours, theirs)]
        for one_by_one in (True, False):
            task = Task(
                texts=list(texts),
                tokens=[],
                beam_size=1,
                min_length=0,
                max_length=LONGEST,
                least_s=0.0,
                one_by_one=one_by_one,
            )
            seconds: list[list[float]] = [[], []]
            for number in range(1 + rounds):  # the first warms up
                for side in ((0, 1), (1, 0))[number % 2]:
                    seconds[side].append(processes[side].measure(task).median)
            rates = [[len(texts) / each for each in of_side[1:]] for of_side in seconds]
            found.append(
                Speed(shortlist=listed, threads=threads, one_by_one=one_by_one, ours=rates[0], theirs=rates[1])
            )
            progress(f"{threads} threads, {'one by one' if one_by_one else 'together'}: {found[-1].ratio}")
    return found


def equality_table(found: Sequence[Equality]) -> str:
    """Table of equal texts and margins."""
    rows = [["engine", "shortlist", "equal", "largest gap / int8 error", "limit", "BLEU", "theirs"]]
    for each in found:
        largest = max((margin.multiple for margin in each.differing), default=0.0)
        rows.append(
            [
                each.peer,
                "yes" if each.shortlist else "no",
                f"{each.texts - len(each.differing)} of {each.texts}",
                f"{largest:.2f}",
                f"{MOST_NOISE:g} {'met' if each.passed else 'MISSED'}",
                *(f"{score:.2f}" for score in each.bleu),
            ]
        )
    return aligned(rows)


def arithmetic_table(engines: Mapping[str, Sequence[str]]) -> str:
    """Table of the texts that every two engines translate alike."""
    rows = [["equal translations", *engines]]
    for name, found in engines.items():
        rows.append([name, *(str(sum(map(eq, found, others))) for others in engines.values())])
    return aligned(rows)


def speed_table(found: Sequence[Speed]) -> str:
    """Table of speeds."""
    rows = [["texts", "shortlist", "threads", "sentences/s", "fxtranslate", "ratio (range)", "goal"]]
    for each in found:
        goal = GOALS[each.one_by_one]
        rows.append(
            [
                "one by one" if each.one_by_one else "together",
                "yes" if each.shortlist else "no",
                str(each.threads),
                *(f"{sorted(rates)[len(rates) // 2]:.0f}" for rates in (each.ours, each.theirs)),
                str(each.ratio),
                f"{goal:g} {'met' if each.ratio.median >= goal else 'missed'}",
            ]
        )
    return aligned(rows)


def installed(folder: Path) -> Path:
    """Install fxtranslate into a folder of its own, once."""
    target = folder / FXTRANSLATE
    if not target.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--target", str(target), FXTRANSLATE], check=True)
    return target


def main() -> int:
    """Run the benchmark; returns 1 if too many translations differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=MULTI30K, help="folder of Multi30k; default: %(default)s")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the student and the engines")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs of training")
    parser.add_argument("--texts", type=int, default=1000, help="texts of test_2016_flickr")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the speeds")
    parser.add_argument("--only", choices=("equality", "speed"), help="default: both")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args()
    folder = arguments.folder
    prepare(folder, arguments.data, arguments.epochs)
    texts, references = (
        read_lines(arguments.data / f"test_2016_flickr.{language}.gz")[: arguments.texts] for language in ("en", "de")
    )
    equal: list[Equality] = []
    speeds: list[Speed] = []
    if arguments.only != "speed":
        worker = install(folder / "bergamot")
        found = {listed: translate_by_both(folder, worker, texts, listed=listed) for listed in (False, True)}
        equal = [compare(folder, texts, references, *both, listed=listed) for listed, both in found.items()]
        print(equality_table(equal))
        tokens, theirs = found[False]
        engines = {"jumok": Bundle.open(folder / "bundle").tokenizer.decode_all(tokens), "Bergamot": theirs}
        pairs = saturating_pairs(read_binary(folder / "ende" / MODEL))
        print(f"{pairs} pairs of weights can saturate sums of 16 bits")
        for saturating in (False, True) if pairs else (False,):
            engines[f"{16 if saturating else 32} bits"] = emulate(folder, texts, saturating=saturating)
        print(arithmetic_table(engines))
    if arguments.only != "equality":
        package = installed(folder)
        for listed in (False, True):
            for threads in (1, 2):
                speeds += measure(folder, package, texts, threads=threads, listed=listed, rounds=arguments.rounds)
        print(speed_table(speeds))
    if arguments.json:
        content = {
            **described(torch.get_num_threads(), ("jumok", "onnxruntime", "torch")),
            "equality": [asdict(each) for each in equal],
            "speeds": [asdict(each) for each in speeds],
        }
        arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return int(not all(each.passed for each in equal))


if __name__ == "__main__":
    sys.exit(main())
