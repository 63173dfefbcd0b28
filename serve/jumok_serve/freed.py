"""What the garbage collector need not look at, and what a model held in memory, given back once the model is gone."""

import ctypes
import gc
import sys


def set_aside() -> None:
    """Has the garbage collector pass over what there is now, which is going to stay.

    While it looks at all that a server has imported and loaded, tens of milliseconds, nothing else goes on.
    """
    gc.collect()
    gc.freeze()


def give_back_memory() -> None:
    """Frees what nothing refers to, and has the C library return its free pages: by itself it would keep them."""
    was_set_aside = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if was_set_aside:
        gc.freeze()
    if sys.platform == "linux":
        # musl and others have no such function, and keep less.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
