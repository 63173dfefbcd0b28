"""Watch over calls: a server that stays silent is asked for its health, and left if it does not answer.

A busy server answers a health check at once, so its calls stay where they are; a stopped one does not, nor does one
behind a network that drops packets. Only clients of several servers watch: others have no server to go to.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from jumok._transport.channel import HEALTH_CHECK
from jumok._transport.closing import cancelled_at_exit
from jumok._transport.retry import Endpoints
from jumok_proto.errors import UnavailableError

PATIENCE_S = 2.0
"""Longest silence of a server before a health check, and longest wait for the answer."""
PATIENCE_SHARE = 0.25
"""The same as a share of the time that a call has."""
LEAST_TURN_S = 0.02


@dataclass(eq=False)
class Watched:
    """A call that waits for an answer.

    Attributes:
        endpoint: number of its server.
        server: address of its server.
        patience_s: longest silence.
        since: time at which it began or was last answered.
        cancel: ends the call.
        silent: True if it was cancelled because its server is silent.
    """

    endpoint: int
    server: str
    patience_s: float
    since: float
    cancel: Callable[[], object]
    silent: bool = False

    def heard(self) -> None:
        """Record an answer."""
        self.since = time.monotonic()

    def error(self) -> UnavailableError | None:
        """Give the error of a call whose server is silent."""
        return UnavailableError(f"the server at {self.server} does not answer") if self.silent else None


class Silence:
    """Policy of the watch: the servers to check, and the calls to end.

    Args:
        endpoints: servers of the client.
        count: number of servers.
    """

    def __init__(self, endpoints: Endpoints, count: int) -> None:
        self.calls: set[Watched] = set()
        self._endpoints = endpoints
        self._heard = [-float("inf")] * count
        self._asked: list[float | None] = [None] * count

    def turn(self, now: float) -> tuple[list[int], list[Watched], float | None]:
        """Judge all calls.

        Returns:
            The servers to check; the calls to end; the time of the next turn, None without calls.
        """
        checks: list[int] = []
        silent: list[Watched] = []
        times: list[float] = []
        for call in self.calls:
            late = max(call.since, self._heard[call.endpoint]) + call.patience_s
            asked = self._asked[call.endpoint]
            if now < late:
                times.append(late)
                continue
            if asked is None:
                self._asked[call.endpoint] = asked = now
                checks.append(call.endpoint)
            if now < asked + call.patience_s:
                times.append(asked + call.patience_s)
            elif self._endpoints.other_ready(call.endpoint, now):
                call.silent = True
                silent.append(call)
            else:
                times.append(now + call.patience_s)
        self.calls.difference_update(silent)
        return checks, silent, max(min(times), now + LEAST_TURN_S) if times else None

    def checked(self, endpoint: int, now: float, *, answered: bool) -> None:
        """Record the end of a health check."""
        self._asked[endpoint] = None
        if answered:
            self._heard[endpoint] = now


def _patience_s(timeout_s: float) -> float:
    return min(PATIENCE_S, PATIENCE_SHARE * timeout_s)


def _is_answer(code: grpc.StatusCode | None) -> bool:
    """True if a health check was answered: any status counts, as servers need not have this service."""
    return code is not grpc.StatusCode.DEADLINE_EXCEEDED


class Watch:
    """The watch over calls of threads; its own thread runs while there are calls.

    Args:
        channels: channel to each server.
        servers: address of each server.
        endpoints: servers of the client.
    """

    def __init__(self, channels: Sequence[grpc.Channel], servers: Sequence[str], endpoints: Endpoints) -> None:
        self._checks = [channel.unary_unary(HEALTH_CHECK, None, None) for channel in channels]
        self._servers = servers
        self._silence = Silence(endpoints, len(servers))
        self._changed = threading.Condition()
        self._wakes_at: float | None = None  # None: no thread

    @contextmanager
    def over(self, endpoint: int, cancel: Callable[[], object], timeout_s: float) -> Iterator[Watched]:
        """Watch over a call, which ``cancel`` ends, until the end of the block."""
        now = time.monotonic()
        watched = Watched(endpoint, self._servers[endpoint], _patience_s(timeout_s), now, cancel)
        if len(self._servers) == 1:
            yield watched
            return
        with self._changed:
            self._silence.calls.add(watched)
            if self._wakes_at is None:
                threading.Thread(target=self._run, name="jumok-watch", daemon=True).start()
            elif now + watched.patience_s < self._wakes_at:
                self._changed.notify()
            self._wakes_at = min(now + watched.patience_s, self._wakes_at or float("inf"))
        try:
            yield watched
        except (grpc.RpcError, grpc.FutureCancelledError):
            if (error := watched.error()) is not None:
                raise error from None
            raise
        finally:
            with self._changed:
                self._silence.calls.discard(watched)

    def answer(self, method: Any, endpoint: int, request: Any, timeout_s: float) -> Any:
        """Call a method and wait; raise UnavailableError if the server is silent."""
        if len(self._servers) == 1:
            return method(request, timeout=timeout_s)
        call = method.future(request, timeout=timeout_s)
        with cancelled_at_exit(call), self.over(endpoint, call.cancel, timeout_s):
            return call.result()

    def _run(self) -> None:
        while True:
            with self._changed:
                checks, silent, self._wakes_at = self._silence.turn(time.monotonic())
                if silent:
                    self._wakes_at = time.monotonic()  # this thread goes on, so no other starts
                elif self._wakes_at is None:
                    return
            for call in silent:
                call.cancel()
            for endpoint in checks:
                self._check(endpoint)
            with self._changed:
                self._changed.wait(max(self._wakes_at - time.monotonic(), 0.0))

    def _check(self, endpoint: int) -> None:
        def done(call: Any) -> None:
            with self._changed:
                self._silence.checked(endpoint, time.monotonic(), answered=_is_answer(call.code()))

        try:
            self._checks[endpoint].future(b"", timeout=2 * PATIENCE_S).add_done_callback(done)
        except ValueError:  # the client was closed, and its calls have ended
            with self._changed:
                self._silence.checked(endpoint, time.monotonic(), answered=True)


class AsyncWatch:
    """The watch over calls of tasks; arguments are those of ``Watch``."""

    def __init__(self, channels: Sequence[grpc.aio.Channel], servers: Sequence[str], endpoints: Endpoints) -> None:
        self._checks = [channel.unary_unary(HEALTH_CHECK, None, None) for channel in channels]
        self._servers = servers
        self._silence = Silence(endpoints, len(servers))
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def over(self, endpoint: int, cancel: Callable[[], object], timeout_s: float) -> Iterator[Watched]:
        """Watch over a call, which ``cancel`` ends, until the end of the block."""
        now = time.monotonic()
        watched = Watched(endpoint, self._servers[endpoint], _patience_s(timeout_s), now, cancel)
        if len(self._servers) == 1:
            yield watched
            return
        self._silence.calls.add(watched)
        self._wake_in(watched.patience_s)
        try:
            yield watched
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if (error := watched.error()) is not None and task is not None and not task.cancelling():
                raise error from None
            raise
        finally:
            self._silence.calls.discard(watched)

    async def answer(self, method: Any, endpoint: int, request: Any, timeout_s: float) -> Any:
        """Call a method and wait; raise UnavailableError if the server is silent."""
        call = method(request, timeout=timeout_s)
        with self.over(endpoint, call.cancel, timeout_s):
            return await call

    def _wake_in(self, delay_s: float) -> None:
        """Take a turn after this time, or before."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + delay_s:
                return
            self._timer.cancel()
        self._timer = loop.call_later(delay_s, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = time.monotonic()
        checks, silent, wakes_at = self._silence.turn(now)
        for call in silent:
            call.cancel()
        for endpoint in checks:
            task = asyncio.ensure_future(self._check(endpoint))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if wakes_at is not None:
            self._wake_in(wakes_at - now)

    async def _check(self, endpoint: int) -> None:
        code: grpc.StatusCode | None = None
        try:
            await self._checks[endpoint](b"", timeout=2 * PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            code = error.code()
        finally:
            self._silence.checked(endpoint, time.monotonic(), answered=_is_answer(code))
