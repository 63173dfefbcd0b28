"""Callers and their shares: who an address is, work in an engine, rates, and open calls."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from itertools import islice
from typing import Any, Protocol
from urllib.parse import unquote

from jumok_proto.errors import OverloadedError, RateLimitedError

RETRY_AFTER_S = 1.0
"""Seconds that a refused caller should wait."""

PRESENCE_S = 5.0
"""Seconds after its last sentence for which a caller counts as present."""

LIGHT_WORK = 1152
"""Most unfinished work of a light caller, in row steps: 8 sentences of 10 tokens at beam size 4.

With four times as much, four calls of 8 sentences were light, and kept a sentence of another caller waiting in their
steps: its p99 was 119 ms beside plain text and 84 ms beside XML with 3,500 attributes a text; now 46 and 55 ms, and the
others had 7 % less (two cores, 15 ms alone, November 2026)."""


HEAVY_S = 1.0
"""Seconds for which a caller that had much unfinished work still counts as heavy.

Its next request may follow at once, and would slow a sentence of another caller that shares a batch meanwhile: p99
beside XML with 3,500 attributes a text fell from 165 to 101 ms (two cores, 31 ms alone, November 2026)."""


class Work(Protocol):
    """A sentence, as far as its caller's share goes."""

    @property
    def caller(self) -> str:
        """Key of the caller."""

    @property
    def work(self) -> int:
        """Estimated work, in row steps."""

    @property
    def used_work(self) -> int:
        """Work that it took so far."""

    @property
    def future(self) -> Any:
        """Calls back when the sentence is done."""


class Callers:
    """Unfinished work and last arrival of each caller.

    Futures report ends from any thread; all else happens under the scheduler's lock.

    Args:
        work_per_second: sustained rate of work of each caller, in row steps; None: no limit.
        work_burst: row steps at once after a pause; None: those of one second.
    """

    def __init__(self, work_per_second: float | None = None, work_burst: int | None = None) -> None:
        self._rate = None if work_per_second is None else RateLimiter(work_per_second, work_burst)
        self._unfinished: dict[str, int] = {}
        self._heavy: set[str] = set()
        self._lately_heavy: dict[str, float] = {}  # when they had less unfinished work, the latest last
        self._last_seen: dict[str, float] = {}  # the latest last
        self._ended: deque[tuple[str, int, int]] = deque()  # caller, estimated work and used work

    def charge(self, caller: str, work: int, now: float) -> None:
        """Count work against a caller's rate.

        Raises:
            RateLimitedError: the caller exceeds its rate.
        """
        if self._rate is not None and work:
            self._rate.charge(caller, now, "row steps", work)

    def arrived(self, sentences: Sequence[Work], now: float) -> None:
        """Add the work of sentences until their futures are done."""
        for sentence in sentences:
            self._add(sentence.caller, sentence.work, now)
            sentence.future.add_done_callback(_Report(self._ended, sentence))
        for caller in {sentence.caller for sentence in sentences}:
            self._last_seen.pop(caller, None)
            self._last_seen[caller] = now
        _forget(self._last_seen, now - PRESENCE_S)

    def settle(self, now: float) -> None:
        """Subtract the work of sentences that have ended, and correct the rates by what they used."""
        while self._ended:
            caller, work, used = self._ended.popleft()
            self._add(caller, -work, now)
            if self._rate is not None:
                self._rate.give_back(caller, work - used)
        if self._lately_heavy:
            _forget(self._lately_heavy, now - HEAVY_S)

    @property
    def any_heavy(self) -> bool:
        """True if a caller has much unfinished work, or had a short time ago."""
        return bool(self._heavy or self._lately_heavy)

    def several(self, now: float) -> bool:
        """True if more than one caller is present."""
        if len(self._unfinished) > 1:
            return True
        return len({*self._unfinished, *islice(self._recent(now), 2)}) > 1

    def contended(self, now: float) -> bool:
        """True if a caller is heavy, and one that is not is present."""
        if not self.any_heavy:
            return False
        if len(self._unfinished) > len(self._heavy) + sum(one in self._unfinished for one in self._lately_heavy):
            return True
        return any(self.is_light(caller) for caller in self._recent(now))

    def _recent(self, now: float) -> Iterator[str]:
        """Yield the callers of sentences that arrived a short time ago, the latest first."""
        for caller, seen in reversed(self._last_seen.items()):
            if now - seen > PRESENCE_S:
                return
            yield caller

    def is_light(self, caller: str) -> bool:
        """True if a caller is not heavy, and another one is."""
        return self.any_heavy and caller not in self._heavy and caller not in self._lately_heavy

    def _add(self, caller: str, work: int, now: float) -> None:
        left = self._unfinished.get(caller, 0) + work
        if left > 0:
            self._unfinished[caller] = left
        else:
            self._unfinished.pop(caller, None)
        if left > LIGHT_WORK:
            self._heavy.add(caller)
            self._lately_heavy.pop(caller, None)
        elif caller in self._heavy:
            self._heavy.remove(caller)
            self._lately_heavy[caller] = now


class _Report:
    """Callback of a sentence's future, which notes its end; a partial function would take four times the memory."""

    __slots__ = ("_ended", "_sentence")

    def __init__(self, ended: deque[tuple[str, int, int]], sentence: Work) -> None:
        self._ended, self._sentence = ended, sentence

    def __call__(self, _future: object) -> None:
        sentence = self._sentence
        self._ended.append((sentence.caller, sentence.work, sentence.used_work))


def _forget(times: dict[str, float], before: float) -> None:
    """Drop the callers with times before a moment; the latest are last."""
    while times:
        oldest = next(iter(times))
        if times[oldest] >= before:
            break
        del times[oldest]


MAX_CALLERS = 65_536
"""Callers that are remembered; full buckets are dropped first, as they equal new ones."""


class RateLimiter:
    """Token buckets by caller, by the generic cell rate algorithm.

    (ITU-T Recommendation I.371, annex A: the virtual scheduling algorithm.) Times are in seconds of any one clock.

    Args:
        per_second: sustained rate, in calls or another unit.
        burst: units at once after a pause; None: those of one second, at least 1.
    """

    def __init__(self, per_second: float, burst: int | None = None) -> None:
        self._per_second = per_second
        self._burst = burst or max(1, int(per_second))
        self._full_at: dict[str, float] = {}  # when each caller's bucket will be full again

    def take(self, caller: str, now: float, units: int = 1) -> float:
        """Take units and return 0, or return seconds until that is allowed.

        More units than the burst need a full bucket, and leave a debt.
        """
        full_at = max(self._full_at.get(caller, now), now)
        wait_s = full_at - now - (self._burst - min(units, self._burst)) / self._per_second
        if wait_s > 1e-9:  # less is rounding
            return wait_s
        self._full_at[caller] = full_at + units / self._per_second
        if len(self._full_at) > MAX_CALLERS:
            self._evict(now)
        return 0.0

    def charge(self, caller: str, now: float, what: str, units: int = 1) -> None:
        """Take units, which an error names by their plural.

        Raises:
            RateLimitedError: the caller exceeds the rate.
        """
        wait_s = self.take(caller, now, units)
        if wait_s > 0:
            raise RateLimitedError(
                f"more than {self._per_second:g} {what} per second; wait {wait_s:.3g} s", retry_after_s=wait_s
            )

    def give_back(self, caller: str, units: int) -> None:
        """Give units back that were not used, or take more if they are negative."""
        if caller in self._full_at:  # else the bucket is full, or forgotten
            self._full_at[caller] -= units / self._per_second

    def _evict(self, now: float) -> None:
        """Drop full buckets, and the oldest of the others beyond MAX_CALLERS."""
        self._full_at = {caller: full_at for caller, full_at in self._full_at.items() if full_at > now}
        for caller in list(self._full_at)[: max(0, len(self._full_at) - MAX_CALLERS)]:
            del self._full_at[caller]


class OpenCalls:
    """Open calls of one kind, bounded in all and by caller; used in the event loop only.

    Args:
        what: plural of the kind, for errors.
        most: open calls of all callers.
        most_of_caller: open calls of one caller.
    """

    def __init__(self, what: str, most: int, most_of_caller: int) -> None:
        self._what = what
        self._most = most
        self._most_of_caller = most_of_caller
        self._open = 0
        self._of_caller: Counter[str] = Counter()

    def open(self, caller: str) -> None:
        """Count a call.

        Raises:
            OverloadedError: too many calls are open.
        """
        if self._open >= self._most:
            raise self._too_many(self._most, "")
        if self._of_caller[caller] >= self._most_of_caller:
            raise self._too_many(self._most_of_caller, " of this caller")
        self._open += 1
        self._of_caller[caller] += 1

    def _too_many(self, most: int, of: str) -> OverloadedError:
        return OverloadedError(f"{most} {self._what}{of} are open: no room for another", retry_after_s=RETRY_AFTER_S)

    def close(self, caller: str) -> None:
        """Uncount a call."""
        self._open -= 1
        self._of_caller[caller] -= 1
        if not self._of_caller[caller]:
            del self._of_caller[caller]


def peer_name(host: str, port: int) -> str:
    """Return a peer's address in gRPC's notation, so that a caller has one account in all protocols."""
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    mapped = IPv6Address(host.partition("%")[0]).ipv4_mapped
    return f"ipv6:[{host}]:{port}" if mapped is None else f"ipv4:{mapped}:{port}"


def account_of(peer: str) -> str:
    """Return the party of an address in gRPC's notation."""
    return _network(peer.rpartition(":")[0])


@lru_cache(4096)
def _network(address: str) -> str:
    """Return an address without its port; of IPv6 the network of 64 bits, which one host may have all of."""
    kind, _, host = address.partition(":")
    if kind != "ipv6":
        return address
    try:
        full = ip_address(unquote(host).strip("[]").partition("%")[0])
    except ValueError:
        return address
    return f"ipv6:{full.packed[:8].hex()}"
