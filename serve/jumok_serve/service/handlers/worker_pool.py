"""Thread pool with a bounded queue that callers share by work."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jumok_proto.errors import OverloadedError
from jumok_serve.engine.admission import RETRY_AFTER_S

Result = TypeVar("Result")

MAX_FULL_CALLERS = 4
"""The bound on all jobs, as a multiple of the bound on those of one caller."""


@dataclass(slots=True, eq=False)
class _Line:
    """Queued jobs of a caller with their costs, and the sum of costs that threads have taken."""

    jobs: dict[Future[Any], tuple[Callable[[], Any], int]] = field(default_factory=dict)
    taken: int = 0


class WorkerPool:
    """Threads that run jobs; cancelled jobs leave the queue.

    Jobs of one caller run in order. Among several callers, the one with the least work so far is next; a caller that
    comes back begins where the others are (start-time fair queueing, Goyal, Vin and Cheng, 1996).

    Args:
        action: past participle of the action, for errors and names of threads.
        max_jobs: bound on the queued and running jobs of a caller; all callers together may have `MAX_FULL_CALLERS`
            times as many.
    """

    def __init__(self, action: str, *, threads: int, max_jobs: int) -> None:
        self._action = action
        self._max_jobs = max_jobs
        self._max_running = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=action)
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}  # of callers with queued jobs
        self._running = 0
        self._unfinished: dict[str, int] = {}

    def submit(self, work: Callable[[], Result], caller: str = "", cost: int = 1) -> "Future[Result]":
        """Start or queue a job.

        Args:
            caller: key of the caller.
            cost: work of the job, in any unit.

        Raises:
            OverloadedError: too many jobs, of this caller or of all.
        """
        job: Future[Result] = Future()
        with self._lock:
            mine, all_jobs = self._unfinished.get(caller, 0), sum(self._unfinished.values())
            if mine >= self._max_jobs or all_jobs >= MAX_FULL_CALLERS * self._max_jobs:
                raise OverloadedError(
                    f"{mine if mine >= self._max_jobs else all_jobs} requests wait to be {self._action}",
                    retry_after_s=RETRY_AFTER_S,
                )
            self._unfinished[caller] = mine + 1
            if caller not in self._lines:
                self._lines[caller] = _Line(taken=min((line.taken for line in self._lines.values()), default=0))
            self._lines[caller].jobs[job] = work, cost
            if self._running < self._max_running:
                self._running += 1
                self._threads.submit(self._run)
        job.add_done_callback(lambda job: self._forget(job, caller))
        return job

    def _run(self) -> None:
        while True:
            with self._lock:
                waiting = [caller for caller, line in self._lines.items() if line.jobs]
                if not waiting:
                    self._running -= 1
                    return
                line = self._lines[min(waiting, key=lambda caller: self._lines[caller].taken)]
                job = next(iter(line.jobs))
                work, cost = line.jobs.pop(job)
                line.taken += cost
            if job.set_running_or_notify_cancel():
                try:
                    job.set_result(work())
                except BaseException as error:
                    job.set_exception(error)
            del job, work  # free them while the thread waits

    def _forget(self, job: "Future[Any]", caller: str) -> None:
        with self._lock:
            self._lines[caller].jobs.pop(job, None)
            self._unfinished[caller] -= 1
            if not self._unfinished[caller]:
                del self._unfinished[caller], self._lines[caller]
