"""Memory of the process: garbage collection, malloc arenas, free memory."""

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jumok_serve.native import function

ARENAS = 2
"""Arenas of malloc that all threads share, unless the environment sets another number.

glibc makes up to eight for each core. One thread loads a model, others decode with it, and another frees it, so each
arena mixes parts of several models. Only whole pages can be given back, and threads cannot use another arena's free
memory. After fifty swaps under load memory had grown from 82 to 149 MiB with 16 arenas, from 74 to 109 with two.
"""

NEW_OBJECTS = 50_000
"""New objects before the garbage collector searches for cycles, which are rare here.

Python's default is 700 objects; at that, 1,000 translated texts spent 8 ms in the garbage collector.
"""

_M_ARENA_MAX = -8
"""Number of the option for arenas in mallopt(3), from malloc.h."""


def use_few_arenas() -> None:
    """Let new threads share `ARENAS`, unless MALLOC_ARENA_MAX or GLIBC_TUNABLES is set."""
    is_set = "MALLOC_ARENA_MAX" in os.environ or "glibc.malloc.arena_max" in os.environ.get("GLIBC_TUNABLES", "")
    if not is_set and (mallopt := _glibc_function("mallopt")) is not None:
        mallopt(_M_ARENA_MAX, ARENAS)


def freeze_objects() -> None:
    """Exclude present objects from garbage collection, and make collections rarer.

    A collection over all that a server has imported and loaded stops the process for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


@contextmanager
def rare_collections() -> Iterator[None]:
    """Exclude present objects from garbage collection within this context, and make collections rarer.

    A tenth of a graph's tracing would be searches for cycles among the objects of libraries.
    """
    before, was_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not was_frozen:
            gc.unfreeze()


def give_back_memory(*, frozen: bool = True) -> None:
    """Free unreferenced objects, and return free memory to the system.

    Args:
        frozen: False to leave out objects that are excluded from garbage collection, which takes less time.
    """
    was_frozen = frozen and gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    gc.collect()
    if was_frozen:
        gc.freeze()
    if (trim := _glibc_function("malloc_trim")) is not None:
        trim(0)
    if (return_unused := function("jumok_return_unused", (), keep_gil=False)) is not None:
        return_unused()


def _glibc_function(name: str) -> Callable[..., int] | None:
    """A function of glibc; None with another C library."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
