"""What a model held in memory, given back to the system once the model is gone."""

import ctypes
import gc
import sys


def give_back_memory() -> None:
    """Frees what nothing refers to, and has the C library return its free pages: by itself it would keep them."""
    gc.collect()
    if sys.platform == "linux":
        # musl and others have no such function, and keep less.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
