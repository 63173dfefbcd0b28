"""Policy of retries: the server of each attempt, and the wait before it; `JumokError.retryable`: which errors."""

import math
import random
from collections.abc import Callable

from jumok._errors import UnreadCallError
from jumok_proto.errors import CallCancelledError, JumokError, UnavailableError

MAX_ATTEMPTS = 5
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
FIRST_REST_S = 1.0
LONGEST_REST_S = 30.0
TRIAL_S = 5.0
"""Time in which the first call to a server that rested shows if it is back."""


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
