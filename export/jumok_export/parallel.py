"""Computations at the same time: in threads, or in a forked process beside this one."""

import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TypeVar

import torch

WORKERS = 2
"""Threads of `concurrently`: PyTorch and ONNX Runtime seldom keep two cores busy with one small step."""
_LEAST_S, _TIMES = 60.0, 10
"""Seconds, and times the seconds of this process, after which another is given up."""
_allowed = False

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def threads_each() -> int:
    """Threads of PyTorch's or ONNX Runtime's for each worker, so that all workers together use PyTorch's number."""
    return max(1, torch.get_num_threads() // WORKERS)


def concurrently(compute: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Compute a function of all items in some threads; returns the results in the items' order."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads_each())
    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(compute, items))
    finally:
        torch.set_num_threads(before)


def allow_forks() -> None:
    """Let exports fork this process; for programs that know that its other threads hold no locks."""
    global _allowed  # noqa: PLW0603 - a property of the process
    _allowed = True


def can_fork() -> bool:
    """True if this process may be forked, and the other one would have a core."""
    return _allowed and sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


@contextmanager
def forked(compute: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Begin to compute a value in a forked process, which ends with this context.

    Its computations use one thread, as threads are not forked.

    Yields:
        Function that waits for the value, which must be picklable and true; None if the process failed.
    """
    started = time.monotonic()
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(compute, sender), daemon=True)

    def wait() -> Any:
        try:
            return receiver.recv() if receiver.poll(_LEAST_S + _TIMES * (time.monotonic() - started)) else None
        except (OSError, EOFError, pickle.UnpicklingError):  # it was killed
            return None

    with receiver, ExitStack() as ended:
        quiet = warnings.catch_warnings(action="ignore", category=DeprecationWarning)  # of threads, which sleep
        with sender, quiet, suppress(OSError):  # too little memory, or too many processes
            process.start()
            ended.callback(process.join)
            ended.callback(process.kill)
        yield wait


def _send(compute: Callable[[], Any], sender: Connection) -> NoReturn:
    """Compute in the forked process, send the value, and end without what other code does at exit."""
    try:
        torch.set_num_threads(1)
        sender.send(compute())
    finally:
        os._exit(0)
