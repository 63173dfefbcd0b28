"""Objects that are excluded from garbage collection, and their collection when memory is given back."""

import gc
import weakref

from jumok_serve.runtime.process_memory import NEW_OBJECTS, freeze_objects, give_back_memory, rare_collections


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_frozen_objects_are_collected_when_memory_is_given_back() -> None:
    cycle = Cycle()
    alive = weakref.ref(cycle)
    threshold = gc.get_threshold()
    freeze_objects()
    try:
        del cycle
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


def test_objects_that_were_frozen_before_stay_frozen() -> None:
    threshold = gc.get_threshold()
    freeze_objects()
    try:
        with rare_collections():
            pass
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] == NEW_OBJECTS
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
