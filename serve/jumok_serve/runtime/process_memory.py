"""Memory: what the garbage collector need not look at, how malloc divides it, and how it is given back."""

import ctypes
import gc
import os
import sys
from collections.abc import Callable

from jumok_serve.native import function

ARENAS = 2
"""Where all threads take memory from, unless the environment says otherwise.

By itself glibc makes up to eight for every core. One thread loads a model, others decode with it, and another frees it,
so that in each arena some of one model lies between some of the next. Only whole pages can be given back, and what an
arena has free is of no use to threads that take from another: in fifty swaps under load what sixteen spanned grew from
82 to 149 MiB, what two did from 74 to 109.
"""

NEW_OBJECTS = 50_000
"""How many more objects there are before the garbage collector looks for unused ones that refer to each other, of
which few are made. By itself it looks whenever there are 700 more; while 1,000 texts were translated, for 8 ms."""

_M_ARENA_MAX = -8
"""What malloc.h calls the number of arenas for mallopt(3)."""


def use_few_arenas() -> None:
    """Has threads that begin from now on share `ARENAS`; what MALLOC_ARENA_MAX or GLIBC_TUNABLES say stays."""
    told = "MALLOC_ARENA_MAX" in os.environ or "glibc.malloc.arena_max" in os.environ.get("GLIBC_TUNABLES", "")
    if not told and (mallopt := _of_glibc("mallopt")) is not None:
        mallopt(_M_ARENA_MAX, ARENAS)


def set_aside() -> None:
    """Has the garbage collector pass over what there is now, which is going to stay, and look seldom at what is new.

    While it looks at all that a server has imported and loaded, tens of milliseconds, nothing else goes on.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


def give_back_memory() -> None:
    """Frees what nothing refers to, and has free pages returned that the C library and native kernels would keep."""
    was_set_aside = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if was_set_aside:
        gc.freeze()
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)
    if (return_unused := function("jumok_return_unused", (), alone=False)) is not None:
        return_unused()


def _of_glibc(function: str) -> Callable[..., int] | None:
    """One of its functions; None where the C library is another, such as musl, which keeps less."""
    return getattr(ctypes.CDLL(None), function, None) if sys.platform == "linux" else None
