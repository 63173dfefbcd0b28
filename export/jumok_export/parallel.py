"""Computations at the same time: in threads, or in a forked process beside this one."""

import logging
import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn, TypeVar

import torch

from jumok_serve.forks import end_with_parent

WORKERS = 2
"""Threads of `concurrently`: PyTorch and ONNX Runtime seldom keep two cores busy with one small step."""
_WAKE_S = 1.0
"""Longest time, in seconds, after which a wait notices Ctrl-C."""
_LEAST_S, _TIMES = 60.0, 10
"""A forked process may take this many seconds, and this many times longer than the process that waits for it."""
_allowed = False

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

logger = logging.getLogger(__name__)


class _Worker(threading.local):
    """State of a thread.

    Attributes:
        cancelled: set when the computations of this worker's call are to end; None in a thread that is no worker.
    """

    cancelled: threading.Event | None = None


_worker = _Worker()


def threads_each() -> int:
    """Threads of PyTorch or ONNX Runtime in each worker: PyTorch's number divided by the workers, at least one."""
    return max(1, torch.get_num_threads() // WORKERS)


def concurrently(compute: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Compute a function of all items in `WORKERS` threads; returns the results in the items' order.

    Each worker has `threads_each()`; workers of a call within a worker have as many as that one. A single item is
    computed in the calling thread with all its threads. Once Ctrl-C or an item's error is raised, no item begins, and
    those that run end at their next `raise_if_cancelled`.
    """
    listed = [*items]
    if len(listed) == 1:
        return [compute(listed[0])]
    if _worker.cancelled is not None:
        return _in_workers(compute, listed, _worker.cancelled)
    cancelled, before = threading.Event(), torch.get_num_threads()
    torch.set_num_threads(threads_each())
    try:
        return _in_workers(compute, listed, cancelled, cancelled.set)
    finally:
        torch.set_num_threads(before)


def both(one: Callable[[], _Item], other: Callable[[], _Result]) -> tuple[_Item, _Result]:
    """Compute one value here, which Ctrl-C ends at once, and the other in a thread.

    Once Ctrl-C or an error of the first is raised, the second ends at its next `raise_if_cancelled`. An error of the
    second is raised after the first is computed.
    """
    cancelled = threading.Event()
    with ThreadPoolExecutor(1, initializer=setattr, initargs=(_worker, "cancelled", cancelled)) as pool:
        pending = pool.submit(other)
        try:
            return one(), _result(pending)
        except BaseException:
            cancelled.set()  # before the pool waits for its thread
            raise


def _in_workers(
    compute: Callable[[_Item], _Result],
    items: list[_Item],
    cancelled: threading.Event,
    cancel: Callable[[], None] = lambda: None,
) -> list[_Result]:
    def begin(item: _Item) -> _Result:
        raise_if_cancelled()
        return compute(item)

    with ThreadPoolExecutor(WORKERS, initializer=setattr, initargs=(_worker, "cancelled", cancelled)) as pool:
        try:
            return [_result(pending) for pending in [pool.submit(begin, item) for item in items]]
        except BaseException:
            cancel()  # before the pool waits for its threads
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _result(pending: Future[_Result]) -> _Result:
    """Wait for a result; again and again, as a signal that comes just before a wait does not end it."""
    while not wait([pending], _WAKE_S).done:
        pass
    return pending.result()


def raise_if_cancelled() -> None:
    """End a worker's computation if its call has failed or was interrupted.

    Raises:
        CancelledError: it has.
    """
    if _worker.cancelled is not None and _worker.cancelled.is_set():
        raise CancelledError


def allow_forks() -> None:
    """Let exports fork this process; for programs that know that its other threads hold no locks."""
    global _allowed  # noqa: PLW0603 - a property of the process
    _allowed = True


def can_fork() -> bool:
    """True if this process may be forked, and the other one would have a core."""
    return _allowed and sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


@contextmanager
def forked(compute: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Begin to compute a value in a forked process, which ends with this context and with this process.

    Its computations use one thread, as threads are not forked, and those of this process one less meanwhile.

    Yields:
        Function that waits for the value, which must be picklable and true; None, after a warning, if there is none.
    """
    started = time.monotonic()
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(compute, sender, receiver, os.getpid()), daemon=True)
    not_started = ""

    def wait() -> Any:
        seconds = _LEAST_S + _TIMES * (time.monotonic() - started)
        value, failure = (None, not_started) if not_started else _received(receiver, process, seconds)
        if failure:
            logger.warning("a second process gave no result, so the first one computes it: %s", failure)
        return value

    with receiver, ExitStack() as ended:
        quiet = warnings.catch_warnings(action="ignore", category=DeprecationWarning)  # of threads, which sleep
        with sender, quiet:
            try:
                process.start()
            except OSError as error:  # too little memory, or too many processes
                not_started = f"it did not start: {error}"
            else:
                ended.callback(process.join)
                ended.callback(process.kill)
                ended.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(max(1, torch.get_num_threads() - 1))
        yield wait


def _received(receiver: Connection, process: BaseProcess, seconds: float) -> tuple[Any, str]:
    """Receive the value, or None and the reason why there is none."""
    try:
        return receiver.recv() if receiver.poll(seconds) else (None, f"it took more than {seconds:.0f} seconds")
    except (OSError, EOFError, pickle.UnpicklingError):  # it has ended
        process.join(_LEAST_S)
        code = process.exitcode or 0
        return None, f"signal {-code} ended it" if code < 0 else f"it ended with status {code}"


def _send(compute: Callable[[], Any], sender: Connection, receiver: Connection, parent: int) -> NoReturn:
    """Compute in the forked process, send the value, and end without what other code does at exit."""
    try:
        receiver.close()  # with a copy of it here, a send would wait for ever after the other process has ended
        end_with_parent()
        if os.getppid() == parent:
            torch.set_num_threads(1)
            try:
                sender.send((compute(), ""))
            except Exception as error:  # any: the other process says it
                line, *_ = (str(error) or "no message").splitlines()
                sender.send((None, f"{type(error).__name__}: {line}"))
    finally:
        os._exit(0)
