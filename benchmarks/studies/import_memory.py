"""Memory and time of imports, beside CTranslate2's conversions of the same checkpoints.

Checkpoints have random weights. Each import runs in a process of its own, which is looked at twenty times a second.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

from benchmarks.common.data import ROOT
from benchmarks.common.processes import size_on_disk
from benchmarks.common.progress import progress, setup, write_json
from benchmarks.common.random_marian import SYLLABLES, TINY, MarianSizes, make_checkpoint
from benchmarks.common.ratios import markdown

INTERVAL_S = 0.05
LOOKS_LESS_OFTEN = 10
"""Times as long as a look at the memory takes until the next one: the processes lose little of their time."""
THEIRS = """
import sys
from ctranslate2.converters import TransformersConverter
TransformersConverter(sys.argv[1]).convert(sys.argv[2], quantization=sys.argv[3].replace("fp32", "float32"))
"""

PART_BYTES = 500 * 10**6
"""Most bytes of a weights file, unless one tensor has more."""
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_NLLB: Any = M2M100ForConditionalGeneration  # untyped


@dataclass(frozen=True, kw_only=True)
class NllbSizes:
    """Sizes of a checkpoint; defaults as NLLB-200-distilled-600M.

    Attributes:
        vocabulary: vocabulary size, language codes included.
        layers: layers of the encoder, and of the decoder.
        width: d_model.
        feed_forward: width of the hidden layers.
        heads: attention heads.
        languages: number of languages.
        half: True to store fp16.
    """

    vocabulary: int = 256_206
    layers: int = 12
    width: int = 1024
    feed_forward: int = 4096
    heads: int = 16
    languages: int = 202
    half: bool = False


def make_nllb(sizes: NllbSizes, folder: Path) -> None:
    """Save an NLLB checkpoint with random weights in a new folder, always the same.

    It is written in parts, and never is in memory as a whole.
    """
    folder.mkdir(parents=True)
    _save_tokenizer(sizes, folder)
    config = M2M100Config(
        vocab_size=sizes.vocabulary,
        d_model=sizes.width,
        encoder_layers=sizes.layers,
        decoder_layers=sizes.layers,
        encoder_ffn_dim=sizes.feed_forward,
        decoder_ffn_dim=sizes.feed_forward,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        architectures=["M2M100ForConditionalGeneration"],
    )
    config.save_pretrained(folder)
    generation = {"num_beams": 4, "max_length": 200, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    _write(folder / "generation_config.json", {**generation, "decoder_start_token_id": 2})
    found: dict[str, str] = {}
    for number, part in enumerate(_parts(config, half=sizes.half)):
        name = f"model-{number:05}.safetensors"
        save_file(part, folder / name)
        found |= dict.fromkeys(part, name)
    _write(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": found})


def _parts(config: M2M100Config, *, half: bool) -> Iterator[dict[str, Tensor]]:
    with torch.device("meta"):
        model = _NLLB(config)
    random = torch.Generator().manual_seed(0)
    part: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():  # a tied one has its first name
        if "norm" in name:
            values = torch.full(parameter.shape, float(name.endswith("weight")))
        else:
            values = torch.empty(parameter.shape).normal_(std=config.init_std, generator=random)
        part[name] = values.half() if half else values
        if sum(tensor.nbytes for tensor in part.values()) >= PART_BYTES:
            yield part
            part = {}
    yield part


def _save_tokenizer(sizes: NllbSizes, folder: Path) -> None:
    """Save byte pairs that merge letters to words of three syllables."""
    codes = [f"{first}{second}{third}_Latn" for first, second, third in itertools.product("abcdefgh", repeat=3)]
    letters = sorted({letter for syllable in SYLLABLES for letter in syllable})
    pairs = itertools.chain(
        (tuple(syllable) for syllable in SYLLABLES),
        itertools.product(SYLLABLES, SYLLABLES),
        ((one + two, three) for one, two, three in itertools.product(SYLLABLES, repeat=3)),
    )
    start = [*SPECIAL, "▁", *letters]
    merges = list(itertools.islice(pairs, sizes.vocabulary - len(start) - sizes.languages - 1))  # the last is <mask>
    vocabulary = {token: number for number, token in enumerate([*start, *(left + right for left, right in merges)])}
    make: Any = NllbTokenizer  # its annotations forget the pairs of merges
    tokenizer = make(
        vocabulary, merges, additional_special_tokens=codes[: sizes.languages], src_lang=codes[0], tgt_lang=codes[1]
    )
    tokenizer.save_pretrained(folder)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


@dataclass(frozen=True)
class Shape:
    """A checkpoint to import.

    Attributes:
        sizes: sizes of the checkpoint, which say its kind too.
        limit_gib: goal of the most anonymous memory in int8.
        limit_s: goal of the time in int8; None: no goal.
    """

    sizes: MarianSizes | NllbSizes
    limit_gib: float
    limit_s: float | None = None

    def make(self, folder: Path) -> None:
        """Write the checkpoint to a new folder."""
        if isinstance(self.sizes, MarianSizes):
            make_checkpoint(self.sizes, folder)
        else:
            make_nllb(self.sizes, folder)


SHAPES = {
    "opus-mt": Shape(MarianSizes(), 1.2, 25),
    "tc-big": Shape(MarianSizes(vocabulary=60_000, width=1024, feed_forward=4096, heads=16), 2.5, 60),
    "nllb-600m": Shape(NllbSizes(), 5.0, 150),
    "nllb-1.3b": Shape(NllbSizes(layers=24, feed_forward=8192), 9.0),
    "nllb-3.3b": Shape(NllbSizes(layers=24, width=2048, feed_forward=8192, half=True), 20.0),  # in fp16
    "tiny-marian": Shape(TINY, 2.0),
    "tiny-nllb": Shape(NllbSizes(vocabulary=900, layers=1, width=32, feed_forward=64, heads=2), 2.0),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """One import or conversion; memory is at its peak, in GiB."""

    shape: str
    program: str
    precision: str
    checkpoint_gb: float
    result_gb: float
    anonymous_gib: float
    file_backed_gib: float
    seconds: float
    met: bool | None


def measure(name: str, program: str, precision: str, checkpoint: Path, out: Path) -> Result:
    """Import or convert a checkpoint in a process of its own.

    Raises:
        ChildProcessError: the process failed; has its last output.
    """
    ours = ["-m", "jumok", "import", str(checkpoint), "--out", str(out), "--precision", precision]
    theirs = ["-c", THEIRS, str(checkpoint), str(out), precision]
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, *(ours if program == "jumok" else theirs)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log) as process:
            anonymous, file_backed = _watch(process)
        log.seek(0)
        said = log.read()
    if process.returncode:
        raise ChildProcessError(f"{program} has failed on {name} with {process.returncode}:\n{said[-4000:]}")
    seconds = time.monotonic() - start
    for line in said.splitlines() if program == "jumok" else ():
        progress(f"    {line}")
    met, shape = None, SHAPES[name]
    if (program, precision) == ("jumok", "int8"):
        met = anonymous <= shape.limit_gib and (shape.limit_s is None or seconds <= shape.limit_s)
    return Result(
        shape=name,
        program=program,
        precision=precision,
        checkpoint_gb=size_on_disk(checkpoint) / 1e9,
        result_gb=size_on_disk(out) / 1e9,
        anonymous_gib=anonymous,
        file_backed_gib=file_backed,
        seconds=seconds,
        met=met,
    )


def _watch(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """Most anonymous and file-backed memory of a process and those that it starts, in GiB, until it ends."""
    anonymous = file_backed = 0
    while process.poll() is None:
        began = time.monotonic()
        now = memory_of_tree(process.pid)
        anonymous, file_backed = max(anonymous, now[0]), max(file_backed, now[1])
        time.sleep(max(INTERVAL_S, LOOKS_LESS_OFTEN * (time.monotonic() - began)))
    return anonymous / 2**20, file_backed / 2**20


def memory_of_tree(pid: int) -> tuple[int, int]:
    """Anonymous memory, shared memory included, and mapped files of a process and those that it started, in KiB.

    Pages that several of them share, as after a fork, count once.
    """
    pids = [*_tree(pid)]
    several = [_counts(each, "smaps_rollup", "Pss_") for each in pids] if len(pids) > 1 else []
    found = several if any(several) else [_counts(each, "status", "Rss") for each in pids]
    anonymous = sum(counts.get("Anon", 0) + counts.get("Shmem", 0) for counts in found)
    return anonymous, sum(counts.get("File", 0) for counts in found)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = listed.read_text(encoding="utf-8").split()
        except OSError:  # it has ended
            continue
        for child in children:
            yield from _tree(int(child))


def _counts(pid: int, file: str, prefix: str) -> dict[str, int]:
    """Counts of a file of a process whose names have a prefix, in KiB; none if it has ended."""
    try:
        content = Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8")
    except OSError:
        return {}
    return {name: int(size) for name, size in re.findall(rf"^{prefix}(\w+):\s+(\d+) kB$", content, re.MULTILINE)}


def table(results: list[Result]) -> str:
    """Format one line for each import."""
    rows = [
        [
            *(each.shape, f"{each.checkpoint_gb:.2f} GB", each.program, each.precision, f"{each.result_gb:.2f} GB"),
            *(f"{each.anonymous_gib:.2f} GiB", f"{each.file_backed_gib:.2f} GiB", f"{each.seconds:.0f} s"),
            "" if each.met is None else "met" if each.met else "missed",
        ]
        for each in results
    ]
    head = ["shape", "checkpoint", "program", "precision", "result", "anonymous memory", "file-backed", "time", "goal"]
    return markdown([head, *rows])


def make_apart(shape: str, checkpoint: Path) -> None:
    """Make a checkpoint in a process of its own, whose memory is gone when imports start."""
    progress(f"{shape}: making the checkpoint")
    maker = multiprocessing.get_context("spawn").Process(target=SHAPES[shape].make, args=(checkpoint,))
    maker.start()
    maker.join()
    if maker.exitcode:
        raise SystemExit(f"{shape}: the checkpoint was not made")
    os.sync()  # an import that writes too would wait for the disk


def main() -> None:
    """Make checkpoints, import them one after another, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=[*SHAPES][:3], help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="only show that the benchmark runs, on tiny models")
    parser.add_argument("--precisions", nargs="+", default=["int8"], help="of the bundles; default: %(default)s")
    parser.add_argument("--folder", type=Path, help="folder on a disk for the checkpoints; default: a temporary one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file too")
    arguments = parser.parse_args()
    print(setup(len(os.sched_getaffinity(0))))
    results: list[Result] = []
    for name in [*SHAPES][-2:] if arguments.quick else arguments.shapes:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            checkpoint = Path(folder) / "checkpoint"
            make_apart(name, checkpoint)
            for program in ("jumok", "CTranslate2"):
                for precision in arguments.precisions:
                    if program == "CTranslate2" and "," in precision:
                        continue
                    progress(f"{name}: {program}, {precision}")
                    with tempfile.TemporaryDirectory(dir=folder) as made:
                        results.append(measure(name, program, precision, checkpoint, Path(made) / "out"))
    print(table(results))
    write_json(arguments.json, list(map(asdict, results)))


if __name__ == "__main__":
    main()
