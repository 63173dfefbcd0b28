"""Listening socket that bounds its connections, in all and of one address."""

import socket
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from jumok_serve.service.address import account_of, peer_name
from jumok_serve.service.limits import ServiceLimits


class BoundedListener(socket.socket):
    """Listening socket that closes connections beyond the most as it accepts them.

    Connections count from here to the close of their sockets: asyncio shows those of TLS after the handshake only.

    Args:
        bound: socket that is bound to an address; not usable afterwards.

    Attributes:
        open_connections: number of open connections.
    """

    def __init__(self, bound: socket.socket, limits: ServiceLimits) -> None:
        super().__init__(fileno=bound.detach())
        self._limits = limits
        self._of_account = Counter[str]()
        self.open_connections = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            ConnectionAbortedError: one connection too many, which is closed.
        """
        accepted, address = super().accept()
        account = "" if self.family == socket.AF_UNIX else account_of(peer_name(*address[:2]))
        too_many = bool(account) and self._of_account[account] >= self._limits.max_connections_of_address
        if too_many or self.open_connections >= self._limits.max_connections:
            accepted.close()
            raise ConnectionAbortedError
        self.open_connections += 1
        self._of_account[account] += 1
        return _Counted(accepted, lambda: self._closed_of(account)), address

    def _closed_of(self, account: str) -> None:
        self.open_connections -= 1
        self._of_account[account] -= 1
        if not self._of_account[account]:
            del self._of_account[account]


class _Counted(socket.socket):
    """Socket that is uncounted as it is closed."""

    def __init__(self, accepted: socket.socket, uncount: Callable[[], None]) -> None:
        super().__init__(fileno=accepted.detach())
        self._uncount = weakref.finalize(self, uncount)

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self._uncount()
