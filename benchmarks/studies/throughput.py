"""Measure the throughput of bundles against PyTorch's greedy decoding.

Bundles are fp32 and int8, of Transformers or recurrent models.

The contenders take turns, so other load meets all of them. Each round gives one ratio of tokens per second. All three
tokenize, decode greedily with a KV cache, and detokenize.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.common.data import TRANSFORMER
from benchmarks.common.graphs import spread_normally
from benchmarks.common.progress import setup
from benchmarks.common.ratios import aligned, ratio, turns
from jumok_export.training.checkpoint import Checkpoint, build_model
from jumok_export.training.configuration import configuration_from_values
from jumok_export.training.corpus import pad
from jumok_export.training.export import export_checkpoint
from jumok_export.training.greedy import greedy_decode
from jumok_export.training.vocabulary import Vocabulary
from jumok_serve import Translator

PEER = "PyTorch fp32"
MAX_LENGTH = 32
WORDS = """
    a the two three old young man woman girl boy child dog cat bird horse runs sits reads plays jumps eats waits looks
    in on near with under behind red blue green small big park street beach field house kitchen table bench tree ball
    book hat guitar bicycle snow rain and while people other each
"""

Translate = Callable[[Sequence[str]], int]
"""Translates texts; returns the number of target tokens."""


def untrained(folder: Path, sizes: Sequence[str] = ()) -> Checkpoint:
    """An untrained model of a bundle's sizes and vocabulary.

    Random weights are as fast as trained ones.

    Args:
        folder: folder of the bundle.
        sizes: other sizes of the model, "key=value" in TOML.
    """
    values = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    values["model"] |= tomllib.loads("\n".join(sizes))
    configuration = configuration_from_values(values)
    vocabulary = Vocabulary((folder / "tokenizer.model").read_bytes())
    torch.manual_seed(0)
    model = build_model(configuration, len(vocabulary), len(vocabulary)).eval()
    spread_normally(model)
    return Checkpoint(
        path=folder,
        configuration=configuration,
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        model=model,
        epoch=0,
        validation_score=None,
        files={},
    )


def made_up(count: int) -> list[str]:
    """Sentences of 4 to 20 words, always the same."""
    generator = random.Random(0)
    return [" ".join(generator.choices(WORDS.split(), k=generator.randint(4, 20))) for _ in range(count)]


def peer(checkpoint: Checkpoint) -> Translate:
    """PyTorch: all texts in one padded batch, which finished sentences leave."""

    def translate(texts: Sequence[str]) -> int:
        source = [torch.tensor(checkpoint.source_vocabulary.encode(text)) for text in texts]
        decoded = greedy_decode(checkpoint.model, *pad(source), MAX_LENGTH)
        for token_ids in decoded:
            checkpoint.target_vocabulary.decode(token_ids)
        return sum(map(len, decoded))

    return translate


def ours(translator: Translator) -> Translate:
    """A bundle in `Translator`."""

    def translate(texts: Sequence[str]) -> int:
        translations = translator.translate(texts, beam_size=1, max_length=MAX_LENGTH)
        return sum(translation.output_token_count for translation in translations)

    return translate


def measure(contenders: dict[str, Translate], texts: Sequence[str], together: int, rounds: int) -> Iterator[list[str]]:
    """Let the contenders translate the texts in turns; yields a row of the table for each."""
    requests = [texts[start : start + together] for start in range(0, len(texts), together)]
    seconds: dict[str, list[float]] = {name: [] for name in contenders}  # for each token
    for number, name in turns(contenders, rounds):
        start = time.perf_counter()
        tokens = sum(contenders[name](request) for request in requests)
        if number:
            seconds[name].append((time.perf_counter() - start) / tokens)
    for name, taken in seconds.items():
        yield [name, f"{together}", f"{1 / statistics.median(taken):.0f}", str(ratio(taken, seconds[PEER]))]


def main() -> None:
    """Export an untrained model, measure it, and print a table."""
    parser = argparse.ArgumentParser(description="Measure the throughput of fp32 and int8 bundles against PyTorch.")
    parser.add_argument(
        "--like", type=Path, default=TRANSFORMER, help="the untrained model's bundle; default: %(default)s"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a size of the untrained model, such as width=1024",
    )
    parser.add_argument("--sentences", type=int, default=64, help="number of made-up ones; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count; default: %(default)s")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every contender; default: %(default)s"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(setup(arguments.threads))
    texts, checkpoint = made_up(arguments.sentences), untrained(arguments.like, arguments.set)
    with tempfile.TemporaryDirectory() as folder:
        path = export_checkpoint(checkpoint, Path(folder) / "bundle", calibration=texts, progress=print).path
        with (
            Translator(path, precision="fp32", threads=arguments.threads) as fp32,
            Translator(path, precision="int8", threads=arguments.threads) as int8,
        ):
            contenders = {PEER: peer(checkpoint), "jumok fp32": ours(fp32), "jumok int8": ours(int8)}
            sizes = dict.fromkeys((1, len(texts)))
            rows = [row for size in sizes for row in measure(contenders, texts, size, arguments.rounds)]
    print(f"{len(texts)} sentences, greedy, at most {MAX_LENGTH} tokens each; medians of {arguments.rounds} rounds")
    print(aligned([["contender", "sentences a request", "tokens/s", f"ratio to {PEER} (range)"], *rows]))


if __name__ == "__main__":
    main()
