"""Where rows of a decoder in place write, and what they see: natively as with NumPy, and as the rule says."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from jumok_serve import states
from jumok_serve.manifest import TensorSpec
from jumok_serve.memory import SlotBuffers
from jumok_serve.session import Graphs

from .native_operators import needs_library

SPECS = (TensorSpec(name="state.key.0", dtype="int8", axes=("B", 2, "E", 4)),)
GRAPHS = cast(
    Graphs, SimpleNamespace(make_slots=lambda _: SlotBuffers(SPECS, "E", ahead=True), reads_entry_positions=False)
)


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
