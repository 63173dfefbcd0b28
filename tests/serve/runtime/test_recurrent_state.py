"""State of constant size in two buffers: rows stay with their sentences, and nothing is allocated between steps."""

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnxruntime import OrtValue

from jumok_serve.bundle.bundle import Bundle
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.decoders import GatheredState, GatheringDecoder, RecurrentState, make_decoder
from jumok_serve.runtime.device import CPU, Device
from jumok_serve.runtime.graphs import Graphs
from jumok_serve.runtime.tensors import Tensors, as_value

SPECS = (
    TensorSpec(name="state.cell", dtype="float32", axes=("P", 3)),
    TensorSpec(name="state.count", dtype="int64", axes=("P", 2, 2)),
)
POSITIONS = np.zeros(0, np.int64)  # no matter
SHAPES = {"state.cell": (3,), "state.count": (2, 2)}


def first_states(numbers: list[int]) -> Tensors:
    """First states that hold a number in each row."""
    return {
        spec.name: as_value(np.stack([np.full(SHAPES[spec.name], number, np.dtype(spec.dtype)) for number in numbers]))
        for spec in SPECS
    }


def arrays(tensors: Mapping[str, OrtValue]) -> dict[str, NDArray[np.generic]]:
    return {name: value.numpy() for name, value in tensors.items()}


def step(state: RecurrentState, parents: NDArray[np.int64]) -> None:
    """Add 1 to the state of the rows that `parents` [n, K] name."""
    sentences = len(parents)
    last, following = state.tensors(sentences, POSITIONS)
    rows = (state.first_rows(sentences) + parents).reshape(-1)
    for name, value in following.items():
        value.numpy()[:] = last[name].numpy()[rows] + 1
    state.replace(dict, sentences)


def check(state: RecurrentState, numbers: list[list[int] | None], beam_size: int) -> None:
    """Compare the rows of occupied slots with the numbers that they must hold, [slots, K]."""
    present, _ = state.tensors(len(numbers), POSITIONS)
    first_rows = state.first_rows(len(numbers))[:, 0]
    for name, array in arrays(present).items():
        for first, expected in zip(first_rows, numbers, strict=True):
            if expected is not None:
                rows = array[first : first + beam_size].reshape(beam_size, -1)
                assert rows.tolist() == [[number] * rows.shape[1] for number in expected], name


@pytest.mark.parametrize("beam_size", [1, 3])
def test_rows_stay_with_their_sentences(beam_size: int) -> None:
    rng = random.Random(4)
    state = RecurrentState(SPECS, beam_size)
    numbers: list[list[int] | None] = []
    for turn in range(60):
        joining = [slot for slot, one in enumerate(numbers) if one is None and rng.random() < 0.5]
        joining += range(len(numbers), len(numbers) + rng.randint(0 if numbers else 1, 2))
        rng.shuffle(joining)
        numbers += [None] * (max([len(numbers), *(slot + 1 for slot in joining)]) - len(numbers))
        if joining:
            rows = rng.sample(range(len(joining) + 2), len(joining))
            state.join(joining, first_states([1000 * turn + row for row in range(len(joining) + 2)]), rows)
        for slot, row in zip(joining, rows if joining else [], strict=True):
            numbers[slot] = [1000 * turn + row] * beam_size  # a first step picks row 0, which alone is written
        parents = np.array(
            [
                [0 if slot in joining else rng.randrange(beam_size) for _ in range(beam_size)]
                for slot in range(len(numbers))
            ]
        )
        step(state, parents)
        numbers = [
            None if one is None else [one[parent] + 1 for parent in of_slot]
            for one, of_slot in zip(numbers, parents.tolist(), strict=True)
        ]
        check(state, numbers, beam_size)
        for slot, one in enumerate(numbers):
            if one is not None and rng.random() < 0.2:
                numbers[slot] = None  # the sentence leaves
        empty = [slot for slot, one in enumerate(numbers) if one is None]
        if turn % 3 == 2 and empty and numbers[-1] is not None:
            state.move([len(numbers) - 1], empty[:1])
            numbers[empty[0]] = numbers.pop()
            check(state, numbers, beam_size)


def test_steps_take_turns_between_the_same_tensors() -> None:
    state = RecurrentState(SPECS, 2)
    state.join([0, 1], first_states([5, 7]), [0, 1])
    given = []
    for _ in range(4):
        given.append(state.tensors(2, POSITIONS))
        step(state, np.zeros((2, 2), np.int64))
    assert given[0][0] is given[1][1] is given[2][0] is given[3][1]
    assert given[0][1] is given[1][0] is given[2][1] is given[3][0]


def test_state_that_the_encoder_does_not_give_begins_with_zeros() -> None:
    state = RecurrentState(SPECS, 1)
    state.join([0], first_states([9]), [0])
    state.join([0, 1], {"state.cell": first_states([3, 4])["state.cell"]}, [1, 0])
    present = arrays(state.tensors(2, POSITIONS)[0])
    assert present["state.cell"][:, 0].tolist() == [4, 3]
    assert not present["state.count"].any()


def test_graphs_for_a_device_make_a_new_state_at_each_step(recurrent_bundle: Path) -> None:
    """They copy a state when it is bound, so that one which stays bound would be read as it was."""
    device = Device("cpu", CPU.providers, own_memory=True, allow_copies=True)
    graphs = Graphs(Bundle.open(recurrent_bundle), "fp32", device=device, threads=1)
    decoder = make_decoder(graphs, 2)
    assert isinstance(decoder, GatheringDecoder)
    assert isinstance(decoder._state, GatheredState)
