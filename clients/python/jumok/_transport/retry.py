"""Where a call goes, and when it is made again: no waiting and no calling, which the two clients do."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from jumok_proto.errors import JumokError, UnavailableError

MAX_ATTEMPTS = 5
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
FIRST_REST_S = 1.0
LONGEST_REST_S = 30.0


class Endpoints:
    """The servers of a client: each call goes to the next, past those that could not be reached a moment ago.

    One that failed rests for a second, and twice as long each further time in a row. Calls that fail while it rests,
    such as all those that were lost with it, are of the same time.

    Args:
        count: how many there are.
        first: the number of the one that the first call goes to; None: any, so that many clients do not begin alike.
    """

    def __init__(self, count: int, *, first: int | None = None) -> None:
        self._next = random.randrange(count) if first is None else first  # noqa: S311 - no secret
        self._failures = [0] * count
        self._rests_until = [0.0] * count

    def pick(self, now: float) -> int:
        """The number of the server to call at this monotonic time; where all rest, the one that will be ready first."""
        count = len(self._failures)
        order = [(self._next + step) % count for step in range(count)]
        picked = min(order, key=lambda number: max(self._rests_until[number] - now, 0.0))
        self._next = (picked + 1) % count
        return picked

    def any_ready(self, now: float) -> bool:
        """Whether one does not rest."""
        return min(self._rests_until) <= now

    def failed(self, number: int, now: float) -> None:
        """Let one rest that could not be reached."""
        if now < self._rests_until[number]:
            return
        self._rests_until[number] = now + min(FIRST_REST_S * 2 ** min(self._failures[number], 10), LONGEST_REST_S)
        self._failures[number] += 1

    def succeeded(self, number: int) -> None:
        """Take note that one has answered."""
        self._failures[number] = 0
        self._rests_until[number] = 0.0


@dataclass
class Backoff:
    """How long to wait before trying again: about twice as long each time, and as long as a server says at least.

    Half of it is left to chance, so that those who were refused together do not come back together.
    """

    chance: Callable[[], float] = random.random
    _times: int = field(default=0, init=False)

    def delay_s(self, retry_after_s: float | None) -> float:
        """Seconds to wait now."""
        ceiling = min(FIRST_DELAY_S * 2.0**self._times, LONGEST_DELAY_S)
        self._times = min(self._times + 1, 16)
        own = ceiling * (0.5 + 0.5 * self.chance())
        return own if retry_after_s is None else max(own, retry_after_s * (1 + 0.25 * self.chance()))

    def reset(self) -> None:
        """Begin anew, as something has succeeded."""
        self._times = 0


class Attempts:
    """The attempts at one call.

    Args:
        endpoints: of the client.
        limit_s: seconds that all of them may take.
        max_attempts: how many there may be.
        now: the monotonic time.
    """

    def __init__(self, endpoints: Endpoints, limit_s: float, max_attempts: int, now: float) -> None:
        self._endpoints = endpoints
        self._deadline = now + limit_s
        self._left = max_attempts
        self._backoff = Backoff()
        self.endpoint = 0
        """Of the present attempt."""

    def begin(self, now: float) -> float:
        """Begin another; gives the seconds that it may take."""
        self.endpoint = self._endpoints.pick(now)
        self._left -= 1
        return max(self._deadline - now, 0.001)

    def succeeded(self) -> None:
        """Take note that the present attempt was answered."""
        self._endpoints.succeeded(self.endpoint)

    def failed(self, error: JumokError, now: float) -> float:
        """Seconds to wait before the next attempt; raises the error where there is to be none."""
        elsewhere = isinstance(error, UnavailableError)
        if elsewhere:
            self._endpoints.failed(self.endpoint, now)
        if not error.retryable or self._left <= 0:
            raise error
        ready = elsewhere and self._endpoints.any_ready(now)
        delay_s = 0.0 if ready else self._backoff.delay_s(error.retry_after_s)
        if now + delay_s >= self._deadline:
            raise error
        return delay_s
