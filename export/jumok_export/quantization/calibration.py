"""Calibration: find constant activation scales for an int8 graph on sentences."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from torch import nn

from jumok_export.graphs.graph import Graph
from jumok_export.graphs.quantize_matrix import MAX_GIVEN_WEIGHT
from jumok_export.graphs.weights import name_weights_alone
from jumok_export.quantization.find_matrices import (
    RECTIFIED,
    SIGNED,
    Matrices,
    QuantizedRange,
    rectified_keys,
    weight_key,
)
from jumok_export.quantization.int8_graphs import Multipliers, Scales
from jumok_proto.errors import JumokError
from jumok_serve.evaluation.parallel_text import CorpusError, read_lines
from jumok_serve.manifest.languages import Direction
from jumok_serve.runtime.graphs import Integers
from jumok_serve.tokenizers.tokenizer import Tokenizer

MOST_SENTENCES = 500
"""Sentences that are used, evenly spread over those given. Scales settle early: see `best_scale`."""
GROUP = 32
"""Sentences of one length that are translated together."""
TARGET_TOKENS = 2
"""Most target tokens per source token: longer translations repeat themselves."""
REPORTED = 100
"""Sentences between two progress reports."""

MANTISSA_BITS = 17
"""Mantissa bits of a float32 that its histogram ignores: 64 bins per power of 2."""
BINS = int(np.array(np.inf, np.float32).view(np.uint32)) >> MANTISSA_BITS
"""Bins of a histogram of finite magnitudes: magnitudes are ordered as their bits."""
EDGES = np.nan_to_num((np.arange(BINS + 1, dtype=np.uint32) << MANTISSA_BITS).view(np.float32))
"""Bin i holds the magnitudes from `EDGES[i]` up to `EDGES[i + 1]`."""
CLIPPED_BINS = 5 * 64
"""Bins that may be clipped: the largest magnitude is at most 2 ** 5 times the range."""


class CalibrationError(JumokError, ValueError):
    """Texts cannot be used for calibration; the message says which and why."""


@dataclass(frozen=True, kw_only=True)
class GreedySearch:
    """Options of greedy search over calibration sentences."""

    start: int
    forced_first: int | None = None
    eos: tuple[int, ...]
    suppress: tuple[int, ...] = ()
    max_length: int


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Results of a calibration.

    Attributes:
        scales: activation scale by matrix key, for each matrix that the sentences reached.
        targets: token ids of their translations, without the start token.
        given: True if the scales came with the model, for the range of activations in general.
        multipliers: of the weights that came in 8 bits with the scales.
    """

    scales: Scales
    start: int
    sources: tuple[Integers, ...]
    targets: tuple[Integers, ...]
    given: bool = False
    multipliers: Multipliers = field(default_factory=dict)


def read_calibration(path: Path) -> list[str]:
    """Read the non-blank lines of a file, plain or gzip.

    Raises:
        CalibrationError: the file is unreadable, not UTF-8, or empty.
    """
    try:
        texts = [line for line in read_lines(path) if line.strip()]
    except CorpusError as error:
        raise CalibrationError(f"calibration: {error}") from error
    if not texts:
        raise CalibrationError(f"{path} has no line to calibrate on; give some hundreds of sentences, one per line")
    return texts


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer, direction: Direction, max_length: int) -> list[list[int]]:
    """Tokenize texts, with the task prefix and the source tokens of a direction.

    Args:
        max_length: most tokens of a source; longer ones and empty ones are left out.

    Raises:
        CalibrationError: no text is left.
    """
    tokenized = [tokenizer.encode(direction.task_prefix + text) for text in texts if text.strip()]
    prefix, suffix = direction.source_prefix, direction.source_suffix
    sources = [[*prefix, *ids, *suffix] for ids in tokenized if ids]
    fitting = [source for source in sources if len(source) <= max_length]
    if not fitting:
        raise CalibrationError(
            f"none of the {len(texts)} calibration texts can be used: {len(texts) - len(sources)} are empty and "
            f"{len(sources)} have more than {max_length} tokens; give some hundreds of sentences"
        )
    return fitting


def calibrate(
    graphs: Mapping[str, Graph],
    sources: Sequence[Sequence[int]],
    search: GreedySearch,
    progress: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Translate sentences with the fp32 graphs and find the scale of each activation.

    Sentences of one length are translated together, and leave when they end: no padding is counted.

    Args:
        graphs: `encoder` and `decoder` in fp32. The scales hold for every graph of the model: they go by the matrices'
            content.
        sources: token ids of the sentences, none of them empty.

    Raises:
        ValueError: no sentences.
    """
    if not sources:
        raise ValueError("calibration needs at least one sentence")
    spread = sources[:: -(-len(sources) // MOST_SENTENCES)]
    ordered = sorted((np.array(source, np.int64) for source in spread), key=len)
    targets: list[Integers] = []
    encoder, decoder = _WatchedGraph(graphs["encoder"]), _WatchedGraph(graphs["decoder"])
    for group in _groups(ordered):
        before = len(targets) // REPORTED
        targets += _translate(encoder, decoder, np.stack(group), search)
        if len(targets) // REPORTED > before:
            progress(f"calibrated on {len(targets)} of {len(ordered)} sentences")
    counts: dict[str, Integers] = {}
    for key, found in (*encoder.counts(), *decoder.counts()):
        counts[key] = counts[key] + found if key in counts else found
    rectified = rectified_keys(graphs[name] for name in ("encoder", "decoder"))
    return Calibration(
        # An activation that was always 0 keeps scales by row.
        scales={
            key: best_scale(found, RECTIFIED if key in rectified else SIGNED)
            for key, found in counts.items()
            if found[1:].any()
        },
        start=search.start,
        sources=tuple(ordered),
        targets=tuple(targets),
    )


def given_calibration(
    model: nn.Module,
    scales: Mapping[str, float],
    multipliers: Mapping[str, float],
    start: int,
    _: Mapping[str, Graph],
) -> Calibration:
    """Use the activation scales that came with a model, without sentences.

    Args:
        model: the model of the graphs, as it is traced.
        scales: activation scale by the name of the matrix that the activation is multiplied with, [N, K].
        multipliers: of matrices that came in 8 bits, by name.
    """
    matrices = {name: each.detach().numpy() for name, each in model.named_parameters(remove_duplicate=False)}
    keys = {name: weight_key(matrices[name].T) for name in scales}
    return Calibration(
        scales={keys[name]: scale for name, scale in scales.items()},
        start=start,
        sources=(),
        targets=(),
        given=True,
        multipliers={
            keys[name]: _folded(matrices[name], multiplier) for name, multiplier in multipliers.items() if name in keys
        },
    )


def _folded(matrix: NDArray[np.float32], multiplier: float) -> float:
    """A multiplier after an export has folded a power of two into the matrix.

    Right if the largest value is 127; a matrix without it is quantized anew, and no multiplier fits it.
    """
    largest = float(np.abs(matrix).max(initial=0)) * multiplier
    return multiplier * 2.0 ** round(math.log2(MAX_GIVEN_WEIGHT / largest)) if largest else multiplier


def best_scale(counts: Integers, activation_range: QuantizedRange) -> float:
    """Find the quantization scale with the least squared error.

    Larger magnitudes are clipped.

    Chosen by measurement on the Transformer of `models/` (3 + 3 layers, 300 calibration sentences). Relative error of
    the logits of 250 other sentences: 0.0109 with one scale per row; constant scales 0.0189 (maximum), 0.0437 (99.9th
    percentile), 0.0167 (99.99th), 0.0163 (least squared error). Percentiles depend on the number of values; least
    squared error was the same on 10 sentences.

    Args:
        counts: number of values per bin of `EDGES`, [BINS].

    Returns:
        The scale: the value of quantized value 1.
    """
    present = np.flatnonzero(counts)
    number = counts[present].astype(np.float64)
    magnitude = (EDGES[present].astype(np.float64) + EDGES[present + 1]) / 2
    errors = {}
    for largest in EDGES[max(int(present[-1]) + 1 - CLIPPED_BINS, 1) : int(present[-1]) + 2].tolist():
        scale = largest / activation_range.largest
        # Below half a scale values round to 0; above, the errors are spread evenly over one scale.
        error = np.where(magnitude < scale / 2, magnitude**2, scale**2 / 12)
        error = np.where(magnitude > largest, (magnitude - largest) ** 2, error)
        errors[scale] = float((number * error).sum())
    best: float = min(errors, key=lambda scale: errors[scale])
    return best


def _groups(ordered: Sequence[Integers]) -> Iterator[Sequence[Integers]]:
    for _, same_length in groupby(ordered, key=len):
        group = list(same_length)
        yield from (group[first : first + GROUP] for first in range(0, len(group), GROUP))


class _WatchedGraph:
    """A graph that counts the magnitudes of the activations of its matrices."""

    def __init__(self, graph: Graph) -> None:
        matrices = Matrices(graph.model)
        self._keys: dict[str, set[str]] = {}  # keys of the matrices by activation
        for product in matrices.products():
            self._keys.setdefault(product.activation, set()).add(matrices.key(product))
        self._counts = {name: np.zeros(BINS, np.int64) for name in self._keys}
        model = graph.copy_model()
        present = {value.name for value in (*model.graph.input, *model.graph.output)}
        model.graph.output.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self._keys if name not in present
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        folder = name_weights_alone(model)
        if folder is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        content = model.SerializeToString()
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._inputs = {spec.name for spec in graph.inputs}
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._state_specs = [spec for spec in graph.inputs if spec.name.startswith("state.")]
        self.in_place = "visible" in self._inputs
        """True if the graph writes into preallocated buffers of state."""

    def empty_state(self, rows: int, time: int) -> dict[str, NDArray[Any]]:
        """A decoder's state before any token, for `rows` rows and `time` tokens."""
        sizes = {"T": time, "E": time}
        return {
            spec.name: np.zeros(
                [rows, *(axis if isinstance(axis, int) else sizes[axis] for axis in spec.axes[1:])], spec.dtype
            )
            for spec in self._state_specs
        }

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the graph and count magnitudes; returns the outputs by name."""
        used = {name: value for name, value in feeds.items() if name in self._inputs}
        values = {**used, **dict(zip(self._outputs, self._session.run(self._outputs, used), strict=True))}
        for name in self._counts:
            bins = np.abs(values[name]).view(np.uint32) >> MANTISSA_BITS
            self._counts[name] += np.bincount(bins.ravel(), minlength=BINS)[
                :BINS
            ]  # infinities and NaN are beyond the last bin
        return values

    def counts(self) -> Iterator[tuple[str, Integers]]:
        """Counts by matrix key; a key may occur more than once."""
        for name, keys in self._keys.items():
            for key in keys:
                yield key, self._counts[name]


def _translate(
    encoder: _WatchedGraph, decoder: _WatchedGraph, sources: Integers, search: GreedySearch
) -> list[Integers]:
    """Translate sources [B, S] without padding, greedily."""
    running = np.arange(len(sources))  # sentences that have not ended: the decoder's rows
    lengths = np.full(len(sources), sources.shape[1])
    encoded = encoder.run({"source_ids": sources, "source_lengths": lengths})
    memory = {name: value for name, value in encoded.items() if name.startswith("memory.")}
    longest = min(search.max_length, TARGET_TOKENS * sources.shape[1])
    times = np.arange(longest)
    state = decoder.empty_state(len(sources), longest) if decoder.in_place else decoder.empty_state(1, 0)
    parents = np.zeros_like(running)
    first = {name: encoded[name] for name in state if name in encoded}
    if first:
        state = {name: np.repeat(value, len(sources), axis=0) for name, value in state.items()} | first
        parents = running
    tokens = np.full(len(sources), search.start)
    translations: list[list[int]] = [[] for _ in sources]
    for position in range(longest):
        zeros = np.zeros_like(running)
        rows = {
            "token_ids": tokens[:, None] if decoder.in_place else tokens,
            "positions": zeros[:, None] + position if decoder.in_place else zeros + position,
            "parents": parents,
            "places": np.stack([np.arange(len(running)), zeros, zeros + position], axis=1)[:, None],
            "visible": np.broadcast_to(times <= position, (len(running), 1, longest)),
            "entry_positions": np.broadcast_to(times, (len(running), longest)),
            "source_lengths": lengths[running],
        }
        found = decoder.run({**rows, **memory, **state})
        state = {name: found[f"next_{name}"] for name in state}
        logits = found["logits"]
        logits[:, list(search.suppress)] = -np.inf
        tokens = logits.argmax(axis=-1)
        if position == 0 and search.forced_first is not None:
            tokens[:] = search.forced_first
        for sentence, token in zip(running, tokens, strict=True):
            translations[sentence].append(int(token))
        parents = np.flatnonzero(~np.isin(tokens, search.eos))
        if not len(parents):
            break
        tokens, running = tokens[parents], running[parents]
        memory = {name: value[parents] for name, value in memory.items()}
        if decoder.in_place:
            state = {name: value[parents] for name, value in state.items()}
    return [np.array(translation) for translation in translations]
