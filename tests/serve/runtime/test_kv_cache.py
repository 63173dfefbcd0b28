"""Entries of the KV cache, and inputs of a step: native code agrees with NumPy."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime import decoders, tensors
from jumok_serve.runtime.decoders import Decoder, GatheringDecoder, InPlaceDecoder
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.step_selection import Columns, SelectionParameters
from jumok_serve.runtime.tensors import DecoderInputs, KVCache, SlotBuffers
from tests.support.models.native_operators import needs_library

SPECS = (TensorSpec(name="state.key.0", dtype="int8", axes=("B", 2, "E", 4)),)
CAPACITY = 9


class InputBinding:
    """A binding that keeps the shared inputs of each run."""

    def __init__(self, runs: list[dict[str, np.ndarray]]) -> None:
        self._runs = runs
        self._arrays: dict[str, np.ndarray] = {}

    def bind_shared_array(self, name: str, array: np.ndarray) -> None:
        self._arrays[name] = array

    def bind_array(self, *_: object) -> None:
        pass

    bind_input = bind_output = bind_array

    def run(self) -> None:
        self._runs.append({name: array.copy() for name, array in self._arrays.items()})


class Model:
    """A model whose decoder has no other tensors than `SPECS`."""

    reads_entry_positions = False
    by_slot = True
    in_place = True
    for_device = False
    decoder_inputs: tuple[str, ...] = ("token_ids", "positions", "places", "visible", "source_lengths")

    def __init__(self) -> None:
        self.runs: list[dict[str, np.ndarray]] = []

    def bind_decoder(self, rows: int) -> InputBinding:
        return InputBinding(self.runs)

    def make_slots(self, _: str) -> SlotBuffers:
        return SlotBuffers(SPECS, "E", ahead=True)


class RecurrentModel(Model):
    """The same with a state of constant size."""

    by_slot = in_place = False
    decoder_inputs = ("token_ids", "positions", "parents", "source_lengths")
    state_specs = (TensorSpec(name="state.cell", dtype="float32", axes=("P", 3)),)


def without_library(patch: pytest.MonkeyPatch) -> None:
    for module in (tensors, decoders):
        patch.setattr(module, "function", lambda *_: None)


@needs_library
@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_native_code_chooses_the_entries_that_numpy_chooses(beam_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(beam_size)
    native = KVCache(SlotBuffers(SPECS, "E", ahead=True), beam_size, with_positions=False)
    with monkeypatch.context() as patch:
        without_library(patch)
        numpy = KVCache(SlotBuffers(SPECS, "E", ahead=True), beam_size, with_positions=False)
    slots = 7
    positions = np.zeros(slots, np.int64)
    for cache in (native, numpy):
        cache.join(range(slots))
    for step in range(90):  # more than fit into the first buffers
        if step % 11 == 5:
            positions[rng.integers(slots)] = 0  # another sentence begins there
        parents = rng.integers(0, beam_size, (slots, beam_size))
        inputs = DecoderInputs(parents, positions, parents, positions)
        entries = native.allocate(inputs, slots)
        np.testing.assert_array_equal(entries, numpy.allocate(inputs, slots))
        visible = native.visible[:slots]
        np.testing.assert_array_equal(visible, numpy.visible[:slots])
        assert (visible.sum(axis=2) == positions[:, None] + 1).all()  # each row sees its own past, and its new entry
        own = np.take_along_axis(visible, entries[:, None, :].repeat(beam_size, axis=1), axis=2)
        assert (own == np.eye(beam_size, dtype=bool)).all()  # no row sees another row's new entry
        positions += 1


class BothFeeds:
    """A decoder with native code and one without, which read the same arrays by slot, with random numbers."""

    def __init__(
        self, decoder: type[Decoder], model: type[Model], beam_size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.random = np.random.default_rng(beam_size)
        self.beam_size = beam_size
        self.tokens, self.parents = np.zeros((2, CAPACITY, beam_size), np.int64)
        self.positions, self.lengths = np.zeros((2, CAPACITY), np.int64)
        self._models = model(), model()
        native = decoder(cast(Graphs, self._models[0]), beam_size)
        with monkeypatch.context() as patch:
            without_library(patch)
            self._decoders = native, decoder(cast(Graphs, self._models[1]), beam_size)
        self._memory = SlotBuffers((), "S")
        self._memory.reserve(CAPACITY, 8, 0)
        column_inputs: dict[str, object] = {}
        self._columns = cast(Columns, SimpleNamespace(inputs=lambda _: column_inputs, width=7))
        self._inputs = DecoderInputs(self.tokens, self.positions, self.parents, self.lengths)
        for each in self._decoders:
            each.join(range(CAPACITY), {}, range(CAPACITY))

    def step(self, slots: NDArray[np.int64]) -> dict[str, Any]:
        """Return the inputs that both feed for these slots; they are equal."""
        self.tokens[:] = self.random.integers(0, 1000, self.tokens.shape)
        self.parents[:] = self.random.integers(0, self.beam_size, self.parents.shape)
        self.lengths[:] = self.random.integers(1, 30, CAPACITY)
        selection = SelectionParameters(scores=np.zeros(len(slots) * self.beam_size, np.float32), candidates=1)
        for each in self._decoders:
            each.step(slots, self._inputs, self._memory, self._columns, selection)
        native, numpy = (model.runs[-1] for model in self._models)
        np.testing.assert_equal(native, numpy)
        assert native["source_lengths"].tolist() == self.lengths[slots].tolist()
        assert native["token_ids"].ravel().tolist() == self.tokens[slots].ravel().tolist()
        assert native["positions"].ravel().tolist() == np.repeat(self.positions[slots], self.beam_size).tolist()
        return native


@needs_library
@pytest.mark.parametrize("beam_size", [1, 4])
def test_native_code_gathers_the_inputs_that_numpy_gathers(beam_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    both = BothFeeds(InPlaceDecoder, Model, beam_size, monkeypatch)
    for _ in range(60):
        slots = np.sort(both.random.choice(CAPACITY, both.random.integers(1, CAPACITY + 1), replace=False))
        found = both.step(slots)
        assert found["token_ids"].shape == found["positions"].shape == (len(slots), beam_size)
        assert (found["places"][:, :, :2] == [[[slot, 0]] for slot in slots.tolist()]).all()
        both.positions[slots] += 1


@needs_library
@pytest.mark.parametrize("beam_size", [1, 4])
def test_native_code_feeds_a_recurrent_decoder_as_numpy_does(beam_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    both = BothFeeds(GatheringDecoder, RecurrentModel, beam_size, monkeypatch)
    for _ in range(60):
        count = int(both.random.integers(1, CAPACITY + 1))
        both.positions[:] = both.random.integers(0, 50, CAPACITY)
        found = both.step(np.arange(count))
        assert found["token_ids"].shape == found["positions"].shape == (count * beam_size,)
        first_rows = np.arange(count)[:, None] * beam_size
        assert found["parents"].tolist() == (first_rows + both.parents[:count]).ravel().tolist()
