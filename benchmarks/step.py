"""Measure a decoder step, selection included, against its weight products alone, its lower bound.

The step is the engine's: searches, decoder, selection and Python. If the engine would divide the rows among replicas,
the benchmark does too, also for the products. The products are those of the decoder graph, by ONNX Runtime's fastest
kernel and by jumok's own. The table also has the time to read the keys and values of attention: products plus reads are
the lower bound of a step. All take turns by rounds, and no session's threads spin while another runs. A profile of
separate steps shows the rest of the step, since profiling slows steps down.
"""

import argparse
import json
import operator
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import torch

from benchmarks.common.random_weights import spread_normally
from benchmarks.step_tools.attention_reads import AttentionReads
from benchmarks.step_tools.step_profile import shares
from benchmarks.step_tools.weight_products import NATIVE, ProductSession, product_graphs, weight_products
from jumok_export.bundles.recipe import write_variant
from jumok_export.graphs.tracing import export_graphs
from jumok_export.models.attention import scaled_queries
from jumok_export.models.transformer import Transformer, TransformerSizes
from jumok_export.quantization.calibration import GreedySearch, calibrate
from jumok_export.quantization.int8_graphs import Scales, quantize_graph
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.engine.batch import Batch
from jumok_serve.engine.limits import EngineLimits
from jumok_serve.engine.sentence import Sentence
from jumok_serve.manifest.manifest import PrecisionVariant
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.loader import MAX_REPLICAS
from jumok_serve.search import SearchPlan
from jumok_serve.search.options import SearchOptions

PRECISIONS = ("int8", "fp32")
CASES = ((1, 1), (32, 1), (8, 4), (128, 1), (32, 4))
"""Sentences and beam sizes: 1, 32 and 128 rows."""
SOURCE_LENGTH = 20
WARM_UP = 8
"""Tokens that are decoded before the timed steps of a round."""
HEAD = 64
"""Width of an attention head."""
LEAST_SHARE = 1.0
"""Percent of a step below which operators are summed up."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Graphs to measure.

    Attributes:
        path: folder of the graphs.
        variants: graphs by precision.
        vocabulary: size of the smaller vocabulary.
        start: start token.
        pad: padding token.
    """

    path: Path
    variants: Mapping[str, PrecisionVariant]
    vocabulary: int
    start: int
    pad: int

    def variant(self, precision: str) -> PrecisionVariant:
        """The graphs of one precision."""
        return self.variants[precision]


@dataclass(frozen=True, kw_only=True)
class Result:
    """Step and products in one setting.

    Times are medians over all steps; ratios are by rounds.

    Attributes:
        precision: precision of the graphs.
        sentences: B.
        beam_size: K; there are B * K rows.
        step_ms: time of a step.
        products_ms: time of its weight products by ONNX Runtime's fastest kernel.
        kernel: name of this fastest kernel.
        ratio: median of step over products.
        lowest_ratio: lowest round.
        highest_ratio: highest round.
        kernels_ms: time by kernel.
        own_products_ms: time by jumok's kernel, or None.
        ratio_to_own: median of step over jumok's kernel, or None.
        reads_ms: time of the reads of attention.
        replicas: replicas that divide the sentences.
        ratio_with_reads: median of step over the faster products and reads.
        shares: percent of a step by operator.
    """

    precision: str
    sentences: int
    beam_size: int
    step_ms: float
    products_ms: float
    kernel: str
    ratio: float
    lowest_ratio: float
    highest_ratio: float
    kernels_ms: dict[str, float]
    own_products_ms: float | None
    ratio_to_own: float | None
    reads_ms: float
    replicas: int
    ratio_with_reads: float
    shares: dict[str, float]


def opened(path: Path) -> Model:
    """The graphs of a bundle."""
    bundle = Bundle.open(path)
    tokens = bundle.manifest.special_tokens
    vocabulary = min(bundle.tokenizer.source_vocab_size, bundle.tokenizer.vocab_size)
    return Model(
        path=bundle.path,
        variants=bundle.manifest.precisions,
        vocabulary=vocabulary,
        start=tokens.start,
        pad=tokens.pad,
    )


def made(folder: Path, *, layers: int, width: int, feed_forward: int, vocabulary: int, calibrated: bool) -> Model:
    """Graphs of a Transformer of OPUS-MT's kind with random weights, exported as a bundle's."""
    torch.manual_seed(0)
    sizes = TransformerSizes(
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
        width=width,
        heads=max(1, width // HEAD),
        feed_forward=feed_forward,
        encoder_layers=layers,
        decoder_layers=layers,
        norm="post",
        activation="silu",
        output_bias=True,
    )
    model = Transformer(sizes).eval()
    spread_normally(model)
    with scaled_queries(model):
        graphs = export_graphs(model, vocabulary, vocabulary)
    scales: Scales = {}
    if calibrated:
        sources = [random_source(vocabulary, seed) for seed in range(4)]
        scales = calibrate(graphs, sources, GreedySearch(start=0, eos=(1,), max_length=SOURCE_LENGTH)).scales
    quantized = {name: quantize_graph(graph, scales) for name, graph in graphs.items()}
    variants = {"fp32": write_variant(graphs, folder, "fp32"), "int8": write_variant(quantized, folder, "int8")}
    return Model(path=folder, variants=variants, vocabulary=vocabulary, start=0, pad=0)


def random_source(vocabulary: int, seed: int) -> list[int]:
    """Token ids, by seed."""
    return [int(token) for token in np.random.default_rng(seed).integers(2, vocabulary, SOURCE_LENGTH)]


def running_batch(graphs: Graphs, model: Model, sentences: int, beam_size: int, steps: int) -> Batch:
    """A batch that has decoded `WARM_UP` tokens and can decode `steps` more."""
    options = SearchOptions(
        beam_size=beam_size,
        num_hypotheses=1,
        length_penalty=1.0,
        early_stopping=False,
        min_length=0,
        max_length=WARM_UP + steps + 1,
        eos_ids=(),  # so that nothing ends before
        suppress_tokens=(),
    )
    batch = Batch(graphs, beam_size, model.pad)
    batch.admit(
        [
            Sentence(source_ids=random_source(model.vocabulary, seed), plan=SearchPlan(options, model.start))
            for seed in range(sentences)
        ]
    )
    for _ in range(WARM_UP):
        batch.step()
    return batch


def seconds(actions: Sequence[Callable[[], object]], times: int) -> list[float]:
    """Seconds of each run; the mean of several actions, each in its own thread."""
    together = threading.Barrier(len(actions))

    def runs(action: Callable[[], object]) -> list[float]:
        taken = []
        together.wait()
        for _ in range(times):
            started = time.perf_counter()
            action()
            taken.append(time.perf_counter() - started)
        return taken

    with ThreadPoolExecutor(len(actions)) as threads:
        return [statistics.mean(those) for those in zip(*threads.map(runs, actions), strict=True)]


def replicas_for(precision: str, sentences: int, beam_size: int, threads: int) -> int:
    """Replicas for the sentences of a large model, sharing the threads."""
    few = sentences * beam_size <= EngineLimits().max_alone_rows
    return 1 if few or precision != "int8" else max(1, min(MAX_REPLICAS, threads, sentences))


def measure(
    model: Model, precision: str, *, cases: Sequence[tuple[int, int]], rounds: int, steps: int, threads: int
) -> Iterator[Result]:
    """Measure step and products in turns; the first round warms up."""
    decoder = model.path / model.variant(precision).graphs["decoder"].file
    products = product_graphs(weight_products(onnx.load(decoder, load_external_data=False)))
    for sentences, beam_size in cases:
        replicas = replicas_for(precision, sentences, beam_size, threads)
        own_threads, own = threads // replicas, sentences // replicas
        contenders = {name: ProductSession(graph, own_threads) for name, graph in products.items()}
        graphs = Graphs(model, precision, device=CPU, threads=own_threads)
        alone = {
            name: [contender.bound(own * beam_size) for _ in range(replicas)] for name, contender in contenders.items()
        }
        reads = AttentionReads(
            graphs,
            sentences=sentences,
            source=SOURCE_LENGTH,
            entries=WARM_UP + steps // 2 + (beam_size - 1),  # beams differ in one token at least
            threads=threads,
        )
        step_rounds: list[list[float]] = []
        read_rounds: list[list[float]] = []
        product_rounds: dict[str, list[list[float]]] = {name: [] for name in alone}
        for _ in range(1 + rounds):
            batches = [running_batch(graphs, model, own, beam_size, steps) for _ in range(replicas)]
            step_rounds.append(seconds([batch.step for batch in batches], steps))
            for name, runs in alone.items():
                for run in runs:
                    run()  # brings its weights into the caches, as the batch's first steps did
                product_rounds[name].append(seconds(runs, steps))
            reads()
            read_rounds.append(seconds([reads], steps))
        medians = {name: statistics.median(chain(*taken[1:])) for name, taken in product_rounds.items()}
        fastest = min(medians.keys() - {NATIVE}, key=medians.__getitem__)
        steps_ms = [1e3 * statistics.median(taken) for taken in step_rounds[1:]]
        rounds_of = {
            name: [1e3 * statistics.median(taken) for taken in all_[1:]] for name, all_ in product_rounds.items()
        }
        reads_of = [1e3 * statistics.median(taken) for taken in read_rounds[1:]]
        ratios = ratios_of(steps_ms, rounds_of[fastest])
        least = [min(those) for those in zip(*rounds_of.values(), strict=True)]
        native = NATIVE in medians
        yield Result(
            precision=precision,
            sentences=sentences,
            beam_size=beam_size,
            step_ms=1e3 * statistics.median(chain(*step_rounds[1:])),
            products_ms=1e3 * medians[fastest],
            kernel=fastest,
            ratio=statistics.median(ratios),
            lowest_ratio=min(ratios),
            highest_ratio=max(ratios),
            kernels_ms={name: 1e3 * median for name, median in medians.items()},
            own_products_ms=1e3 * medians[NATIVE] if native else None,
            ratio_to_own=statistics.median(ratios_of(steps_ms, rounds_of[NATIVE])) if native else None,
            reads_ms=1e3 * statistics.median(chain(*read_rounds[1:])),
            ratio_with_reads=statistics.median(ratios_of(steps_ms, map(operator.add, least, reads_of))),
            replicas=replicas,
            shares=shares(model, precision, own_threads, partial(_batch_of, model, own, beam_size)),
        )


def ratios_of(times: Sequence[float], others: Iterable[float]) -> list[float]:
    """Ratios by rounds."""
    return [mine / theirs for mine, theirs in zip(times, others, strict=True)]


def _batch_of(model: Model, sentences: int, beam_size: int, graphs: Graphs, steps: int) -> Batch:
    return running_batch(graphs, model, sentences, beam_size, steps)


def table(results: Sequence[Result]) -> str:
    """The results, aligned, and the profiles below."""
    kernel = max(len(result.kernel) for result in results)
    lines = [
        f"{'':9}  {'rows':>8}  {'replicas':>8}  {'step ms':>8}  {'products ms':>11}  {'by':{kernel}}  "
        f"{'ratio':21}  {'own ms':>6}  {'ratio':>5}  {'reads ms':>8}  to both"
    ]
    lines += [
        f"{result.precision:9}  {_rows(result):>8}  {result.replicas:>8}  {result.step_ms:>8.2f}  "
        f"{result.products_ms:>11.2f}  {result.kernel:{kernel}}  "
        f"{f'{result.ratio:.2f} ({result.lowest_ratio:.2f} to {result.highest_ratio:.2f})':21}  "
        f"{_told(result.own_products_ms):>6}  {_told(result.ratio_to_own):>5}  "
        f"{result.reads_ms:>8.2f}  {result.ratio_with_reads:.2f}"
        for result in results
    ]
    lines += ["", "Percent of a step of one replica:"]
    for result in results:
        listed = [f"{kind} {share:.1f}" for kind, share in result.shares.items() if share >= LEAST_SHARE]
        rest = sum(share for share in result.shares.values() if share < LEAST_SHARE)
        lines.append(f"{result.precision}, {_rows(result)}: {', '.join(listed)}, other operators {rest:.1f}")
    return "\n".join(lines)


def _told(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"


def _rows(result: Result) -> str:
    return f"{result.sentences} x {result.beam_size}"


def main() -> None:
    """Make a model or open a bundle, measure its steps, and print a table."""
    parser = argparse.ArgumentParser(description="Measure a decoder step against its weight products alone.")
    parser.add_argument("--bundle", type=Path, help="what to measure; default: a model as OPUS-MT's, untrained")
    parser.add_argument("--layers", type=int, default=6, help="of its encoder and decoder; default: %(default)s")
    parser.add_argument("--width", type=int, default=512, help="of its layers; default: %(default)s")
    parser.add_argument("--feed-forward", type=int, default=2048, help="its inner width; default: %(default)s")
    parser.add_argument("--vocabulary", type=int, default=32000, help="its tokens; default: %(default)s")
    parser.add_argument("--uncalibrated", action="store_true", help="give its int8 one activation scale per row")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, help="default: all available")
    parser.add_argument(
        "--cases",
        type=_case,
        nargs="+",
        default=CASES,
        metavar="SENTENCESxBEAM",
        help=f"default: {' '.join(f'{sentences}x{beam}' for sentences, beam in CASES)}",
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count; default: %(default)s")
    parser.add_argument("--steps", type=int, default=16, help="steps in each; default: %(default)s")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every session; default: %(default)s"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file too")
    arguments = parser.parse_args()
    load, _, _ = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        model = opened(arguments.bundle) if arguments.bundle else _made(Path(folder), arguments)
        precisions = arguments.precisions or [name for name in PRECISIONS if name in model.variants]
        if missing := {*precisions} - {*model.variants}:
            parser.error(f"{arguments.bundle} has no {', '.join(missing)}, but {', '.join(model.variants)}")
        results = [
            result
            for precision in precisions
            for result in measure(
                model,
                precision,
                cases=arguments.cases,
                rounds=arguments.rounds,
                steps=arguments.steps,
                threads=arguments.threads,
            )
        ]
    print(
        f"\nA step of sentences x beam size, {SOURCE_LENGTH} source tokens, selection included; {arguments.threads} "
        f"threads; medians of {arguments.rounds} rounds of {arguments.steps} steps; load before: {load:.1f}\n"
    )
    print(table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2), encoding="utf-8")


def _made(folder: Path, arguments: argparse.Namespace) -> Model:
    return made(
        folder,
        layers=arguments.layers,
        width=arguments.width,
        feed_forward=arguments.feed_forward,
        vocabulary=arguments.vocabulary,
        calibrated=not arguments.uncalibrated,
    )


def _case(text: str) -> tuple[int, int]:
    sentences, beam_size = text.split("x")
    return int(sentences), int(beam_size)


if __name__ == "__main__":
    main()
