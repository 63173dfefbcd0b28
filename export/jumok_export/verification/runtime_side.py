"""Exported graphs, in the ONNX Runtime sessions that serve them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_export.native.int8_cache import floats_spec, to_entries, to_floats
from jumok_export.parallel import raise_if_cancelled
from jumok_export.verification.comparison import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE
from jumok_export.verification.fused_selection import FusedSelection
from jumok_export.verification.selection_cases import Drawing, Selection
from jumok_export.verification.sides import Arrays, StepInputs
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.decoders import DecoderStep
from jumok_serve.runtime.graphs import SLOTS, Floats, Graphs, Integers, Pairs
from jumok_serve.runtime.step_selection import BIAS, SelectionParameters
from jumok_serve.runtime.tensors import padded_length
from jumok_serve.search.constraints import Constraints, Entries

UNSEEN = 7.0
"""Value of entries that no row may attend to; random numbers would take longer than everything else."""


class GraphFailedError(Exception):
    """A graph did not run, or its selection is wrong."""


class RuntimeSide:
    """The exported graphs in serving sessions, with fp32 tensors outside.

    Args:
        graphs: graphs of one precision. With shortlists, `memory` includes the listed columns.
        checked: False to leave out the comparison of each step's candidates with its logits.
    """

    def __init__(self, graphs: Graphs, *, checked: bool = True) -> None:
        self._graphs = graphs
        self._checked = checked

    def encode(self, source_ids: Integers, source_lengths: Integers) -> tuple[Arrays, Arrays]:
        """Memory and first state, see `Side`."""
        with _running("encoder"):
            memory, first_state = self._graphs.encode(source_ids, source_lengths)
        return _arrays(memory), _arrays(first_state)

    @property
    def memory_specs(self) -> tuple[TensorSpec, ...]:
        """Names, types and axes of the memory of `step`, [B, ...]."""
        return tuple(map(_in_fp32, self._graphs.memory_specs))

    @property
    def state_specs(self) -> tuple[TensorSpec, ...]:
        """Names, types and axes of the state of `step`, [P, ...].

        The graph's own form may differ.
        """
        specs = map(_in_fp32, self._graphs.state_specs)
        if not self._graphs.in_place:
            return tuple(specs)
        return tuple(
            spec.model_copy(update={"axes": ("P", *("T" if axis == "E" else axis for axis in spec.axes[1:]))})
            for spec in specs
        )

    def empty_state(self) -> Arrays:
        """See `Side`."""
        if not self._graphs.in_place:
            return _arrays(self._graphs.empty_state())
        return {
            spec.name: np.zeros([1, *(axis if isinstance(axis, int) else 0 for axis in spec.axes[1:])], spec.dtype)
            for spec in self.state_specs
        }

    def step(self, inputs: StepInputs) -> tuple[Floats, Arrays]:
        """See `Side`."""
        with _running("decoder"):
            if self._graphs.in_place:
                return self._step_in_place(inputs)
            arrays = inputs._asdict()
            memory, state = arrays.pop("memory"), arrays.pop("state")
            step = self._bind(arrays, memory, {})
            step.give_state(_values(state, self._graphs.state_specs), {})
            return self._logits(step), _arrays(step.new_state())

    def _bind(self, inputs: Arrays, memory: Arrays, state: Arrays) -> DecoderStep:
        width = memory[BIAS].shape[1] if self._graphs.listed else self._graphs.vocabulary
        memory_values = _values(memory, self._graphs.memory_specs)
        state_values = _values(state, self._graphs.state_specs)
        return DecoderStep(self._graphs, inputs, memory_values, state_values, width=width)

    def _logits(self, step: DecoderStep) -> Floats:
        """Run a step, check its candidates unless that is left out, and return the logits [R, U]."""
        choice = _any_choice(step.rows, step.width)
        tokens, totals = step.run(choice)
        logits: Floats = step.logits().numpy()
        if not self._checked:
            return logits
        selection = Selection(
            logits=logits,
            scores=choice.scores,
            candidates=choice.candidates,
            on_logits=choice.on_logits,
            on_log_probs=choice.on_log_probs,
            renormalize=np.arange(step.rows) % 3 == 1,
        )
        if selection.misplaced(tokens) or not np.allclose(
            totals, selection.totals(tokens), RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE, equal_nan=True
        ):
            raise GraphFailedError("decoder does not select the best candidates of its logits")
        return logits

    def _step_in_place(self, inputs: StepInputs) -> tuple[Floats, Arrays]:
        """Run a step over cache entries with the rows' histories interleaved."""
        token_ids, positions, parents, source_lengths, memory, state = inputs
        rows, sentences = len(token_ids), len(source_lengths)
        beam_size, time = rows // sentences, padded_length(int(positions.max()) + 1)
        times, row = np.arange(time), np.arange(rows)[:, None]
        turns = _turned(positions.reshape(sentences, beam_size), time).reshape(rows, time)
        entries = times * beam_size + turns  # [R, T]
        sentence = row // beam_size  # [R, 1]
        past_rows, past_times = np.nonzero(times < positions[:, None])
        buffers = {}
        for spec in self._graphs.state_specs:
            axis = spec.axes.index("E")
            sizes = {"B": sentences, SLOTS: sentences, "E": time * beam_size}
            # A row that attends to an invisible entry gives other results.
            shape = [size if isinstance(size, int) else sizes[size] for size in _in_fp32(spec).axes]
            buffer = np.full(shape, UNSEEN, np.float32)
            past = np.moveaxis(state[spec.name], axis, 1)[parents]  # [R, T, ...]
            by_entry = np.moveaxis(buffer, axis, 1)  # [B, E, ...]
            by_entry[sentence[past_rows, 0], entries[past_rows, past_times]] = past[past_rows, past_times]
            buffers[spec.name] = _narrowed(buffer, spec.dtype)
        visible = np.zeros((rows, time * beam_size), np.bool_)
        known = times <= positions[:, None]
        visible[np.nonzero(known)[0], entries[known]] = True
        written = np.take_along_axis(entries, positions[:, None], axis=1)
        by_sentence = (sentences, beam_size)
        arrays = {
            "token_ids": token_ids.reshape(by_sentence),
            "positions": positions.reshape(by_sentence),
            "places": np.concatenate((sentence, np.zeros_like(sentence), written), axis=1).reshape(*by_sentence, 3),
            "visible": visible.reshape(*by_sentence, -1),
            "entry_positions": np.broadcast_to(np.repeat(times, beam_size), (sentences, time * beam_size)),
            "source_lengths": source_lengths,
        }
        logits = self._logits(self._bind(arrays, memory, buffers))
        grown = {}
        # After a row's tokens its state is undefined; `step` repeats the new token there.
        found = np.take_along_axis(entries, np.minimum(times[: int(positions.max()) + 1], positions[:, None]), axis=1)
        for spec in self._graphs.state_specs:
            axis = spec.axes.index("E")
            by_entry = np.moveaxis(_widened(buffers[spec.name]), axis, 1)[sentence, found]
            grown[spec.name] = np.moveaxis(by_entry, 1, axis)
        return logits, grown

    @cached_property
    def _selection(self) -> FusedSelection:
        return FusedSelection(self._graphs.sessions.path("decoder"), threads=1)

    def select(self, selection: Selection) -> tuple[Integers, Floats]:
        """Best candidates of every row: token ids and running scores [R, C]."""
        with _running("decoder's selection"):
            return self._selection.run(selection)

    def sample(self, drawing: Drawing) -> tuple[Integers, Floats]:
        """Token ids and running scores [D, 1] of drawn tokens."""
        with _running("sampler"):
            return self._graphs.sample(
                OrtValue.ortvalue_from_numpy(drawing.logits),
                drawing.rows,
                drawing.scores,
                drawing.draws,
                drawing.on_logits,
            )

    def score(self, pair: Pairs) -> Floats:
        """See `TorchSide`."""
        with _running("scorer"):
            return self._graphs.score(pair)

    def align(self, pair: Pairs) -> tuple[Floats, ...]:
        """See `TorchSide`."""
        with _running("aligner"):
            return self._graphs.align(pair)


def _turned(positions: Integers, time: int) -> Integers:
    """Turns [B, K, T] of rows' tokens, one further at each time.

    At the time of a row's new token, all rows have their own turn.
    """
    beam_size = positions.shape[1]
    times = np.arange(time)
    turned = (np.arange(beam_size)[:, None] + times) % beam_size
    writing = (positions[:, :, None] == times).any(axis=1)[:, None]
    return np.where(writing, np.arange(beam_size)[:, None], turned)


def _any_choice(rows: int, width: int) -> SelectionParameters:
    """Candidates with constraints of every kind, on some of the rows."""
    places = np.stack((np.arange(rows), np.arange(rows) * 7 % width), axis=1)

    def entries(first: int, value: float) -> Entries:
        some = places[first::2]
        return Entries(some, np.full(len(some), value, np.float32))

    return SelectionParameters(
        scores=-np.arange(rows, dtype=np.float32),
        candidates=1 + rows % 8,
        on_logits=Constraints(entries(0, 1.5), entries(1, -np.inf)),
        on_log_probs=Constraints(entries(1, 2.0), entries(0, -1.0)),
        renormalize=np.arange(rows) % 3 == 1,
        with_logits=True,
    )


@contextmanager
def _running(graph: str) -> Iterator[None]:
    raise_if_cancelled()
    try:
        yield
    except Exception as error:  # ONNX Runtime's exceptions have no class of their own in common
        raise GraphFailedError(f"{graph} did not run: {error}") from error


def _arrays(values: Mapping[str, OrtValue]) -> Arrays:
    return {name: _widened(value.numpy()) for name, value in values.items()}


def _values(arrays: Arrays, specs: Iterable[TensorSpec]) -> dict[str, OrtValue]:
    """Arrays as ONNX Runtime tensors of the graphs' types.

    Arrays of the right type are not copied.
    """
    kinds = {spec.name: spec.dtype for spec in specs}
    return {
        name: OrtValue.ortvalue_from_numpy(np.ascontiguousarray(_narrowed(array, kinds.get(name, array.dtype.name))))
        for name, array in arrays.items()
    }


def _in_fp32(spec: TensorSpec) -> TensorSpec:
    if spec.dtype == "int8":
        return floats_spec(spec)
    return spec.model_copy(update={"dtype": "float32"}) if spec.dtype == "float16" else spec


def _narrowed(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Convert an array to the type of memory or state, if necessary."""
    if dtype == "int8" and array.dtype == np.float32:
        return to_entries(array)
    return array.astype(dtype, copy=False)


def _widened(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype == np.int8:
        return to_floats(array)
    return array.astype(np.float32) if array.dtype == np.float16 else array
