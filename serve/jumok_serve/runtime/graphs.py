"""A bundle's graphs as ONNX Runtime sessions on one device."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.errors import BundleError, DeviceError
from jumok_serve.manifest.manifest import CROSS_ATTENTION, GraphSpec
from jumok_serve.manifest.parts import Target, graphs_by_role
from jumok_serve.native import library
from jumok_serve.runtime.device import Device
from jumok_serve.runtime.encoded_sources import Encoded, EncodedSources
from jumok_serve.runtime.graph_checks.contract import contract_problems
from jumok_serve.runtime.sessions import (
    GraphFolder,
    GraphSessions,
    output_spec,
    products_saturate,
)
from jumok_serve.runtime.tensors import Binding, DeviceSlots, SlotBuffers, Slots, Tensors, as_value, run_once
from jumok_serve.search.constraints import NO_CONSTRAINTS, Constraints, Entries
from jumok_serve.search.search import Draw

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]
Booleans = NDArray[np.bool_]

ATTENTION_OUTPUTS = {"cross": CROSS_ATTENTION, "encoder": "encoder_attention", "decoder": "decoder_attention"}
"""The aligner's outputs by the kind of attention."""

LENGTH_AXES = {"memory": "S", "state": "E"}
"""The axes that are as long as the longest sentence needs."""
SLOTS = "slots"
"""The first axis of memory and state if `places` names the slot of each sentence in a step."""
SATURATES = "saturates"
"""Input of an int8 decoder for shortlists: `products_saturate()`, as no session converts weights that it is given."""
LOGIT_ROWS = "logit_rows"
"""Input of a decoder: rows of the logits to return."""

FEW_ROWS = 4
"""Most rows of a step that one thread of a small model decodes as fast as several threads do.

Steps of 1, 2 and 4 rows took 178, 198 and 235 us with one thread and 3 to 4 % more with two, with 15 MiB of weights on
two busy cores (2nd percentiles, 2026-11-26).
"""


class Pairs(NamedTuple):
    """Padded sources and given targets.

    Attributes:
        source_ids: token ids, [B, S].
        source_lengths: [B].
        start_ids: the token that each target is decoded from, [B].
        target_ids: token ids, [B, T].
        target_lengths: [B].
    """

    source_ids: Integers
    source_lengths: Integers
    start_ids: Integers
    target_ids: Integers
    target_lengths: Integers


class Graphs:
    """The graphs of one precision on one device; safe in any thread.

    Args:
        bundle: an opened bundle, or another folder with graphs.
        precision: one of the bundle's variants.
        threads: threads that the operators of one graph share; None: as many as ONNX Runtime finds cores.
        listed: True to load the decoder for shortlists instead of the other.
        native: True to prefer graphs with native operators on the CPU if their library is there.
        packed: False to read weights where their file is mapped: slower, in less memory.
        open_sessions: opens the sessions of the graphs.

    Attributes:
        native: True if native operators decode.
        sessions: sessions of the graphs.
        vocabulary: target tokens, V.
        memory_specs: the decoder's inputs `memory.*`.
        state_specs: the decoder's inputs `state.*`.
        decoder_inputs: names of the decoder's inputs.
        for_device: True if the decoder works in a device's own memory.
        in_place: True if the decoder writes into a KV cache by slot, False if it returns a new state.
        by_slot: True if the sentences of a step may be in any slots, False if they must be in slots 0 .. n-1.
        reads_entry_positions: True if the decoder reads the positions of cache entries.
        packed: False if weights are read where their file is mapped.
        few: the same graphs with one thread, for steps of at most `FEW_ROWS` rows; None: these take all threads.

    Raises:
        BundleError: graphs that do not load or differ from the manifest, all of them.
        DeviceError: a device that cannot be used.
    """

    def __init__(
        self,
        bundle: GraphFolder,
        precision: str,
        *,
        device: Device,
        threads: int | None = None,
        listed: bool = False,
        native: bool = True,
        packed: bool = True,
        open_sessions: Callable[..., GraphSessions] = GraphSessions,
    ) -> None:
        variant = bundle.variant(precision)
        if listed and not variant.listed and not device.own_memory:
            raise BundleError(bundle.path, [f"{precision} has no graphs for a shortlist: use another precision"])
        target: Target = "device" if device.own_memory else "native" if native and library() else "cpu"
        graphs = graphs_by_role(variant.graphs, target, shortlist=listed)
        decoder = graphs["decoder"]
        if device.own_memory:
            _check_for_device(decoder, precision, device, listed=listed)
        unfit = contract_problems(graphs, variant.graphs["decoder"])
        if unfit:
            raise BundleError(bundle.path, unfit)
        self.listed = listed
        self.native = target == "native" and variant.native
        self.vocabulary = int(output_spec(variant.graphs["decoder"], "logits").axes[-1])
        self.memory_specs = tuple(spec for spec in decoder.inputs if spec.name.startswith("memory."))
        self.state_specs = tuple(spec for spec in decoder.inputs if spec.name.startswith("state."))
        self.decoder_inputs = frozenset(spec.name for spec in decoder.inputs)
        self.for_device = device.own_memory
        self.in_place = "visible" in self.decoder_inputs
        self.by_slot = (
            self.in_place
            and not listed
            and all(spec.axes[0] == SLOTS for spec in (*self.memory_specs, *self.state_specs))
        )
        reads_saturation = SATURATES in self.decoder_inputs
        self._saturates: Tensors = {SATURATES: as_value(np.array(products_saturate()))} if reads_saturation else {}
        self.reads_entry_positions = "entry_positions" in self.decoder_inputs
        self._graphs = graphs
        self._device_id = (device.name, 0) if device.own_memory else None
        self.packed = packed
        self.few: Graphs | None = None
        self.sessions = open_sessions(
            bundle, graphs, variant.weights, device=device, threads=threads, packed=packed, native=self.native
        )
        encoded = self.sessions.encoded
        self._encoded = None if encoded is None else EncodedSources(encoded)

    def with_threads(self, threads: int, roles: Sequence[str] = ("encoder", "decoder")) -> "Graphs":
        """The same graphs; those with some roles use another number of threads."""
        other = copy.copy(self)
        other.few = None
        other.sessions = self.sessions.with_threads(threads, roles)
        return other

    def unload(self, name: str) -> None:
        """Close the session of a graph outside the step loop; its next use loads it again."""
        self.sessions.close(name)
        if name == "aligner" and self._encoded is not None:
            self._encoded.clear()

    def encode(self, source_ids: Integers, source_lengths: Integers) -> tuple[Tensors, Tensors]:
        """Run the encoder, once for each sentence.

        Args:
            source_ids: padded token ids, [B, S].
            source_lengths: [B].

        Returns:
            The memory [B, ...], and the decoder's first state [B, ...] (empty for a Transformer).
        """
        feeds = self._feeds("encoder", {"source_ids": source_ids, "source_lengths": source_lengths})
        names = [spec.name for spec in self._graphs["encoder"].outputs]
        keeping = self._encoded if self._encoded is not None and self._encoded.wanted else None
        if keeping is not None:
            names.append(keeping.tensor.encoder)
        outputs = run_once(self.sessions.opened["encoder"], names, feeds, self._device_id)
        named = dict(zip(names, outputs, strict=True))
        if keeping is not None:
            keeping.keep(source_ids, source_lengths, named[keeping.tensor.encoder].numpy())
        return (
            {name: value for name, value in named.items() if name.startswith("memory.")},
            {name: value for name, value in named.items() if name.startswith("state.")},
        )

    def columns(self, tokens: Integers) -> Tensors:
        """Gather the part of the output projection for some tokens.

        Args:
            tokens: token ids in the order of the columns, [U].
        """
        names = [spec.name for spec in self._graphs["projection"].outputs]
        weights = run_once(self.sessions.opened["projection"], names, {"tokens": as_value(tokens)})
        gathered = dict(zip(names, weights, strict=True))
        return gathered | self._saturates

    def empty_state(self) -> Tensors:
        """One dummy row of a gathered decoder state, for the first step."""
        return {
            spec.name: as_value(np.zeros([_empty_size(axis) for axis in spec.axes], spec.dtype))
            for spec in self.state_specs
        }

    def make_slots(self, kind: Literal["memory", "state"]) -> Slots:
        """Make buffers by slot for encoder memory or an in-place KV cache."""
        specs, axis = self.memory_specs if kind == "memory" else self.state_specs, LENGTH_AXES[kind]
        if self._device_id is None:
            return SlotBuffers(specs, axis, ahead=self.native and self.in_place)
        opened = self.sessions.opened  # without specs there are no such graphs
        grow, write = (opened.get(f"{kind}_{what}") for what in ("grow", "write"))
        return DeviceSlots(specs, axis, device_id=self._device_id, grow=grow, write=write)

    def bind_decoder(self, rows: int) -> Binding:
        """A new binding of the decoder for steps of R rows, with nothing bound."""
        if self.few is not None and rows <= FEW_ROWS:
            return self.few.bind_decoder(rows)
        return Binding(self.sessions.opened["decoder"], self._device_id)

    def sample(
        self,
        logits: OrtValue,
        rows: Integers,
        scores: Floats,
        draws: Sequence[Draw],
        on_logits: Constraints = NO_CONSTRAINTS,
    ) -> tuple[Integers, Floats]:
        """Draw one continuation for each of some rows.

        Args:
            logits: [R, U] of a step.
            rows: the rows that draw, [D].
            scores: running scores of these rows, [D].
            draws: parameters of each draw, D.
            on_logits: constraints, with rows counted among those that draw.

        Returns:
            Columns [D, 1], and running scores + log-probabilities among the columns that could be drawn [D, 1].
        """
        temperature, top_k, top_p, uniform = zip(*draws, strict=True)
        arrays = {
            "rows": rows,
            "scores": scores,
            **constraint_arrays("logit", on_logits, logits.shape()[-1], for_device=self.for_device),
            # A value beyond the range of fp32 must become neither 0 nor infinite.
            "temperature": np.clip(temperature, _LEAST, _MOST).astype(np.float32),
            "top_k": np.array(top_k, np.int64),
            "top_p": np.maximum(top_p, _LEAST, dtype=np.float32),
            "uniform": np.array(uniform, np.float32),
        }
        feeds = {"logits": logits, **{name: as_value(array) for name, array in arrays.items()}}
        tokens, totals = run_once(self.sessions.opened["sampler"], ["tokens", "totals"], feeds)
        return tokens.numpy(), totals.numpy()

    def score(self, pairs: Pairs) -> Floats:
        """Compute log-probabilities [B, T] of given targets in one pass; 0 after a target's end."""
        names = [spec.name for spec in self._graphs["scorer"].outputs]
        return self._run_targets("scorer", names, pairs)[0]

    def align(self, pairs: Pairs) -> tuple[Floats, ...]:
        """Compute all attention for given targets.

        Returns:
            The aligner's outputs in the manifest's order: cross-attention [B, L, H, T, S], and if the model has
            self-attention the encoder's [B, L, H, S, S] and the decoder's [B, L, H, T, T].
        """
        return tuple(self._run_targets("aligner", [spec.name for spec in self._graphs["aligner"].outputs], pairs))

    def attention(self, kinds: Sequence[str], pairs: Pairs) -> list[Floats]:
        """Compute attention of `ATTENTION_OUTPUTS` kinds."""
        return self._run_targets("aligner", [ATTENTION_OUTPUTS[kind] for kind in kinds], pairs)

    def cross_attention(self, layers: Sequence[int], pairs: Pairs) -> Floats:
        """Compute cross-attention of some layers, [B, len(layers), H, T, S]; rows after a target's end are undefined.

        Only the part of the aligner runs that these layers depend on, and no encoder for the sources of the last
        searches.
        """
        session = self.sessions.on_demand("aligner", layers)
        names = [output.name for output in session.get_outputs()]
        if (whole := ATTENTION_OUTPUTS["cross"]) in names:  # a graph without such a part
            found: Floats = self._run_targets("aligner", [whole], pairs)[0][:, list(layers)]
            return found
        feeds = self._feeds("aligner", pairs._asdict())
        if (encoded := self._encoded) is not None:
            sources = encoded.padded(pairs.source_ids, pairs.source_lengths, self._encode_source)
            feeds[encoded.tensor.aligner] = as_value(sources)
        values = run_once(session, names, feeds)
        return np.concatenate([value.numpy() for value in values], axis=1)

    def _encode_source(self, source_ids: Integers, source_lengths: Integers) -> Encoded:
        """Compute the encoded source that the part of an aligner reads, [B, S, W]."""
        assert self._encoded is not None
        feeds = self._feeds("encoder", {"source_ids": source_ids, "source_lengths": source_lengths})
        (value,) = run_once(self.sessions.opened["encoder"], [self._encoded.tensor.encoder], feeds)
        encoded: Encoded = value.numpy()
        return encoded

    def _run_targets(self, graph: str, outputs: Sequence[str], pairs: Pairs) -> list[Floats]:
        values = run_once(self.sessions.on_demand(graph), outputs, self._feeds(graph, pairs._asdict()))
        return [value.numpy() for value in values]

    def _feeds(self, graph: str, arrays: Mapping[str, Integers]) -> Tensors:
        """The arrays that a graph has inputs for; others are dropped."""
        inputs = {spec.name for spec in self._graphs[graph].inputs}
        return {name: as_value(array) for name, array in arrays.items() if name in inputs}


_LEAST, _MOST = np.finfo(np.float32).tiny, np.finfo(np.float32).max
_FIRST_PLACE = np.zeros((1, 2), np.int64)
_NEUTRAL_FACTOR = Entries(_FIRST_PLACE, np.ones(1, np.float32))
_NEUTRAL_BIAS = Entries(_FIRST_PLACE, np.zeros(1, np.float32))


def constraint_arrays(stage: str, constraints: Constraints, width: int, *, for_device: bool) -> dict[str, NDArray[Any]]:
    """A graph's inputs for sparse constraints.

    Args:
        stage: "logit" before the log-softmax, "log_prob" after it.
        constraints: entries by row and column.
        width: columns of the logits, U.
        for_device: True to put a neutral entry into empty lists, which devices refuse.

    Returns:
        Places in the flat scores, row * U + column, and values: [N] each, of factors and of biases.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, entries, neutral in (
        (f"{stage}_factors", constraints.factors, _NEUTRAL_FACTOR),
        (f"{stage}_biases", constraints.biases, _NEUTRAL_BIAS),
    ):
        places, values = neutral if for_device and not len(entries.values) else entries
        arrays[f"{name}.places"] = places[:, 0] * width + places[:, 1]
        arrays[f"{name}.values"] = values
    return arrays


def _check_for_device(decoder: GraphSpec, precision: str, device: Device, *, listed: bool) -> None:
    if listed:
        raise DeviceError(
            f"device {device.name!r} does not support shortlists: leave the shortlist out, or use --device cpu"
        )
    if not decoder.for_device:
        raise DeviceError(
            f"the bundle has no graphs in {precision} for device {device.name!r}: export or import the model again "
            "with --precision fp16 or fp32, or use --device cpu"
        )


def _empty_size(axis: int | str) -> int:
    """The size of an axis without content: one dummy row, no positions."""
    return axis if isinstance(axis, int) else int(axis == "P")
