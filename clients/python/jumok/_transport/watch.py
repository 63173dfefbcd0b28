"""Policy of the watch over calls: the silent servers to ask for their health, and those to leave."""

import time
from collections.abc import Callable
from dataclasses import dataclass

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
