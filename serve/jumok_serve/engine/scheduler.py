"""The scheduler of an engine's replicas: `SchedulingPolicy` under one lock."""

import threading
import time
from collections.abc import Callable, Sequence

from jumok_proto.errors import UnavailableError
from jumok_serve.engine.capacity import EngineLimits, Occupancy
from jumok_serve.engine.request_queue import RETRY_AFTER_S, Totals
from jumok_serve.engine.scheduling_policy import SchedulingPolicy, Work
from jumok_serve.engine.sentence import Sentence
from jumok_serve.engine.statistics import EngineCounters, Load


class Scheduler:
    """Hands waiting sentences to replicas; calls may come from any thread.

    While a replica has failed, sentences wait for others. If there is no other, they wait until it gives up.
    """

    def __init__(self, limits: EngineLimits, replicas: int) -> None:
        self._policy = SchedulingPolicy(limits, replicas)
        self._lock = threading.RLock()
        self._idle: list[threading.Condition] = []  # of waiting replicas; the last went to sleep last
        self._closing = self._aborting = False
        self._closed = threading.Event()
        self.on_ready_change: Callable[[], None] = lambda: None
        """Called by replicas, in their threads, if `ready` may have changed; must not block."""

    @property
    def queue_counters(self) -> EngineCounters:
        """Counters of sentences abandoned in the queue."""
        return self._policy.counters

    def submit(self, sentences: Sequence[Sentence]) -> None:
        """Append sentences to the queue, all or none.

        Raises:
            InvalidArgumentError: they do not fit into an empty queue.
            OverloadedError: they do not fit now.
            RateLimitedError: the caller exceeds its rate.
            DeadlineExceededError: a deadline has passed, or would pass even if the queue drained as fast as it ever
                could.
            EngineFailedError: all replicas have failed and wait for a restart.
            UnavailableError: the scheduler is closed.
        """
        with self._lock:
            self._check_open()
            self._policy.admit(sentences, time.monotonic())
            self._wake_replicas()  # which wakes the next if it leaves sentences

    def check_room(self, sentences: int, caller: str) -> None:
        """Refuse this many sentences if `submit` would, before their tokens are known."""
        with self._lock:
            self._check_open()
            self._policy.check_room(Totals(sentences), caller, time.monotonic())

    def check_work(self, most: int) -> None:
        """Refuse a request that may take this many row steps, if `submit` would; takes no lock."""
        self._policy.check_work(most)

    def charge(self, caller: str, work: int) -> None:
        """Count work that the engine does not do against a caller's rate.

        Raises:
            RateLimitedError: the caller exceeds its rate.
        """
        with self._lock:
            self._policy.charge(caller, work, time.monotonic())

    def is_full(self, caller: str) -> bool:
        """True if the queue is nearly full for a caller; takes no lock."""
        return self._policy.is_full(caller) and not self._closing and self._policy.ready

    def is_crowded(self, caller: str) -> bool:
        """True if less than 1 / `RESERVE_SHARE` of the queue is free for a caller; takes no lock."""
        return self._policy.is_crowded(caller) and not self._closing

    @property
    def is_quiet(self) -> bool:
        """True if no sentence waits, and the scheduler is open: replicas go on as they are; takes no lock."""
        return not (self._policy.queue or self._closing)

    @property
    def ready(self) -> bool:
        """True unless all replicas have failed and wait for a restart."""
        with self._lock:
            return self._policy.ready

    def load(self) -> Load:
        """Return waiting and running work."""
        with self._lock:
            return self._policy.load()

    def next_work(self, replica: int, occupied: Occupancy, ahead: Sequence[Sentence] = ()) -> Work | None:
        """Return what a replica does next; blocks while it decodes nothing and there is nothing to do.

        A few sentences take almost as long to encode as several, and with beams only a few fit at once: therefore some
        are encoded ahead, at most 1 / `AHEAD_SHARE` of the queue for all replicas, in the order of arrival, and none if
        some replica has capacity for the first. While some of them wait, a replica takes only light sentences.

        Args:
            replica: number of the replica, from 0.
            occupied: sentences that it decodes; those that join are added.
            ahead: sentences that it has encoded ahead, in the order of arrival.

        Returns:
            Sentences in the order of arrival, maybe none if the replica decodes others. None: the scheduler is closed,
            and nothing is left to do.

        Raises:
            UnavailableError: the scheduler was closed without drain.
        """
        with self._lock:
            decoding = occupied.busy
            work = self._policy.next_work(replica, occupied, ahead, time.monotonic())
            self._wake_replicas()
            while not (work.joins or decoding or self._is_over(ahead)):
                self._wait()
                work = self._policy.next_work(replica, occupied, ahead, time.monotonic())
                if work.joins or self._is_over(ahead):  # otherwise idle replicas would wake each other forever
                    self._wake_replicas()
            if decoding or ahead:
                self._check_not_aborting()
            return work if work.joins or decoding else None

    def set_aside(self, replica: int) -> None:
        """Give no more sentences to a failed replica."""
        with self._lock:
            self._policy.set_aside(replica)
            self._wake_all()

    def give_up(self, replica: int, wait_s: float) -> list[Sentence]:
        """Note that a failed replica restarts after `wait_s`.

        Returns:
            All waiting sentences, if no other replica can take them.
        """
        with self._lock:
            return self._policy.give_up(replica, time.monotonic() + wait_s)

    def restore(self, replica: int) -> None:
        """Give sentences to a recovered replica again."""
        with self._lock:
            self._policy.restore(replica)

    def wait_for_close(self, timeout_s: float) -> bool:
        """Wait; True if the scheduler was closed in time."""
        return self._closed.wait(timeout_s)

    def stop(self, *, drain: bool) -> list[Sentence]:
        """Accept no more sentences; without `drain` return all waiting ones."""
        with self._lock:
            self._closing = True
            self._closed.set()
            self._wake_all()
            if drain:
                return []
            self._aborting = True
            return self._policy.queue.clear()

    def _is_over(self, ahead: Sequence[Sentence]) -> bool:
        """True if an idle replica has nothing to wait for."""
        return self._aborting if ahead else self._closing and not self._policy.queue

    def _check_open(self) -> None:
        if self._closing:
            raise UnavailableError("the model is being stopped", retry_after_s=RETRY_AFTER_S)

    def _check_not_aborting(self) -> None:
        if self._aborting:
            raise UnavailableError("the model was stopped", retry_after_s=RETRY_AFTER_S)

    def _wait(self) -> None:
        """Wait until the calling replica is woken."""
        woken = threading.Condition(self._lock)
        self._idle.append(woken)
        try:
            woken.wait()
        except BaseException:  # else a later wake-up would be spent on this entry
            if woken in self._idle:
                self._idle.remove(woken)
            raise

    def _wake_replicas(self) -> None:
        """Wake one idle replica for the queue; all for encoded sentences.

        At the end of a drain all wake too. The replica that went to sleep last wakes first: its core's caches still
        have what the next sentence needs. One sentence after the other took 5 % less processor time so, with a model of
        12 MiB and two replicas (2026-11-27).
        """
        if self._policy.has_ahead or (self._closing and not self._policy.queue):
            self._wake_all()
        elif self._policy.queue and self._idle:
            self._idle.pop().notify()

    def _wake_all(self) -> None:
        for woken in self._idle:  # in this order: those that find nothing go to sleep again in it
            woken.notify()
        self._idle.clear()
