"""The watch over calls of tasks: a server that stays silent is asked for its health, and left if it does not answer.

A busy server answers a health check at once, so its calls stay where they are; a stopped one does not, nor does one
behind a network that drops packets. Only clients of several servers watch: others have no server to go to.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio

from jumok._concurrency import AsyncAlarm, AsyncBackground, AsyncCondition, async_cancellation
from jumok._transport.channel import HEALTH_CHECK
from jumok._transport.servers import Servers
from jumok._transport.watch import PATIENCE_S, PATIENCE_SHARE, Silence, Watched
from jumok_proto.errors import CallCancelledError


class AsyncWatch:
    """The watch over calls of tasks.

    Args:
        channels: channel to each server.
        servers: servers of the client.
        is_closed: returns True after the end of the connection.
    """

    def __init__(self, channels: Sequence[grpc.aio.Channel], servers: Servers, is_closed: Callable[[], bool]) -> None:
        self._checks = [channel.unary_unary(HEALTH_CHECK, None, None) for channel in channels]
        self._addresses = servers.addresses
        self._is_closed = is_closed
        self._silence = Silence(servers.endpoints, len(servers.addresses))
        self._changes = AsyncCondition()
        self._alarm = AsyncAlarm(self._turn)

    @contextmanager
    def over(self, endpoint: int, cancel: Callable[[], object], timeout_s: float) -> Iterator[Watched]:
        """Watch over a call until the end of the block, and cancel it there if it has not ended."""
        patience_s = min(PATIENCE_S, PATIENCE_SHARE * timeout_s)
        watched = Watched(endpoint, self._addresses[endpoint], patience_s, time.monotonic(), cancel)
        with self._changes:
            self._silence.calls.add(watched)
        try:
            if len(self._addresses) > 1:
                self._alarm.set(patience_s)
            with async_cancellation(lambda: watched.silent or self._is_closed()):
                yield watched
        except (grpc.RpcError, grpc.FutureCancelledError, CallCancelledError):
            if (error := watched.error()) is not None:
                raise error from None
            raise
        finally:
            with self._changes:
                self._silence.calls.discard(watched)
            cancel()

    async def answer(self, method: Any, endpoint: int, request: Any, timeout_s: float) -> Any:
        """Call a method and wait; raise UnavailableError if the server is silent."""
        if len(self._addresses) == 1:
            with async_cancellation(self._is_closed):
                return await method(request, timeout=timeout_s)
        call = method(request, timeout=timeout_s)
        with self.over(endpoint, call.cancel, timeout_s):
            return await call

    def _turn(self) -> None:
        now = time.monotonic()
        with self._changes:
            checks, silent, wakes_at = self._silence.turn(now)
        for call in silent:
            call.cancel()
        for endpoint in checks:
            AsyncBackground(self._check, endpoint)
        if wakes_at is not None:
            self._alarm.set(wakes_at - now)

    async def _check(self, endpoint: int) -> None:
        code: grpc.StatusCode | None = None
        try:
            await self._checks[endpoint](b"", timeout=2 * PATIENCE_S)
        except grpc.RpcError as error:  # servers need not have this service: another status is an answer too
            code = error.code()
        except ValueError:  # the client was closed, and its calls have ended
            pass
        finally:
            with self._changes:
                answered = code is not grpc.StatusCode.DEADLINE_EXCEEDED
                self._silence.checked(endpoint, time.monotonic(), answered=answered)
