"""Slots of encoder memory: what is written stays, wherever it is moved and however the buffers grow."""

import numpy as np
import pytest

from jumok_serve.manifest import TensorSpec
from jumok_serve.memory import LENGTH_STEP, SlotBuffers

SPECS = (
    TensorSpec(name="memory.keys", dtype="float32", axes=("B", 2, "S", 3)),
    TensorSpec(name="memory.summary", dtype="float32", axes=("B", 5)),
)


def encoded(random: np.random.Generator, sentences: int, source: int) -> dict[str, np.ndarray]:
    return {
        "memory.keys": random.standard_normal((sentences, 2, source, 3), np.float32),
        "memory.summary": random.standard_normal((sentences, 5), np.float32),
    }


def content(memory: SlotBuffers, slots: int, slot: int, source: int) -> dict[str, np.ndarray]:
    view = memory.view(slots)
    return {
        "memory.keys": view["memory.keys"].numpy()[slot, :, :source],
        "memory.summary": view["memory.summary"].numpy()[slot],
    }


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name])


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(3)


def test_sentences_survive_growth_of_slots_and_of_the_source_axis(random: np.random.Generator) -> None:
    memory = SlotBuffers(SPECS, "S")
    first = encoded(random, 2, 5)
    memory.reserve(2, 5, 0)
    for row in range(2):
        memory.write(row, first, row)
    memory.reserve(3, 21, 2)
    second = encoded(random, 1, 21)
    memory.write(2, second, 0)
    for row in range(2):
        assert_same(content(memory, 3, row, 5), {name: value[row] for name, value in first.items()})
    assert_same(content(memory, 3, 2, 21), {name: value[0] for name, value in second.items()})


def test_moving_copies_one_slot_over_another(random: np.random.Generator) -> None:
    memory = SlotBuffers(SPECS, "S")
    sentences = encoded(random, 3, 4)
    memory.reserve(3, 4, 0)
    for row in range(3):
        memory.write(row, sentences, row)
    memory.move(2, 0, 4)
    assert_same(content(memory, 2, 0, 4), {name: value[2] for name, value in sentences.items()})
    assert_same(content(memory, 2, 1, 4), {name: value[1] for name, value in sentences.items()})


def test_the_source_axis_is_cut_when_a_long_sentence_has_left(random: np.random.Generator) -> None:
    memory = SlotBuffers(SPECS, "S")
    memory.reserve(1, 100, 0)
    short = encoded(random, 1, 6)
    memory.write(0, short, 0)
    memory.reserve(2, 6, 1)
    assert memory.length == LENGTH_STEP
    assert_same(content(memory, 2, 0, 6), {name: value[0] for name, value in short.items()})


def test_few_long_sentences_do_not_get_the_room_of_many_short_ones() -> None:
    memory = SlotBuffers(SPECS, "S")
    memory.reserve(1000, 8, 0)
    memory.reserve(3, 100, 2)
    assert next(iter(memory._buffers.values())).shape == (3, 2, 104, 3)


def test_a_view_is_not_a_copy_and_is_made_once(random: np.random.Generator) -> None:
    memory = SlotBuffers(SPECS, "S")
    memory.reserve(4, 8, 0)
    view = memory.view(3)
    sentence = encoded(random, 1, 8)
    memory.write(1, sentence, 0)
    np.testing.assert_array_equal(view["memory.keys"].numpy()[1], sentence["memory.keys"][0])
    assert memory.view(3) is view
    assert view["memory.keys"].shape() == [3, 2, 8, 3]


def test_every_source_length_is_rounded_up_to_the_step() -> None:
    for source in range(1, 40):
        memory = SlotBuffers(SPECS, "S")
        memory.reserve(1, source, 0)
        assert memory.length % LENGTH_STEP == 0
        assert source <= memory.length < source + LENGTH_STEP
