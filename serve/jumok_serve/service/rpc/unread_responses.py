"""Responses that callers have not read yet: their bytes are bounded, and their connections closed after a while."""

import asyncio
from collections.abc import Callable

from jumok_proto.errors import OverloadedError
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.byte_budget import ByteBudget

COPIES = 3
"""Copies of a response in memory: the message, its bytes, and those that the transport has taken."""
CALL_BYTES = 24 * 1024
"""Memory of a call besides its messages."""


class UnreadResponses:
    """Bounds on the bytes of responses that callers have not read; used in the event loop only.

    A client of gRPC need not read what it asked for: HTTP/2 lets it refuse the bytes of each call for ever.

    Args:
        close_connection: closes the connection of a peer, ``ipv4:127.0.0.1:50051``, which does not read.
        checks: True for those of health checks: once there is no room, the connection of the oldest is closed at once.
    """

    def __init__(
        self,
        limits: ServiceLimits,
        close_connection: Callable[[str], None] = lambda _: None,
        *,
        checks: bool = False,
    ) -> None:
        self.limits = limits
        self.in_time = COPIES * limits.max_message_bytes
        """Bytes that a caller has ``upload_s`` for."""
        most = limits.max_watches * CALL_BYTES
        if not checks:
            most = max(most, limits.max_open_bytes, 2 * self.in_time)
        self.budget = ByteBudget(most, most // 2)
        self.held: dict[UnreadResponse, None] = {}
        """Responses that are not read, oldest first."""
        self.close_connection = close_connection
        self.checks = checks


class UnreadResponse:
    """A response from the time it is made until its caller has read it.

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

    def hold(self, size: int) -> None:
        """Count the bytes of a message, in place of those of another.

        Raises:
            OverloadedError: other responses that the caller has not read leave no room.
        """
        bounds = self._bounds
        self.close()
        counted = CALL_BYTES + COPIES * size
        if not bounds.budget.take_or_exceed(self.caller, counted):
            if bounds.checks:
                bounds.close_connection(next(other.peer for other in bounds.held if other.caller == self.caller))
            raise OverloadedError(
                "too many bytes of responses to this caller are not read yet: read them, or make fewer calls at once",
                retry_after_s=RETRY_AFTER_S,
            )
        self._counted = counted
        bounds.held[self] = None
        # A slow client reads all that it asked for in turn, as fast as requests have to arrive.
        turns = 1 + bounds.budget.held_by(self.caller) // bounds.in_time
        self._close_after(turns * bounds.limits.upload_s)

    @property
    def counted(self) -> bool:
        """True while bytes are counted."""
        return self._counted > 0

    def be_patient(self) -> None:
        """Let the caller take the message of a stream at its own pace, as long as it takes some."""
        self._close_after(self._bounds.limits.silence_s)

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
