"""Slots of encoder memory keep their content when they move and when buffers grow or shrink."""

import subprocess
import sys

import numpy as np
import pytest

from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.native import library
from jumok_serve.runtime import tensors as memory_module
from jumok_serve.runtime.tensors import KEPT_AHEAD, KEPT_LENGTH, LENGTH_STEP, SlotBuffers
from tests.support.hang import HANG_S

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


@pytest.fixture(autouse=True, params=["native", "numpy"])
def copied_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy slots by native code or by NumPy."""
    if request.param == "numpy":
        monkeypatch.setattr(memory_module, "function", lambda *_, **__: None)
    elif library() is None:
        pytest.skip("no kernels of these sources, or an old processor")


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_sentences_survive_random_reservations(seed: int, ahead: bool) -> None:
    random = np.random.default_rng(seed)
    memory = SlotBuffers(SPECS, "S", ahead=ahead)
    sources: list[int] = []
    written: list[dict[str, np.ndarray]] = []
    for _ in range(100):
        longest = int(random.choice([5, 20, 60, 300]))  # more than `GROWTH_FACTOR` times the shortest, and less
        kept = int(random.integers(0, len(written) + 1))
        while kept and max(sources[:kept]) > longest:
            kept -= 1
        joining = int(random.integers(1, 5))
        memory.reserve(kept + joining, longest, kept)
        sources[kept:] = random.integers(1, longest + 1, joining).tolist()
        written[kept:] = [encoded(random, 1, source) for source in sources[kept:]]
        for slot in range(kept, len(written)):
            memory.write([slot], written[slot])
        for slot, (source, sentence) in enumerate(zip(sources, written, strict=True)):
            expected = {name: value[0] for name, value in sentence.items()}
            assert_same(content(memory, len(written), slot, source), expected)


@pytest.mark.parametrize("ahead", [False, True])
def test_moving_copies_one_slot_over_another(random: np.random.Generator, ahead: bool) -> None:
    memory = SlotBuffers(SPECS, "S", ahead=ahead)
    sentences = encoded(random, 3, 4)
    memory.reserve(3, 4, 0)
    memory.write(range(3), sentences)
    memory.move([2], [0], 4)
    assert_same(content(memory, 2, 0, 4), {name: value[2] for name, value in sentences.items()})
    assert_same(content(memory, 2, 1, 4), {name: value[1] for name, value in sentences.items()})


@pytest.mark.parametrize(
    ("ahead", "attribute", "reservations", "expected"),
    [
        *((False, "length", [(1, source, 0)], [-(-source // LENGTH_STEP) * LENGTH_STEP]) for source in range(1, 40)),
        # The source axis is cut when a long sentence has left, and keeps a length that short sentences grow to.
        (False, "length", [(1, 100, 0), (2, 6, 1)], [104, LENGTH_STEP]),
        (False, "length", [(1, KEPT_LENGTH, 0), (1, 6, 0)], [KEPT_LENGTH] * 2),
        # Few long sentences do not keep the slots of many short ones.
        (False, "capacity", [(1000, 8, 0), (3, 100, 2)], [1000, 3]),
        # Positions ahead grow by half, to `KEPT_LENGTH` at least, and are kept up to `KEPT_AHEAD` for any slots.
        (
            True,
            "length",
            [(4, 5, 0), (4, 33, 4), (4, 17, 4), (9, 8, 4), (9, 170, 9), (9, 8, 9), (9, 260, 9)],
            [32, 64, 64, 64, 264, 32, 400],
        ),
        (True, "capacity", [(9, 5, 0), (2, 33, 1), (2, KEPT_AHEAD, 2), (2, 8, 2)], [9, 9, 2, 2]),
    ],
)
def test_reservations(
    ahead: bool, attribute: str, reservations: list[tuple[int, int, int]], expected: list[int]
) -> None:
    """By number of slots, longest source, and slots in use."""
    memory = SlotBuffers(SPECS, "S", ahead=ahead)
    found = []
    for reservation in reservations:
        memory.reserve(*reservation)
        found.append(getattr(memory, attribute))
    assert found == expected


def test_a_buffer_keeps_no_slots_beyond_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "GROWTH_FACTOR", 1)
    memory = SlotBuffers(SPECS, "S", ahead=True)
    memory.reserve(9, 5, 0)
    memory.reserve(2, 33, 1)
    assert memory.capacity == 2
    memory.reserve(9, 33, 2)
    assert memory.capacity == 9


def test_a_view_is_no_copy_and_is_made_once(random: np.random.Generator) -> None:
    memory = SlotBuffers(SPECS, "S")
    memory.reserve(4, 8, 0)
    view = memory.view(3)
    sentence = encoded(random, 1, 8)
    memory.write([1], sentence)
    np.testing.assert_array_equal(view["memory.keys"].numpy()[1], sentence["memory.keys"][0])
    assert not memory.reserve(3, 6, 3)
    assert memory.view(3) is view
    assert view["memory.keys"].shape() == [3, 2, 8, 3]


def test_buffers_fit_into_limited_address_space() -> None:
    """The child may map 256 MiB more; its buffer needs 64 MiB and would reserve 1,024."""
    program = """
import re, resource
from jumok_serve.manifest.manifest import TensorSpec
from jumok_serve.runtime.tensors import SlotBuffers
mapped = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (mapped + (256 << 20), resource.RLIM_INFINITY))
memory = SlotBuffers([TensorSpec(name="state", dtype="float32", axes=("B", "E", 1024))], "E")
memory.reserve(16, 1024, 0)
print(memory.view(16)["state"].shape())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.stdout == "[16, 1024, 1024]\n", done.stderr


def test_large_copies_release_the_global_lock(random: np.random.Generator) -> None:
    """The result is the same as that of small copies, which hold the lock."""
    memory = SlotBuffers((TensorSpec(name="memory.keys", dtype="int8", axes=("B", 2, "S", 64)),), "S")
    keys = random.integers(-128, 128, (20, 2, 500, 64), np.int8)
    assert keys.nbytes > memory_module.GIL_HELD_BYTES
    memory.reserve(20, 600, 0)
    memory.write(range(20), {"memory.keys": keys})
    memory.move([19, 18], [0, 5], 500)
    held = memory.view(20)["memory.keys"].numpy()[:, :, :500]
    keys[[0, 5]] = keys[[19, 18]]
    np.testing.assert_array_equal(held, keys)


def test_chosen_rows_are_copied_into_slots_in_any_order(random: np.random.Generator) -> None:
    memory = SlotBuffers(SPECS, "S")
    memory.reserve(4, 9, 0)
    sentences = encoded(random, 5, 9)
    memory.write([3, 0], sentences, [4, 2])
    for slot, row in ((3, 4), (0, 2)):
        assert_same(content(memory, 4, slot, 9), {name: value[row] for name, value in sentences.items()})


def test_rows_that_do_not_fit_slots_are_refused(random: np.random.Generator) -> None:
    memory = SlotBuffers(SPECS, "S")
    memory.reserve(2, 9, 0)
    wider = {**encoded(random, 1, 9), "memory.keys": random.standard_normal((1, 2, 9, 4), np.float32)}
    with pytest.raises(ValueError, match=r"\(2, 9, 4\) do not fit slots of shape \(2, 16, 3\)"):
        memory.write([0], wider)
