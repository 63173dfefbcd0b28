"""Measure a decoder step, selection included, against its weight products alone, its lower bound.

The step is the engine's: searches, decoder, selection and Python. If the engine would divide the rows among replicas,
the benchmark does too, also for the products. The products are those of the decoder graph, by ONNX Runtime's
kernel and, in int8, by jumok's own. The table also has the time to read the keys and values of attention: products plus
reads are the lower bound of a step. All take turns by rounds, and no session's threads spin while another runs. A
profile of separate steps shows the rest of the step, since profiling slows steps down.
"""

import argparse
import json
import operator
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import OrtValue

from benchmarks.common.graphs import Model, Sizes, opened, random_graphs, sentence, sources
from benchmarks.common.progress import setup, write_json
from benchmarks.common.ratios import Ratio, aligned, ratio
from jumok_export.bundles.recipe import write_variant
from jumok_export.graphs.graph import OPSET
from jumok_export.graphs.quantize_matrix import quantize_weight
from jumok_export.native.operators import DOMAIN, VERSION
from jumok_export.quantization.calibration import GreedySearch, calibrate
from jumok_export.quantization.int8_graphs import quantize_graph
from jumok_serve.engine.batch import Batch
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.native import library
from jumok_serve.runtime.device import CPU
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.loader import MAX_REPLICAS
from jumok_serve.runtime.sessions import GraphSessions
from jumok_serve.runtime.tensors import padded_length

PRECISIONS = ("int8", "fp32")
CASES = ((1, 1), (32, 1), (8, 4), (128, 1), (32, 4))
"""Sentences and beam sizes: 1, 32 and 128 rows."""
SOURCE_LENGTH = 20
WARM_UP = 8
"""Tokens that are decoded before the timed steps of a round."""
LEAST_SHARE = 1.0
"""Percent of a step below which operators are summed up."""
PROFILED_STEPS = 24
CONTAINERS = ("If", "Loop", "Scan")
"""Operators that contain others' time."""
OWN_PRODUCTS = (
    "Product",
    "ProductQuantized",
    "ProductAddNorm",
    "ProductAddNormQuantized",
    "ThreeProducts",
    "FloatProduct",
    "FloatProductAddNorm",
    "ThreeFloatProducts",
)
"""Native products, with the operators fused into them."""

CONTRIBUTED = "com.microsoft"
WEIGHT_INPUTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "MatMul": 1,
        "Gemm": 1,
        "FusedMatMul": 1,
        "FusedGemm": 1,
        "MatMulInteger": 1,
        "MatMulIntegerToFloat": 1,
        "DynamicQuantizeMatMul": 1,
        "Product": 3,
    }
)
"""Operators that multiply with weights, with the index of the weight input."""
IN_FLOATS = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm")


@dataclass(frozen=True, kw_only=True)
class Result:
    """Step and products in one setting.

    Times are medians over all steps in milliseconds; ratios are those of the step by rounds.

    Attributes:
        precision: precision of the graphs.
        sentences: B.
        beam_size: K; there are B * K rows.
        replicas: replicas that divide the sentences.
        step_ms: time of a step.
        products_ms: time of its weight products by ONNX Runtime's kernel.
        ratio: ratio to these products.
        native_ms: time of the products by jumok's kernel, or None.
        reads_ms: time of the reads of attention.
        ratio_to_bound: ratio to the faster products and the reads together.
        shares: percent of a step by operator.
    """

    precision: str
    sentences: int
    beam_size: int
    replicas: int
    step_ms: float
    products_ms: float
    ratio: Ratio
    native_ms: float | None
    reads_ms: float
    ratio_to_bound: Ratio
    shares: dict[str, float]


def made(folder: Path, sizes: Sizes) -> Model:
    """Make graphs of a Transformer of OPUS-MT's kind with random weights, exported as a bundle's."""
    graphs = random_graphs(sizes)
    drawn = sources(sizes.vocabulary, 4, (SOURCE_LENGTH, SOURCE_LENGTH))
    scales = calibrate(graphs, drawn, GreedySearch(start=0, eos=(1,), max_length=SOURCE_LENGTH)).scales
    quantized = {name: quantize_graph(graph, scales) for name, graph in graphs.items()}
    variants = {"fp32": write_variant(graphs, folder, "fp32"), "int8": write_variant(quantized, folder, "int8")}
    return Model(path=folder, variants=variants, vocabulary=sizes.vocabulary)


def running_batch(graphs: Graphs, model: Model, sentences: int, beam_size: int, steps: int) -> Batch:
    """Make a batch that has decoded `WARM_UP` tokens and can decode `steps` more."""
    batch = Batch(graphs, beam_size, model.pad)
    drawn = sources(model.vocabulary, sentences, (SOURCE_LENGTH, SOURCE_LENGTH))
    batch.admit([sentence(model, source, beam_size=beam_size, tokens=WARM_UP + steps + 1) for source in drawn])
    for _ in range(WARM_UP):
        batch.step()
    return batch


@dataclass(frozen=True)
class WeightProduct:
    """A product of activations [R, K] with a constant matrix [K, N].

    Attributes:
        inner: K.
        outer: N.
        quantized: True if it is computed in int8.
    """

    inner: int
    outer: int
    quantized: bool


def weight_products(model: onnx.ModelProto) -> list[WeightProduct]:
    """Find the products of a graph with constant matrices, in order."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer if len(tensor.dims) == 2}
    products = []
    for node in model.graph.node:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type in ("Transpose", "Identity", "Cast") and node.input[0] in shapes:
            rows, columns = shapes[node.input[0]]
            shapes[node.output[0]] = (columns, rows) if node.op_type == "Transpose" else (rows, columns)
        elif node.op_type in WEIGHT_INPUTS and node.input[WEIGHT_INPUTS[node.op_type]] in shapes:
            shape = shapes[node.input[WEIGHT_INPUTS[node.op_type]]]
            inner, outer = shape[::-1] if attributes.get("transB") else shape
            products.append(WeightProduct(inner, outer, quantized=node.op_type not in IN_FLOATS))
    return products


def product_graph(products: Sequence[WeightProduct], *, native: bool) -> onnx.ModelProto:
    """Make a graph of the products alone, each with its own random weights.

    Args:
        products: products of a decoder.
        native: True to compute those in int8 by jumok's kernel, False by ONNX Runtime's.
    """
    random = np.random.default_rng(0)
    constants: dict[str, Any] = {"scale": np.float32(0.03), "centre": np.uint8(128), "zero": np.int8(0)}
    nodes, inputs, outputs = [], {}, []
    for number, product in enumerate(products):
        element = TensorProto.UINT8 if product.quantized else TensorProto.FLOAT
        activation = f"activation.{element}.{product.inner}"
        inputs[activation] = helper.make_tensor_value_info(activation, element, ["R", product.inner])
        weight, scales, output = (f"{name}{number}" for name in ("weight", "scales", "product"))
        outputs.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, ["R", product.outer]))
        values = random.normal(scale=0.02, size=(product.inner, product.outer)).astype(np.float32)
        constants[weight] = values
        if not product.quantized:
            nodes.append(helper.make_node("MatMul", [activation, weight], [output]))
            continue
        constants[weight], _ = quantize_weight(values, 1)
        constants[scales] = np.full(product.outer, 0.02, np.float32)
        if native:
            given = [activation, "scale", "centre", weight, scales, ""]
            node = helper.make_node("Product", given, [output], domain=DOMAIN, transposed=0, biased=0, activation=0)
            nodes.append(node)
        else:
            given = [activation, weight, "scale", scales, "centre", "zero"]
            nodes.append(helper.make_node("MatMulIntegerToFloat", given, [output], domain=CONTRIBUTED))
    initializers = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "products", list(inputs.values()), outputs, initializers)
    opsets = [helper.make_opsetid(*each) for each in (("", OPSET), (CONTRIBUTED, 1), (DOMAIN, VERSION))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


class ProductSession:
    """A graph of products, ready to run.

    Args:
        model: a graph of `product_graph`.
        threads: threads of its kernels.
    """

    def __init__(self, model: onnx.ModelProto, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        if (operators := library()) is not None:
            options.register_custom_ops_library(str(operators))
        options.add_session_config_entry("session.force_spinning_stop", "1")  # leaves the cores to the next contender
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def bound(self, rows: int) -> Callable[[], None]:
        """Return a function that computes the products of `rows` rows, over bound inputs and outputs."""
        random = np.random.default_rng(0)
        binding = self._session.io_binding()
        for value in self._session.get_inputs():
            array: NDArray[Any] = random.normal(size=(rows, value.shape[1])).astype(np.float32)
            if value.type == "tensor(uint8)":
                array = random.integers(0, 256, array.shape).astype(np.uint8)
            binding.bind_ortvalue_input(value.name, OrtValue.ortvalue_from_numpy(array))
        for value in self._session.get_outputs():
            place = OrtValue.ortvalue_from_numpy(np.empty((rows, value.shape[1]), np.float32))
            binding.bind_ortvalue_output(value.name, place)
        return lambda: self._session.run_with_iobinding(binding)


class AttentionReads:
    """Keys, values and reading threads: a lower bound of attention.

    Args:
        graphs: the model.
        sentences: B.
        source: tokens of every source.
        entries: tokens of a sentence's rows, shared ones counted once.
        threads: threads that divide the reads.
    """

    def __init__(self, graphs: Graphs, *, sentences: int, source: int, entries: int, threads: int) -> None:
        sizes = {"S": padded_length(source), "E": padded_length(entries)}
        specs = (*graphs.memory_specs, *graphs.state_specs)
        shapes = [[axis if isinstance(axis, int) else sizes[axis] for axis in spec.axes[1:]] for spec in specs]
        # Floats are read as fast as memory gives them, halves are not: so there are floats of as many bytes.
        tensors = [
            np.ones(sentences * int(np.prod(shape)) * np.dtype(spec.dtype).itemsize // 4, np.float32)
            for spec, shape in zip(specs, shapes, strict=True)
        ]
        self._parts = [[np.array_split(tensor, threads)[part] for tensor in tensors] for part in range(threads)]
        self._workers = ThreadPoolExecutor(threads)

    def __call__(self) -> None:
        """Read all keys and values."""
        list(self._workers.map(_read, self._parts))


def _read(arrays: Sequence[NDArray[np.float32]]) -> None:
    for array in arrays:
        array.max()


class ProfiledSessions(GraphSessions):
    """Sessions that profile the operators of the decoder.

    Args:
        folder: folder of the profiles.
        others: see `GraphSessions`.
    """

    def __init__(self, *others: Any, folder: Path, **named: Any) -> None:
        self._profile_folder = folder
        super().__init__(*others, **named)

    def _open(self, role: str, layers: Sequence[int] = ()) -> Any:
        self._options.enable_profiling = role == "decoder"
        self._options.profile_file_prefix = str(self._profile_folder / role)
        return super()._open(role, layers)

    def profile(self) -> list[dict[str, Any]]:
        """End profiling; returns the decoder's events."""
        file = Path(self.opened["decoder"].end_profiling())
        events: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        return events


def shares(model: Model, precision: str, threads: int, sentences: int, beam_size: int) -> dict[str, float]:
    """Measure the percent of a step by operator, the largest first.

    Args:
        model: the graphs.
        precision: precision of the graphs.
        threads: threads of a graph's operators.
        sentences: B.
        beam_size: K.
    """
    with tempfile.TemporaryDirectory() as folder:
        opened_here: list[ProfiledSessions] = []

        def open_sessions(*arguments: Any, **named: Any) -> ProfiledSessions:
            opened_here.append(ProfiledSessions(*arguments, folder=Path(folder), **named))
            return opened_here[0]

        graphs = Graphs(model, precision, device=CPU, threads=threads, open_sessions=open_sessions)
        batch = running_batch(graphs, model, sentences, beam_size, PROFILED_STEPS)
        started = time.perf_counter()
        for _ in range(PROFILED_STEPS):
            batch.step()
        whole = 1e6 * (time.perf_counter() - started)
        events = opened_here[0].profile()
    runs = [event for event in events if event["name"] == "model_run"][-PROFILED_STEPS:]
    in_runs = sum(run["dur"] for run in runs)
    spent: Counter[str] = Counter()  # microseconds
    for event in events:
        if event["name"].endswith("_kernel_time") and event["ts"] >= runs[0]["ts"]:
            spent[_kind(event["args"])] += event["dur"]
    for container in CONTAINERS:
        del spent[f"decoder: {container}"]
    spent["between operators"] = in_runs - spent.total()
    spent["outside the graphs"] = round(whole) - in_runs
    return {kind: 100 * duration / whole for kind, duration in spent.most_common()}


def _kind(node: Mapping[str, Any]) -> str:
    """Return the category of an operator: a product with weights, or its type."""
    operator = node["op_name"]
    # A product of activations has two operands with heads, and prepacked weights are not among the inputs at all.
    operands = sum(len(shape) > 2 for value in node["input_type_shape"] for shape in value.values())
    if operator in OWN_PRODUCTS or (operator in WEIGHT_INPUTS and (operator not in IN_FLOATS or operands < 2)):
        return "weight products"
    return f"decoder: {operator}"


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
    products = weight_products(onnx.load(decoder, load_external_data=False))
    kernels = [False, *([True] if precision == "int8" and library() is not None else [])]
    for sentences, beam_size in cases:
        replicas = replicas_for(precision, sentences, beam_size, threads)
        own_threads, own = threads // replicas, sentences // replicas
        sessions = [ProductSession(product_graph(products, native=native), own_threads) for native in kernels]
        runs = [[session.bound(own * beam_size) for _ in range(replicas)] for session in sessions]
        graphs = Graphs(model, precision, device=CPU, threads=own_threads)
        reads = AttentionReads(
            graphs,
            sentences=sentences,
            source=SOURCE_LENGTH,
            entries=WARM_UP + steps // 2 + (beam_size - 1),  # beams differ in one token at least
            threads=threads,
        )
        found: list[list[list[float]]] = []  # of step, reads, and products by kernel; by round
        for number in range(1 + rounds):
            batches = [running_batch(graphs, model, own, beam_size, steps) for _ in range(replicas)]
            taken = [seconds([batch.step for batch in batches], steps)]
            reads()
            taken.append(seconds([reads], steps))
            for bound in runs:
                for run in bound:
                    run()  # brings its weights into the caches, as the batch's first steps did
                taken.append(seconds(bound, steps))
            if number:
                found.append(taken)
        step, read, *by_kernel = ([statistics.median(times) for times in each] for each in zip(*found, strict=True))
        step_ms, reads_ms, products_ms, *native_ms = (
            1e3 * statistics.median(chain(*each)) for each in zip(*found, strict=True)
        )
        least = [min(those) for those in zip(*by_kernel, strict=True)]
        yield Result(
            precision=precision,
            sentences=sentences,
            beam_size=beam_size,
            replicas=replicas,
            step_ms=step_ms,
            products_ms=products_ms,
            ratio=ratio(by_kernel[0], step),
            native_ms=native_ms[0] if native_ms else None,
            reads_ms=reads_ms,
            ratio_to_bound=ratio(list(map(operator.add, least, read)), step),
            shares=shares(model, precision, own_threads, own, beam_size),
        )


def table(results: Sequence[Result]) -> str:
    """Format the results, and the profiles below."""
    head = ["precision", "rows", "replicas", "step ms", "products ms", "ratio (range)", "native ms", "reads ms"]
    rows = [[*head, "ratio to native and reads (range)"]]
    lines = ["Percent of a step of one replica:"]
    for each in results:
        name = f"{each.sentences} x {each.beam_size}"
        native = "-" if each.native_ms is None else f"{each.native_ms:.2f}"
        times = (f"{each.step_ms:.2f}", f"{each.products_ms:.2f}", str(each.ratio), native, f"{each.reads_ms:.2f}")
        rows.append([each.precision, name, f"{each.replicas}", *times, str(each.ratio_to_bound)])
        listed = [f"{kind} {share:.1f}" for kind, share in each.shares.items() if share >= LEAST_SHARE]
        rest = sum(share for share in each.shares.values() if share < LEAST_SHARE)
        lines.append(f"{each.precision}, {name}: {', '.join(listed)}, other operators {rest:.1f}")
    return "\n".join([aligned(rows), "", *lines])


def main() -> None:
    """Make a model or open a bundle, measure its steps, and print a table."""
    parser = argparse.ArgumentParser(description="Measure a decoder step against its weight products alone.")
    parser.add_argument("--bundle", type=Path, help="what to measure; default: a model as OPUS-MT's, untrained")
    for name, default in asdict(Sizes()).items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=default, help="of the untrained model; default: %(default)s")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, help="default: all available")
    parser.add_argument("--cases", type=_case, nargs="+", default=CASES, metavar="SENTENCESxBEAM")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count; default: %(default)s")
    parser.add_argument("--steps", type=int, default=16, help="steps in each; default: %(default)s")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every session; default: %(default)s"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file too")
    arguments = parser.parse_args()
    print(setup(arguments.threads))
    settings = {name: getattr(arguments, name) for name in ("cases", "rounds", "steps", "threads")}
    with tempfile.TemporaryDirectory() as folder:
        sizes = Sizes(**{name: getattr(arguments, name) for name in asdict(Sizes())})
        model = opened(arguments.bundle) if arguments.bundle else made(Path(folder), sizes)
        precisions = arguments.precisions or [name for name in PRECISIONS if name in model.variants]
        if missing := {*precisions} - {*model.variants}:
            parser.error(f"{arguments.bundle} has no {', '.join(missing)}, but {', '.join(model.variants)}")
        results = [result for precision in precisions for result in measure(model, precision, **settings)]
    print(
        f"\nA step of sentences x beam size, {SOURCE_LENGTH} source tokens, selection included; medians of "
        f"{arguments.rounds} rounds of {arguments.steps} steps\n\n{table(results)}"
    )
    write_json(arguments.json, list(map(asdict, results)))


def _case(text: str) -> tuple[int, int]:
    sentences, beam_size = text.split("x")
    return int(sentences), int(beam_size)


if __name__ == "__main__":
    main()
