"""Callers: their unfinished work, their rates, and which of them are present."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from jumok_proto.errors import RateLimitedError
from jumok_serve.engine.capacity import EngineLimits
from jumok_serve.engine.future import Future
from jumok_serve.engine.sentence import Decoded, Sentence
from jumok_serve.rate_limit import RateLimiter

PRESENCE_S = 5.0
"""Seconds after its last sentence for which a caller counts as present."""

LIGHT_WORK = 1152
"""Most unfinished work of a light caller, in row steps: 8 sentences of 10 tokens at beam size 4.

With four times as much, four calls of 8 sentences were light, and kept a sentence of another caller waiting in their
steps: its p99 was 119 ms beside plain text and 84 ms beside XML with 3,500 attributes a text; now 46 and 55 ms, and the
others had 7 % less (two cores, 15 ms alone, November 2026)."""


class Callers:
    """Unfinished work and last arrival of each caller.

    Futures report ends from any thread; all else happens under the scheduler's lock.
    """

    def __init__(self, limits: EngineLimits) -> None:
        rate = limits.work_per_second
        self._rate = None if rate is None else RateLimiter(rate, limits.work_burst)
        self._unfinished: dict[str, int] = {}
        self._heavy: set[str] = set()
        self._last_seen: dict[str, float] = {}  # the latest last
        self._ended: deque[tuple[str, int, int]] = deque()  # caller, estimated work and used work

    def charge(self, caller: str, work: int, now: float) -> None:
        """Count work against a caller's rate.

        Raises:
            RateLimitedError: the caller exceeds its rate.
        """
        if self._rate is None or not work:
            return
        wait_s = self._rate.take(caller, now, work)
        if wait_s > 0:
            raise RateLimitedError(
                f"more than {self._rate.per_second:g} row steps per second; wait {wait_s:.3g} s", retry_after_s=wait_s
            )

    def arrived(self, sentences: Sequence[Sentence], now: float) -> None:
        """Add the work of sentences until their futures are done."""
        for sentence in sentences:
            self._add(sentence.caller, sentence.work)
            sentence.future.add_done_callback(_Report(self._ended, sentence))
        for caller in {sentence.caller for sentence in sentences}:
            self._last_seen.pop(caller, None)
            self._last_seen[caller] = now
        while len(self._last_seen) > 1:
            oldest = next(iter(self._last_seen))
            if now - self._last_seen[oldest] <= PRESENCE_S:
                break
            del self._last_seen[oldest]

    def settle(self) -> None:
        """Subtract the work of sentences that have ended, and correct the rates by what they used."""
        while self._ended:
            caller, work, used = self._ended.popleft()
            self._add(caller, -work)
            if self._rate is not None:
                self._rate.give_back(caller, work - used)

    @property
    def any_heavy(self) -> bool:
        """True if a caller has much unfinished work."""
        return bool(self._heavy)

    def several(self, now: float) -> bool:
        """True if more than one caller is present."""
        if len(self._unfinished) > 1:
            return True
        return len({*self._unfinished, *islice(self._recent(now), 2)}) > 1

    def contended(self, now: float) -> bool:
        """True if a caller has much unfinished work, and one with little is present."""
        if not self._heavy:
            return False
        if len(self._unfinished) > len(self._heavy):
            return True
        return any(caller not in self._heavy for caller in self._recent(now))

    def _recent(self, now: float) -> Iterator[str]:
        """Yield the callers of sentences that arrived a short time ago, the latest first."""
        for caller, seen in reversed(self._last_seen.items()):
            if now - seen > PRESENCE_S:
                return
            yield caller

    def is_light(self, caller: str) -> bool:
        """True if a caller has little unfinished work, and another one much."""
        return bool(self._heavy) and caller not in self._heavy

    def _add(self, caller: str, work: int) -> None:
        left = self._unfinished.get(caller, 0) + work
        if left > 0:
            self._unfinished[caller] = left
        else:
            self._unfinished.pop(caller, None)
        if left > LIGHT_WORK:
            self._heavy.add(caller)
        else:
            self._heavy.discard(caller)


class _Report:
    """Callback of a sentence's future, which forgets it when it is done."""

    __slots__ = ("_ended", "_sentence")

    def __init__(self, ended: deque[tuple[str, int, int]], sentence: Sentence) -> None:
        self._ended, self._sentence = ended, sentence

    def __call__(self, _future: Future[Decoded]) -> None:
        sentence = self._sentence
        self._ended.append((sentence.caller, sentence.work, sentence.used_work))
