"""Where rows of a decoder in place write, what they see and are fed: natively as with NumPy, and as the rule says."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime import kv_cache as states
from jumok_serve.runtime.decoder_step import Choice
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.output_columns import Columns
from jumok_serve.runtime.slot_buffers import SlotBuffers
from tests.support.native_operators import needs_library

SPECS = (TensorSpec(name="state.key.0", dtype="int8", axes=("B", 2, "E", 4)),)
CHOICE = Choice(scores=np.zeros(0, np.float32), candidates=1)


class Step:
    """A decoder step that gives what it is fed."""

    def __init__(self, rows: Mapping[str, np.ndarray], *_: object, width: int) -> None:
        self._rows = rows

    def run(self, _: Choice) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in self._rows.items()}


class Model:
    """What a state of `SPECS` asks of its graphs."""

    reads_entry_positions = False
    by_slot = True
    bind_step = Step

    def make_slots(self, _: str) -> SlotBuffers:
        return SlotBuffers(SPECS, "E", ahead=True)


GRAPHS = cast(Graphs, Model())


def made(monkeypatch: pytest.MonkeyPatch, beam_size: int, *, native: bool) -> states.InPlaceState:
    with monkeypatch.context() as patch:
        if not native:
            patch.setattr(states, "function", lambda *_: None)
        return states.InPlaceState(GRAPHS, beam_size)


@needs_library
@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_entries_are_chosen_natively_as_with_numpy(beam_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(beam_size)
    both = [made(monkeypatch, beam_size, native=native) for native in (True, False)]
    slots = 7
    positions = np.zeros(slots, np.int64)
    for state in both:
        state.join(range(slots), {}, range(slots))
    for step in range(90):  # more than the buffers have room for at first
        if step % 11 == 5:
            positions[rng.integers(slots)] = 0  # another sentence begins there
        parents = rng.integers(0, beam_size, (slots, beam_size))
        fed = states.Fed(parents, positions, parents, positions)
        places = [state._place(fed, slots) for state in both]
        assert places[0].tolist() == places[1].tolist()
        seen = [state._visible[:slots] for state in both]
        np.testing.assert_array_equal(seen[0], seen[1])
        assert (seen[0].sum(axis=2) == positions[:, None] + 1).all()  # each row sees a past of its own, and itself
        own = np.take_along_axis(seen[0], places[0][:, None, :].repeat(beam_size, axis=1), axis=2)
        assert (own == np.eye(beam_size, dtype=bool)).all()  # no row sees another one's new entry
        positions += 1


@needs_library
@pytest.mark.parametrize("beam_size", [1, 4])
def test_steps_are_fed_natively_as_with_numpy(beam_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(beam_size)
    both = [made(monkeypatch, beam_size, native=native) for native in (True, False)]
    room = 9
    memory = SlotBuffers(SPECS, "E")
    memory.reserve(room, 8, 0)
    inputs: dict[str, object] = {}
    columns = cast(Columns, SimpleNamespace(inputs=lambda _: inputs, width=7))
    tokens, parents = np.zeros((2, room, beam_size), np.int64)
    positions, lengths = np.zeros((2, room), np.int64)
    fed = states.Fed(tokens, positions, parents, lengths)
    for state in both:
        state.join(range(room), {}, range(room))
    for _ in range(60):
        tokens[:] = rng.integers(0, 1000, tokens.shape)
        parents[:] = rng.integers(0, beam_size, parents.shape)
        lengths[:] = rng.integers(1, 30, room)
        slots = np.sort(rng.choice(room, rng.integers(1, room + 1), replace=False))
        native, numpy = (cast(dict[str, Any], state.step(slots, fed, memory, columns, CHOICE)) for state in both)
        np.testing.assert_equal(native, numpy)
        assert native["token_ids"].tolist() == tokens[slots].tolist()
        assert native["positions"].tolist() == [[position] * beam_size for position in positions[slots].tolist()]
        assert native["source_lengths"].tolist() == lengths[slots].tolist()
        assert (native["places"][:, :, :2] == [[[slot, 0]] for slot in slots.tolist()]).all()
        positions[slots] += 1
