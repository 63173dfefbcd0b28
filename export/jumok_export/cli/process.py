"""Settings of the process in which a command computes."""

import atexit
import ctypes
import gc
import os
import sys


def let_threads_sleep() -> None:
    """Let PyTorch's threads sleep while they wait; call it before PyTorch is imported.

    In a verification PyTorch and ONNX Runtime take turns. By default a thread of OpenMP spins for milliseconds after
    its work, and takes a core from the other's threads.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def collect_rarely() -> None:
    """Search seldom for cycles among objects, and not at exit; call it before PyTorch is imported.

    Libraries make hundreds of thousands of objects, which stay: searches take a fifth of the time of their imports.
    """
    from jumok_serve.runtime.process_memory import NEW_OBJECTS  # noqa: PLC0415 - imports ONNX Runtime

    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)


def reuse_freed_memory() -> None:
    """Have the C library keep freed memory for reuse.

    A training step on a CPU allocates and frees hundreds of megabytes; else page faults take half of its time.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc; other C libraries have no such call
        m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)
        mallopt(m_top_pad, 64 * 2**20)
