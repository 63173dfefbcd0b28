"""Responses that callers have not read yet: their bytes are bounded, and their connections closed after a while."""

import asyncio
from collections.abc import Callable

from jumok_proto.errors import OverloadedError
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.byte_budget import ByteBudget

COPIES = 3
"""Copies of a response in memory: the message, its bytes, and those that the transport has taken."""
CALL_BYTES = 8 * 1024
"""Bytes that a call counts at least: by default a caller may leave as many responses unread as it may have calls."""


class UnreadResponses:
    """Bounds on the bytes of responses that callers have not read; used in the event loop only.

    A client of gRPC need not read what it asked for: HTTP/2 lets it refuse the bytes of each call for ever.

    Args:
        close_connection: closes the connection of a peer, ``ipv4:127.0.0.1:50051``, which does not read.
        checks: True for those of health checks: once there is no room, the connection of the oldest is closed at once.

    Attributes:
        read_s: time in which a caller reads a response, in seconds. It may read all that it asked for in turn, as fast
            as requests have to arrive.
        held: responses that are not read, oldest first.
    """

    def __init__(
        self,
        limits: ServiceLimits,
        close_connection: Callable[[str], None] = lambda _: None,
        *,
        checks: bool = False,
    ) -> None:
        in_time = COPIES * limits.max_message_bytes
        most = CALL_BYTES * (limits.max_watches if checks else limits.max_calls)
        if not checks:
            most = max(most, limits.max_open_bytes, 2 * in_time)
        self.budget = ByteBudget(most, most // 2)
        self.read_s = limits.upload_s * (1 + self.budget.share // in_time)
        self.silence_s = limits.silence_s
        self.held: dict[UnreadResponse, None] = {}
        self.close_connection = close_connection
        self.checks = checks

    def evict(self) -> None:
        """Close the connection of the oldest response to the caller that holds most."""
        greediest = self.budget.greediest
        self.close_connection(next(response.peer for response in self.held if response.caller == greediest))


class UnreadResponse:
    """A response from the call for it until its caller has read it.

    Args:
        caller: key of the caller's share.
        peer: connection, which is closed if the response is not read in time; empty: it is not.
    """

    def __init__(self, bounds: UnreadResponses, caller: str, peer: str = "") -> None:
        self._bounds = bounds
        self.caller = caller
        self.peer = peer
        self._counted = 0
        self._late: asyncio.TimerHandle | None = None

    def hold(self, size: int = 0) -> None:
        """Count at least the bytes of a message, before it is made as many as a small one has.

        Raises:
            OverloadedError: other responses that the caller has not read leave no room.
        """
        bounds = self._bounds
        more = min(max(CALL_BYTES, COPIES * size), bounds.budget.share) - self._counted
        if more <= 0:
            return
        if not bounds.budget.take_or_exceed(self.caller, more, self._counted):
            if bounds.checks:
                bounds.evict()
            raise OverloadedError(
                "too many bytes of responses to this caller are not read yet: read them, or make fewer calls at once",
                retry_after_s=RETRY_AFTER_S,
            )
        self._counted += more
        bounds.held[self] = None

    def close_if_late(self) -> None:
        """Close the connection unless the response is read in time from now on."""
        self._close_after(self._bounds.read_s)

    def be_patient(self) -> None:
        """Let the caller take the message of a stream at its own pace, as long as it takes some."""
        self._close_after(self._bounds.silence_s)

    def _close_after(self, time_s: float) -> None:
        if self.peer:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(time_s, self._bounds.close_connection, self.peer)

    def close(self) -> None:
        """Count the response no longer: it was read, or its caller has left."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if self._counted:
            del self._bounds.held[self]
            self._bounds.budget.give_back(self.caller, self._counted)
            self._counted = 0
