"""Objects that are excluded from garbage collection, and their collection when memory is given back."""

import ctypes
import gc
import threading
import time
import weakref
from pathlib import Path

import pytest

from jumok_serve.runtime import process_memory
from jumok_serve.runtime.process_memory import (
    NEW_OBJECTS,
    freeze_objects,
    give_back_memory,
    giving_back_free_memory,
    rare_collections,
)
from tests.support.hang import HANG_S

SETTLED = 4
"""Looks: one that began before a change, one that sees it, one after a trim, and one that finds nothing to do."""


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_frozen_objects_are_collected_when_memory_is_given_back() -> None:
    """They stay frozen after a context of rare collections."""
    cycle, threshold = Cycle(), gc.get_threshold()
    alive = weakref.ref(cycle)
    freeze_objects()
    try:
        del cycle
        with rare_collections():
            pass
        gc.collect()
        assert alive() is not None
        give_back_memory()
        assert alive() is None
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] == NEW_OBJECTS
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)


def test_giving_back_memory_freezes_nothing() -> None:
    give_back_memory()
    assert gc.get_freeze_count() == 0


def test_collections_are_rare_within_a_context_and_spare_older_objects() -> None:
    old = Cycle()
    alive, threshold = weakref.ref(old), gc.get_threshold()
    with rare_collections():
        del old
        new = weakref.ref(Cycle())
        give_back_memory(frozen=False)
        assert new() is None
        assert alive() is not None
        assert gc.get_threshold()[0] == NEW_OBJECTS
    assert gc.get_threshold() == threshold
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert alive() is None


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_free_memory_between_objects_in_use_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it became free, with the objects in cycles, and then not again."""
    trims = list[int]()
    function = process_memory._glibc_function

    def counted(name: str) -> object:
        real = function(name)

        def trim(pad: int) -> int:
            trims.append(pad)
            return int(real(pad))

        return trim if name == "malloc_trim" else real

    monkeypatch.setattr(process_memory, "_glibc_function", counted)
    looked = threading.Semaphore(0)
    not_in_use = process_memory._not_in_use

    def look(info: object) -> int:
        found = not_in_use(info)
        looked.release()
        return found

    def wait_for_looks(number: int) -> None:
        """Wait for as many; only the first one may have begun before."""
        while looked.acquire(blocking=False):
            pass
        for _ in range(number):
            assert looked.acquire(timeout=HANG_S)

    monkeypatch.setattr(process_memory, "_not_in_use", look)
    monkeypatch.setattr(process_memory, "LOOK_S", 0.01)
    with giving_back_free_memory():
        assert len(trims) == 1  # what was free already
        wait_for_looks(1)
        objects = [bytes(20_000) for _ in range(5000)]
        wait_for_looks(SETTLED)
        taken = resident_bytes()
        cycle = Cycle()
        in_cycle = weakref.ref(cycle)
        del cycle, objects[::2], objects[1::2]
        until = time.monotonic() + HANG_S
        while resident_bytes() > taken - 40_000_000:
            assert time.monotonic() < until
            time.sleep(0.01)
        wait_for_looks(SETTLED)
        assert in_cycle() is None
        before = len(trims)
        wait_for_looks(30)
        assert len(trims) == before
    assert objects


def resident_bytes() -> int:
    resident = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(resident) * 4096
