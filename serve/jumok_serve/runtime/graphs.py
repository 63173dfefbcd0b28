"""A bundle's graphs as ONNX Runtime sessions: encode, step, select, score and align on one device."""

import copy
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_proto.alignments import AttentionKind
from jumok_serve.bundle.bundle import check_graph
from jumok_serve.errors import BundleError, DeviceError
from jumok_serve.manifest.graph_variants import Target, graphs_by_role
from jumok_serve.manifest.manifest import GraphSpec, PrecisionVariant, TensorSpec
from jumok_serve.native import library
from jumok_serve.runtime.decoder_step import BoundStep, Choice, as_value, constraint_feeds
from jumok_serve.runtime.device import CPU, Device
from jumok_serve.runtime.device_step import Binder, DeviceSlots, ResidentStep, neutral_at_least
from jumok_serve.runtime.saturation import products_saturate
from jumok_serve.runtime.sessions import open_session, session_options
from jumok_serve.runtime.slot_buffers import SlotBuffers
from jumok_serve.search import NO_CONSTRAINTS, Constraints, Draw

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]
Booleans = NDArray[np.bool_]
Tensors = dict[str, OrtValue]
"""Encoder memory or decoder state by name (`memory.<name>`, `state.<name>`), opaque to everything but the graphs."""

Slots: TypeAlias = SlotBuffers | DeviceSlots
"""Memory or state by slot, on the host or on a device."""
DecoderStep: TypeAlias = BoundStep | ResidentStep
"""A step over tensors on the host, or on a device."""

ATTENTION_OUTPUTS: dict[AttentionKind, str] = {
    "cross": "cross_attention",
    "encoder": "encoder_attention",
    "decoder": "decoder_attention",
}
"""The aligner's outputs by the kind of attention."""

LENGTH_AXES = {"memory": "S", "state": "E"}
"""The axes that are as long as the longest sentence needs."""
SLOTS = "slots"
"""The first axis of memory and state where `places` says which slot each sentence of a step has."""
SATURATES = "saturates"
"""An input of such a decoder in int8: whether `products_saturate`, for no session changes weights that it is given."""

LOGIT_ROWS = "logit_rows"
"""An input of a decoder that has the selection in it: of how many rows logits come out too."""

_LEAST, _MOST = np.finfo(np.float32).tiny, np.finfo(np.float32).max

_DTYPES = {"float32": np.float32, "float16": np.float16, "int64": np.int64, "int32": np.int32, "int8": np.int8}


class GraphFolder(Protocol):
    """Where graphs lie: an opened `Bundle`, or a folder that is verified before it becomes one."""

    @property
    def path(self) -> Path:
        """The folder that the variant's file names are relative to."""

    def variant(self, precision: str) -> PrecisionVariant:
        """The graphs of one precision."""


class Graphs:
    """The graphs of one precision of a bundle, loaded for one device.

    Calls may come from several threads at once. `scorer` and `aligner` are loaded when they are first used.

    Args:
        bundle: an opened bundle, or another folder of graphs.
        precision: one of its variants.
        device: where to run.
        threads: threads that one graph's operators share; None: as many as ONNX Runtime finds cores.
        listed: load the decoder whose logits have columns for some tokens alone, and not the other.
        native: on the CPU, prefer graphs in native operators if their library is there.

    Raises:
        BundleError: a graph does not load or differs from the manifest; lists everything that does.
        DeviceError: the device cannot be used.
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
    ) -> None:
        self._bundle = bundle
        self._variant = bundle.variant(precision)
        if listed and not self._variant.listed and not device.resident:
            raise BundleError(bundle.path, [f"{precision} has no graphs for a shortlist: use another precision"])
        self.listed = listed
        """Whether logits have columns for those tokens alone whose weights the step is given: see `columns`."""
        target: Target = "device" if device.resident else "native" if native and library() else "cpu"
        graphs = graphs_by_role(self._variant.graphs, target, shortlist=listed)
        decoder = graphs["decoder"]
        if device.resident:
            _check_for_device(decoder, precision, device, listed=listed)
        self.native = target == "native" and self._variant.native
        """Whether native operators decode."""
        self.vocabulary = int(_logits(self._variant.graphs["decoder"]).axes[-1])
        """Number of target tokens."""
        self._graphs = graphs
        select = self._variant.graphs.get("select_shortlist" if listed else "select")
        if select is not None:
            graphs["select"] = select
        self._inputs = {name: {spec.name for spec in graph.inputs} for name, graph in self._graphs.items()}
        self._device = device
        self._options = session_options(threads, device)
        self._lock = threading.Lock()
        self._sessions: dict[str, Any] = {}
        problems: list[str] = []
        # Graphs of one pass are loaded when they are first used, the others now: decoding must not wait for that.
        for name in [name for name in graphs if name not in _ONE_PASS]:
            try:
                self._sessions[name] = self._load(name)
            except BundleError as error:
                problems += error.problems
        if problems:
            raise BundleError(bundle.path, problems)
        self.memory_specs = tuple(spec for spec in decoder.inputs if spec.name.startswith("memory."))
        self.state_specs = tuple(spec for spec in decoder.inputs if spec.name.startswith("state."))
        self.in_place = "visible" in self._inputs["decoder"]
        """Whether the decoder writes into buffers of state that stay where they are, instead of making new ones."""
        self.by_slot = self.in_place and not listed and _by_slot(decoder)
        """Whether the sentences of a step may be in any slots of memory and state."""
        self.reads_entry_positions = "entry_positions" in self._inputs["decoder"]
        """Whether such a decoder looks at how far apart tokens are."""
        self._place = (device.name, 0)
        self._encoder_outputs = [spec.name for spec in graphs["encoder"].outputs]

    def _load(self, name: str) -> Any:
        spec = self._graphs[name]
        path = self._bundle.path / spec.file
        try:
            # On devices decoders select; the graph that selects is there to compare with, on the host.
            device = CPU if name == "select" else self._device
            session = open_session(path, device, self._options, checked=name not in _ONE_PASS)
        except DeviceError:
            raise
        except Exception as error:
            if self._device.name != "cpu" and "CUDA" in str(error):
                raise DeviceError(f"device {self._device.name!r} cannot be used: {error}") from error
            raise BundleError(self._bundle.path, [f"{spec.file}: ONNX Runtime cannot load it: {error}"]) from error
        problems = check_graph(spec, session.get_inputs(), session.get_outputs())
        if problems:
            raise BundleError(self._bundle.path, problems)
        return session

    def with_threads(self, threads: int) -> "Graphs":
        """The same graphs with encoder and decoder in sessions that have so many threads.

        They have a second copy of weights, but for those that native operators pack.
        """
        other = copy.copy(self)
        other._options = session_options(threads, other._device)
        other._sessions = {**self._sessions, **{name: other._load(name) for name in ("encoder", "decoder")}}
        return other

    def _lazy(self, name: str) -> Any:
        with self._lock:
            if name not in self._sessions:
                self._sessions[name] = self._load(name)
            return self._sessions[name]

    def encode(self, source_ids: Integers, source_lengths: Integers) -> tuple[Tensors, Tensors]:
        """What is computed once a sentence.

        Args:
            source_ids: [B, S], padded.
            source_lengths: [B].

        Returns:
            The memory [B, ...], and the decoder's first state [B, ...] (empty for a Transformer).
        """
        feeds = self._used("encoder", {"source_ids": source_ids, "source_lengths": source_lengths})
        if self._device.resident:
            binder = Binder(self._sessions["encoder"], self._place)
            for name, value in feeds.items():
                binder.input(name, value)
            for name in self._encoder_outputs:
                binder.output(name)
            binder.run()
            outputs = binder.outputs()
        else:
            outputs = self._sessions["encoder"].run_with_ort_values(self._encoder_outputs, feeds)
        named = dict(zip(self._encoder_outputs, outputs, strict=True))
        return (
            {name: value for name, value in named.items() if name.startswith("memory.")},
            {name: value for name, value in named.items() if name.startswith("state.")},
        )

    def columns(self, tokens: Integers) -> Tensors:
        """What a step with `listed` columns is given to compute the logits of some tokens: their part of the weights.

        Args:
            tokens: [U], in the order of the columns.
        """
        names = [spec.name for spec in self._graphs["projection"].outputs]
        weights = self._sessions["projection"].run_with_ort_values(names, {"tokens": as_value(tokens)})
        gathered = dict(zip(names, weights, strict=True))
        if SATURATES in self._inputs["decoder"]:
            gathered[SATURATES] = as_value(np.array(products_saturate()))
        return gathered

    def empty_state(self) -> Tensors:
        """One dummy row of decoder state, [1, ...], for a step without a previous one; not for a decoder in place."""
        return {
            spec.name: as_value(np.zeros([_empty_size(axis) for axis in spec.axes], _DTYPES[spec.dtype]))
            for spec in self.state_specs
        }

    def make_slots(self, kind: Literal["memory", "state"]) -> Slots:
        """Buffers by slot for what the encoder gives, or for the state of a decoder in place."""
        specs, axis = self.memory_specs if kind == "memory" else self.state_specs, LENGTH_AXES[kind]
        if not self._device.resident:
            return SlotBuffers(specs, axis, ahead=self.native and self.in_place)
        grow, write = (self._sessions.get(f"{kind}_{what}") for what in ("grow", "write"))  # none for no tensors
        return DeviceSlots(specs, axis, place=self._place, grow=grow, write=write)

    def bind_step(
        self, rows: Mapping[str, NDArray[Any]], memory: Mapping[str, Any], state: Mapping[str, Any], *, width: int
    ) -> DecoderStep:
        """A step of the decoder, over tensors whose content may change from step to step but not their places.

        Args:
            rows: of a decoder in place, `token_ids` and `positions` [B, K], `places` [B, K, 3], `visible` [B, K, E],
                `entry_positions` [B, E] and `source_lengths` [B]; see `jumok_export.models.encoder_decoder`. Else
                `token_ids`, `positions` and `parents` [R], and `source_lengths`.
            memory: [B, ...], from `make_slots` or `encode`, and what `jumok_serve.runtime.output_columns` gives.
            state: of a decoder in place, [B, ..., E, ...]; otherwise nothing: see `BoundStep`.
            width: columns of the logits, U.
        """
        read = self._inputs["decoder"]
        given = {name: value for name, value in memory.items() if name in read}
        arrays = {name: array for name, array in rows.items() if name in read}
        count = math.prod(rows["token_ids"].shape)
        if self._device.resident:
            session = self._sessions["decoder"]
            return ResidentStep(session, self._place, arrays, given, state, rows_at_once=count, width=width)
        inputs = {**{name: as_value(array) for name, array in arrays.items()}, **given}
        return BoundStep(self._sessions["decoder"], inputs, state, rows=count, width=width)

    def select(self, logits: OrtValue, choice: Choice) -> tuple[Integers, Floats]:
        """The best continuations of every row.

        Args:
            logits: [R, U] of a step.
            choice: what is asked for.

        Returns:
            Columns [R, C] and running score + processed log-probability [R, C], best first; ties by lower column. They
            are token ids where every token has a column.
        """
        feeds = {"logits": logits, **choice.feeds(logits.shape()[-1])}
        tokens, totals = self._lazy("select").run_with_ort_values(["tokens", "totals"], feeds)
        return tokens.numpy(), totals.numpy()

    def sample(
        self,
        logits: OrtValue,
        rows: Integers,
        scores: Floats,
        draws: Sequence[Draw],
        on_logits: Constraints = NO_CONSTRAINTS,
    ) -> tuple[Integers, Floats]:
        """One continuation drawn for each of some rows.

        Args:
            logits: [R, U] of a step.
            rows: [D], the rows that draw.
            scores: [D], their running scores.
            draws: D, how each draws.
            on_logits: constraints on them; rows are counted among those that draw.

        Returns:
            Columns [D, 1] and running score + log-probability among what could be drawn [D, 1].
        """
        temperature, top_k, top_p, uniform = zip(*draws, strict=True)
        feeds = {
            "logits": logits,
            "rows": as_value(rows),
            "scores": as_value(scores),
            **constraint_feeds(
                "logit", neutral_at_least(on_logits) if self._device.resident else on_logits, logits.shape()[-1]
            ),
            # What its type cannot hold must become neither 0 nor infinite.
            "temperature": as_value(np.clip(temperature, _LEAST, _MOST).astype(np.float32)),
            "top_k": as_value(np.array(top_k, np.int64)),
            "top_p": as_value(np.maximum(top_p, _LEAST, dtype=np.float32)),
            "uniform": as_value(np.array(uniform, np.float32)),
        }
        tokens, totals = self._sessions["sampler"].run_with_ort_values(["tokens", "totals"], feeds)
        return tokens.numpy(), totals.numpy()

    def score(
        self,
        source_ids: Integers,
        source_lengths: Integers,
        start_ids: Integers,
        target_ids: Integers,
        target_lengths: Integers,
    ) -> Floats:
        """Log-probability [B, T] of every token of given targets [B, T], in one pass; 0 behind a target's end.

        Args:
            source_ids: [B, S], padded.
            source_lengths: [B].
            start_ids: [B], the token that each target is decoded from.
            target_ids: [B, T], padded.
            target_lengths: [B].
        """
        names = [spec.name for spec in self._graphs["scorer"].outputs]
        return self._run_targets("scorer", names, source_ids, source_lengths, start_ids, target_ids, target_lengths)[0]

    def align(
        self,
        source_ids: Integers,
        source_lengths: Integers,
        start_ids: Integers,
        target_ids: Integers,
        target_lengths: Integers,
    ) -> tuple[Floats, ...]:
        """All that the aligner tells of attention while given targets are decoded; the inputs are those of `score`.

        Returns:
            Its outputs in the manifest's order: cross-attention [B, L, H, T, S], and where the model has them the
            encoder's [B, L, H, S, S] and the decoder's [B, L, H, T, T].
        """
        names = [spec.name for spec in self._graphs["aligner"].outputs]
        return tuple(
            self._run_targets("aligner", names, source_ids, source_lengths, start_ids, target_ids, target_lengths)
        )

    def attention(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        kinds: Sequence[AttentionKind],
        source_ids: Integers,
        source_lengths: Integers,
        start_ids: Integers,
        target_ids: Integers,
        target_lengths: Integers,
    ) -> list[Floats]:
        """Attention of some kinds, one after the other, without the rest of `align`; the other inputs are its own."""
        names = [ATTENTION_OUTPUTS[kind] for kind in kinds]
        return self._run_targets("aligner", names, source_ids, source_lengths, start_ids, target_ids, target_lengths)

    def _run_targets(  # noqa: PLR0917 - the graph contract's inputs, in its order
        self,
        graph: str,
        outputs: Sequence[str],
        source_ids: Integers,
        source_lengths: Integers,
        start_ids: Integers,
        target_ids: Integers,
        target_lengths: Integers,
    ) -> list[Floats]:
        feeds = {
            "source_ids": source_ids,
            "source_lengths": source_lengths,
            "start_ids": start_ids,
            "target_ids": target_ids,
            "target_lengths": target_lengths,
        }
        session = self._lazy(graph)
        return [value.numpy() for value in session.run_with_ort_values(outputs, self._used(graph, feeds))]

    def _used(self, graph: str, arrays: Mapping[str, Integers]) -> Tensors:
        """Those of the arrays that the graph has inputs for: its inputs are only what the model looks at."""
        return {name: as_value(array) for name, array in arrays.items() if name in self._inputs[graph]}


_ONE_PASS = {"select", "scorer", "aligner"}
"""Graphs that are no part of the loop over tokens."""


def _check_for_device(decoder: GraphSpec, precision: str, device: Device, *, listed: bool) -> None:
    if listed:
        raise DeviceError(f"device {device.name!r} has no use for a shortlist: leave it out, or use --device cpu")
    if not decoder.for_device:
        raise DeviceError(
            f"the bundle has no graphs in {precision} for device {device.name!r}: export or import the model again "
            "with --precision fp16 or fp32, or use --device cpu"
        )


def _logits(decoder: GraphSpec) -> TensorSpec:
    return next(spec for spec in decoder.outputs if spec.name == "logits")


def _by_slot(decoder: GraphSpec) -> bool:
    """Whether memory and state of a decoder in place may have more slots than a step has sentences."""
    return all(spec.axes[0] == SLOTS for spec in decoder.inputs if spec.name.startswith(("memory.", "state.")))


def _empty_size(axis: int | str) -> int:
    """Rows are one dummy; any other axis that varies (time) is empty."""
    return axis if isinstance(axis, int) else int(axis == "P")
