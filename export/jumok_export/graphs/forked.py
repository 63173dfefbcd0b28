"""Compute something in a forked process, beside this one."""

import os
import pickle
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

_LEAST_S, _TIMES = 60.0, 10
"""Seconds, and times the seconds of this process, after which another is given up."""


def can_fork() -> bool:
    """True if another process would have a core, and no other Python thread may hold a lock that it needs."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1


@contextmanager
def forked(compute: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Begin to compute a value in a forked process, which ends with this context.

    Its computations use one thread, as threads are not forked.

    Yields:
        Function that waits for the value, which must be picklable and true; None if the process failed.
    """
    started = time.monotonic()
    end, other_end = os.pipe()
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of waiting threads of libraries
            process = os.fork()
    except OSError:  # too little memory, or too many processes
        os.close(end)
        os.close(other_end)
        yield lambda: None
        return
    if process == 0:
        _run(compute, other_end)
    os.close(other_end)

    def wait() -> Any:
        most = _LEAST_S + _TIMES * (time.monotonic() - started)
        if not select.select([end], [], [], most)[0]:
            return None
        with os.fdopen(os.dup(end), "rb") as stream:
            content = stream.read()
        try:
            return pickle.loads(content)  # noqa: S301 - of this program
        except (EOFError, pickle.UnpicklingError):  # it was killed
            return None

    try:
        yield wait
    finally:
        os.close(end)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _run(compute: Callable[[], Any], end: int) -> NoReturn:
    """Compute in the forked process, send the value, and end without what other code does at exit."""
    try:
        torch.set_num_threads(1)
        content = memoryview(pickle.dumps(compute()))
        while content:
            content = content[os.write(end, content) :]
    finally:
        os._exit(0)
