"""Memory of the process: garbage collection, malloc arenas, free memory."""

import ctypes
import gc
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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

LOOK_S = 2.0
"""Time between two looks at free memory, in seconds; one takes 0.1 ms, and 70 ns for each piece of free memory."""

MUCH_FREE = 8 * 2**20
"""Bytes of free memory that are given back to the system; less is kept, as it will be used again."""

LARGE = 2**20
"""Bytes from which a block is given back as soon as it is free, unless the environment sets another number.

glibc raises its bound to the size of the largest block that was freed, up to 32 MiB, and keeps smaller ones. After 400
requests of 4 MiB, eight at a time, a server kept 200 MiB more, and with this bound 30 MiB (November 2026).
"""
KEPT_FREE = 16 * 2**20
"""Free bytes at the end of an arena that are not given back."""
_OPTIONS = {"ARENA_MAX": (-8, ARENAS), "MMAP_THRESHOLD": (-3, LARGE), "TRIM_THRESHOLD": (-1, KEPT_FREE)}
"""Options of mallopt(3): number in malloc.h, and value."""
_CGROUP = Path("/sys/fs/cgroup")


def tune_malloc() -> None:
    """Let new threads share `ARENAS`, and free memory go back, except for options that the environment sets."""
    mallopt, tunables = _glibc_function("mallopt"), os.environ.get("GLIBC_TUNABLES", "")
    for name, (number, value) in _OPTIONS.items():
        is_set = f"MALLOC_{name}" in os.environ or f"MALLOC_{name}_" in os.environ
        if mallopt is not None and not is_set and f"glibc.malloc.{name.lower()}" not in tunables:
            mallopt(number, value)


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


@contextmanager
def giving_back_free_memory() -> Iterator[None]:
    """Return memory to the system within this context, in a thread, after much of it has become free.

    malloc keeps free memory between objects in use: after large requests of all kinds a server kept 340 MiB (19 kinds
    one after the other, November 2026). Cycles of objects are collected first. Needs glibc 2.33; without it the context
    does nothing.
    """
    trim, info = _glibc_function("malloc_trim"), _glibc_function("mallinfo2")
    if trim is None or info is None:
        yield
        return
    info.restype = _MallocInfo
    trim(0)  # what is free already would hide as much that becomes free
    stopped = threading.Event()
    thread = threading.Thread(target=_give_back_free_memory, args=(trim, info, stopped), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _give_back_free_memory(trim: Any, info: Any, stopped: threading.Event) -> None:
    least, again = _not_in_use(info()), False
    while not stopped.wait(LOOK_S):
        with suppress(OSError):  # the process may open no more files
            free = _not_in_use(info())
            much = free > least + MUCH_FREE
            if much or again:
                gc.collect()  # a closed connection is a cycle, and 2,000 of them keep 11 MiB
                trim(0)
                least = _not_in_use(info())
            else:
                least = min(least, free)
            again = much  # what was still in use may be free by the next look


class _MallocInfo(ctypes.Structure):
    """Result of mallinfo2(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def _not_in_use(info: Any) -> int:
    """Bytes of this process's own memory besides those that malloc has given out."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text(encoding="ascii").split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") - int(info.uordblks + info.hblkhd)


def _glibc_function(name: str) -> Any:
    """A function of glibc; None with another C library."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def free_memory() -> int | None:
    """Bytes of memory and swap that this process may still take; None if the system does not say."""
    try:
        content = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return None
    kib = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", content, re.MULTILINE)}
    if "MemAvailable" not in kib:
        return None
    return min([(kib["MemAvailable"] + kib.get("SwapFree", 0)) * 1024, *_left_in_groups()])


def _left_in_groups() -> Iterator[int]:
    """Yield the bytes that each limited control group around this process leaves, such as a container or a service."""
    try:
        own = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return
    inner = _CGROUP / (own[1] if own else "")
    for group in (inner, *inner.parents):
        if not group.is_relative_to(_CGROUP):
            return
        try:
            limit = int((group / "memory.max").read_text(encoding="utf-8"))
            used = int((group / "memory.current").read_text(encoding="utf-8"))
            counts = (group / "memory.stat").read_text(encoding="utf-8")
        except (OSError, ValueError):  # "max" is no number
            continue
        reclaimable = sum(int(size) for size in re.findall(r"^(?:in)?active_file (\d+)$", counts, re.MULTILINE))
        yield limit - used + reclaimable
