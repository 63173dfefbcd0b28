"""Thread pool with a bounded queue."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from jumok_proto.errors import OverloadedError
from jumok_serve.engine.admission import RETRY_AFTER_S

Result = TypeVar("Result")


class WorkerPool:
    """Threads that run jobs in order; cancelled jobs leave the queue.

    Args:
        action: past participle of the action, for errors and names of threads.
        max_jobs: bound on queued and running jobs together.
    """

    def __init__(self, action: str, *, threads: int, max_jobs: int) -> None:
        self._action = action
        self._max_jobs = max_jobs
        self._max_running = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=action)
        self._lock = threading.Lock()
        self._queue: dict[Future[Any], Callable[[], Any]] = {}
        self._running = 0
        self._unfinished = 0

    def submit(self, work: Callable[[], Result]) -> "Future[Result]":
        """Start or queue a job.

        Raises:
            OverloadedError: too many jobs.
        """
        job: Future[Result] = Future()
        with self._lock:
            if self._unfinished >= self._max_jobs:
                raise OverloadedError(
                    f"{self._max_jobs} requests wait to be {self._action}", retry_after_s=RETRY_AFTER_S
                )
            self._unfinished += 1
            self._queue[job] = work
            if self._running < self._max_running:
                self._running += 1
                self._threads.submit(self._run)
        job.add_done_callback(self._forget)
        return job

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._running -= 1
                    return
                job = next(iter(self._queue))
                work = self._queue.pop(job)
            if job.set_running_or_notify_cancel():
                try:
                    job.set_result(work())
                except BaseException as error:
                    job.set_exception(error)
            del job, work  # free them while the thread waits

    def _forget(self, job: "Future[Any]") -> None:
        with self._lock:
            self._unfinished -= 1
            self._queue.pop(job, None)
