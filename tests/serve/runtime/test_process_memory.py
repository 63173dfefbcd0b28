"""Objects that are excluded from garbage collection, and their collection when memory is given back."""

import gc
import weakref

from jumok_serve.runtime.process_memory import NEW_OBJECTS, freeze_objects, give_back_memory


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
