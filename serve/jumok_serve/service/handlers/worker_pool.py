"""Threads for one kind of work, with a bound on what may wait for them."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from jumok_proto.errors import OverloadedError
from jumok_serve.engine.admission import RETRY_AFTER_S

Result = TypeVar("Result")


class Workers:
    """Threads that take jobs in their order; one that is cancelled while it waits is forgotten at once.

    Args:
        done: what is done to requests, for the error and the threads' names.
        threads: how many there are.
        most: jobs that run or wait.
    """

    def __init__(self, done: str, *, threads: int, most: int) -> None:
        self._done = done
        self._most = most
        self._most_running = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=done)
        self._changing = threading.Lock()
        self._waiting: dict[Future[Any], Callable[[], Any]] = {}
        self._running = 0
        self._unfinished = 0

    def start(self, work: Callable[[], Result]) -> "Future[Result]":
        """Start a job, or let it wait.

        Raises:
            OverloadedError: too many run and wait already.
        """
        job: Future[Result] = Future()
        with self._changing:
            if self._unfinished >= self._most:
                raise OverloadedError(f"{self._most} requests wait to be {self._done}", retry_after_s=RETRY_AFTER_S)
            self._unfinished += 1
            self._waiting[job] = work
            if self._running < self._most_running:
                self._running += 1
                self._threads.submit(self._run)
        job.add_done_callback(self._forget)
        return job

    def _run(self) -> None:
        """Do what waits until nothing does."""
        while True:
            with self._changing:
                if not self._waiting:
                    self._running -= 1
                    return
                job = next(iter(self._waiting))
                work = self._waiting.pop(job)
            if job.set_running_or_notify_cancel():
                try:
                    job.set_result(work())
                except BaseException as error:
                    job.set_exception(error)
            del job, work  # not to be kept while the thread waits

    def _forget(self, job: "Future[Any]") -> None:
        with self._changing:
            self._unfinished -= 1
            self._waiting.pop(job, None)
