"""Budget of the bytes of requests in flight, over all connections."""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PATIENCE_S = 1.0
"""Wait of a request for room, in seconds, after which the oldest slow arrival is given up for it."""
MIN_RATE = 16 * 1024
"""Bytes per second below which an arrival is slow."""


@dataclass(eq=False, kw_only=True)
class Arrival:
    """A request that holds bytes while it arrives.

    Attributes:
        timer: timeout of the reading, which expires at once if the request is given up.
        patience_s: shortest time, in seconds, over which the rate is looked at.
        busy: true while the sender waits for the server, and may be silent.
        waits: true while the request waits for room.
        received: bytes so far.
        given_up: true if others needed the room.
    """

    timer: asyncio.Timeout
    patience_s: float = PATIENCE_S
    busy: Callable[[], bool] = lambda: False
    waits: bool = False
    received: int = 0
    given_up: bool = False
    _looked: float = field(default_factory=time.monotonic)
    _seen: int = 0

    def has_room(self) -> None:
        """Look at the rate from now on: the request no longer waits."""
        self.waits, self._looked, self._seen = False, time.monotonic(), self.received

    def give_up(self) -> bool:
        """End the reading, and return True, if the request was slow since the last look."""
        now = time.monotonic()
        passed_s = now - self._looked
        if self.timer.expired() or self.waits or passed_s < self.patience_s or self.busy():
            return False
        self.given_up = self.received - self._seen < MIN_RATE * passed_s
        self._looked, self._seen = now, self.received
        if self.given_up:
            self.timer.reschedule(asyncio.get_running_loop().time())
        return self.given_up


class _Alarm:
    """Calls a function every `PATIENCE_S`, until it is stopped."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._set()

    def _set(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._ring)

    def _ring(self) -> None:
        self._set()
        self._call()

    def stop(self) -> None:
        """Call the function no more."""
        self._timer.cancel()


class ByteBudget:
    """Bytes that callers hold together, and each of them at most its share; used in the event loop only.

    Callers that wait take turns, so a caller with many calls does not delay the others. Requests that arrive slowly
    keep others out for `PATIENCE_S` at most.

    Args:
        most: bytes of all callers.
        share: most bytes of one caller.
    """

    def __init__(self, most: int, share: int) -> None:
        self._free = most
        self._share = share
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()
        self._arriving: dict[Arrival, str] = {}  # callers, oldest request first

    @property
    def free(self) -> int:
        """Bytes that no caller holds."""
        return self._free

    @contextmanager
    def arriving(self, caller: str, arrival: Arrival) -> Iterator[Arrival]:
        """Let others end a caller's request if it arrives too slowly."""
        self._arriving[arrival] = caller
        try:
            yield arrival
        finally:
            del self._arriving[arrival]

    async def take(self, caller: str, size: int, own: Arrival | None = None) -> None:
        """Hold bytes, after a wait if too many are held; at most ``share`` at a time.

        Args:
            own: the request, if it arrives already.
        """
        if self.take_now(caller, size) or (own is not None and self._exceed(caller, size, own)):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append((size, turn))
        alarm = _Alarm(lambda: self._make_room(turn, caller, size, own))
        if own is not None:
            own.waits = True
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(caller, size)
            turn.cancel()
            raise
        finally:
            alarm.stop()
            if own is not None:
                own.has_room()

    def _make_room(self, turn: "asyncio.Future[None]", caller: str, size: int, own: Arrival | None) -> None:
        """Let the oldest request go on, or end a slow one."""
        if not turn.done():
            if own is not None and self._exceed(caller, size, own):
                turn.set_result(None)
            else:
                self._give_up_oldest(caller, size, own)

    def take_now(self, caller: str, size: int) -> bool:
        """Hold bytes and return True if there is room, without a wait."""
        fits = caller not in self._waiting and self._fits(caller, size)
        if fits:
            self._hold(caller, size)
        return fits

    def _exceed(self, caller: str, size: int, own: Arrival) -> bool:
        """Hold bytes of the oldest request that arrives, beyond the bounds: else requests might wait for each other.

        The oldest of a caller may exceed its share, the oldest of all the bytes of all.
        """
        oldest = next(iter(self._arriving), None)
        oldest_of_caller = next((one for one, holder in self._arriving.items() if holder == caller), None)
        may = own is oldest or (own is oldest_of_caller and size <= self._free)
        if may:
            self._hold(caller, size)
        return may

    def _give_up_oldest(self, caller: str, size: int, own: Arrival | None) -> None:
        """End the oldest other request that arrives slowly: one of this caller if its share is full, else any."""
        share_is_full = self._held[caller] + size > self._share
        for arrival, holder in list(self._arriving.items()):
            if arrival is not own and (holder == caller or not share_is_full) and arrival.give_up():
                return

    def give_back(self, caller: str, size: int) -> None:
        """Stop to hold bytes."""
        self._hold(caller, -size)
        if self._held[caller] == 0:
            del self._held[caller]
        refused = 0  # callers in a row for whom there is no room
        while self._free > 0 and refused < len(self._waiting):
            refused = 0 if self._take_turn(next(iter(self._waiting))) else refused + 1

    def _take_turn(self, caller: str) -> bool:
        """Give a waiting caller its next bytes if there is room, and put the caller last; False if there is none."""
        queue = self._waiting.pop(caller)
        while queue and queue[0][1].done():  # cancelled
            queue.popleft()
        if not queue:
            return True
        fits = self._fits(caller, queue[0][0])
        if fits:
            size, turn = queue.popleft()
            self._hold(caller, size)
            turn.set_result(None)
        if queue:
            self._waiting[caller] = queue
        return fits

    def _fits(self, caller: str, size: int) -> bool:
        return size <= self._free and self._held[caller] + size <= self._share

    def _hold(self, caller: str, size: int) -> None:
        self._free -= size
        self._held[caller] += size
