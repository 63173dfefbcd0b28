"""Policy of calls: the server of each attempt, the wait before it, and the silent servers to leave.

`JumokError.retryable` says which errors can be retried.
"""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from jumok._errors import UnreadCallError
from jumok_proto.errors import CallCancelledError, JumokError, UnavailableError

MAX_ATTEMPTS = 5
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
FIRST_REST_S = 1.0
LONGEST_REST_S = 30.0
TRIAL_S = 5.0
"""Time in which the first call to a server that rested shows if it is back."""
PATIENCE_S = 2.0
"""Longest silence of a server before a health check, and longest wait for the answer."""
PATIENCE_SHARE = 0.25
"""The same as a share of the time that a call has."""
LEAST_TURN_S = 0.02


class Endpoints:
    """The servers of a client, called in turn; servers that are unreachable or silent rest.

    The rest is one second, and doubles with each failure in a row. Failures during the rest, such as of all running
    calls, count once. After the rest one call tries the server, while others go elsewhere.

    Args:
        count: number of servers.
        first: number of the first server to call; None: random, so that clients spread over the servers.
    """

    def __init__(self, count: int, *, first: int | None = None) -> None:
        self._next = random.randrange(count) if first is None else first  # noqa: S311 - no secret
        self._failures = [0] * count
        self._rests_until = [0.0] * count
        self._tried_until = [0.0] * count

    def pick(self, now: float) -> int:
        """Return the next server's number, or the first whose rest ends."""
        count = len(self._failures)
        order = [(self._next + step) % count for step in range(count)]
        picked = min(order, key=lambda number: max(self._ready_at(number) - now, 0.0))
        self._next = (picked + 1) % count
        if self._failures[picked]:
            self._tried_until[picked] = now + TRIAL_S
        return picked

    def any_ready(self, now: float) -> bool:
        """True if a server can be called."""
        return any(self._ready_at(number) <= now for number in range(len(self._failures)))

    def other_ready(self, number: int, now: float) -> bool:
        """True if another server than this one can be called."""
        return any(self._ready_at(other) <= now for other in range(len(self._failures)) if other != number)

    def failed(self, number: int, now: float) -> None:
        """Rest a server that could not be reached, or did not answer."""
        self._tried_until[number] = 0.0
        if now < self._rests_until[number]:
            return
        self._rests_until[number] = now + min(FIRST_REST_S * 2 ** min(self._failures[number], 10), LONGEST_REST_S)
        self._failures[number] += 1

    def succeeded(self, number: int) -> None:
        """Record an answer of a server."""
        self._failures[number] = 0
        self._rests_until[number] = self._tried_until[number] = 0.0

    def ended(self, number: int, error: JumokError, now: float) -> bool:
        """Record the error of a call; returns True if another server can be called at once."""
        if isinstance(error, UnavailableError):
            self.failed(number, now)
            return self.any_ready(now)
        if error.reason:  # a server wrote the error
            self.succeeded(number)
        return False

    def _ready_at(self, number: int) -> float:
        return max(self._rests_until[number], self._tried_until[number])


MIN_TIMEOUT_S = 0.001
"""Timeout of an attempt for which no time is left."""


class Attempts:
    """The attempts of one call, or the calls of one corpus.

    Between two attempts is an exponential backoff with jitter, no shorter than the server says. Half of each wait is
    random, so that clients that were refused together do not return together.

    Args:
        endpoints: servers of the client.
        limit_s: seconds for all attempts together.
        max_attempts: largest number of attempts before an answer, those aside that the server did not read.
        now: monotonic time.
        uniform: gives random numbers from 0 to 1.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        limit_s: float,
        max_attempts: int,
        now: float,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._endpoints = endpoints
        self._deadline = now + limit_s
        self._left: float = max_attempts
        self._uniform = uniform
        self._delays = 0
        self.endpoint = 0
        """Number of the server of the current attempt."""

    def begin(self, now: float) -> float:
        """Begin an attempt and give its timeout in seconds."""
        self.endpoint = self._endpoints.pick(now)
        self._left -= 1
        return max(self._deadline - now, MIN_TIMEOUT_S)

    def succeeded(self) -> None:
        """Record that the current attempt was answered; from now on attempts do not count."""
        self._endpoints.succeeded(self.endpoint)
        self._left = math.inf
        self._delays = 0

    def failed(self, error: JumokError, now: float, *, closed: bool = False) -> float | None:
        """Return the seconds until the next attempt; None after the last.

        Calls that the server did not read are repeated until the time is over, and are no attempts; so does gRPC's
        transparent retry (gRFC A6). Others that were cancelled are repeated as attempts.

        Args:
            closed: True if the client was closed, which cancels calls too.
        """
        other_ready = self._endpoints.ended(self.endpoint, error, now)
        cancelled = isinstance(error, CallCancelledError) and not closed
        self._left += cancelled and isinstance(error, UnreadCallError)
        if not (error.retryable or cancelled) or self._left <= 0:
            return None
        delay_s = 0.0 if other_ready else self._delay_s(error.retry_after_s)
        return delay_s if now + delay_s < self._deadline else None

    def _delay_s(self, retry_after_s: float | None) -> float:
        """Give the seconds to wait, and double the next wait."""
        ceiling = min(FIRST_DELAY_S * 2.0**self._delays, LONGEST_DELAY_S)
        self._delays = min(self._delays + 1, 16)
        own = ceiling * (0.5 + 0.5 * self._uniform())
        return own if retry_after_s is None else max(own, retry_after_s * (1 + 0.25 * self._uniform()))


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
