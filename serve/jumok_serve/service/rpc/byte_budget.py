"""Bytes that callers hold: of requests that arrive, and of responses until they are read."""

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from jumok_proto.errors import OverloadedError
from jumok_serve.service.connections import received_bytes
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.share import RETRY_AFTER_S

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
        fast_s: time, in seconds, after which the request is slow at any rate.
        peer: address of a connection whose bytes count as received, as gRPC shows no others; empty: the reader counts.
        busy: true while the sender waits for the server, and may be silent.
        received: bytes so far.
        shown: true if these bytes are known; else the request is not slow until ``fast_s``.
        given_up: true if others needed the room.
        waiting: turn and size of the bytes that the request waits for; None: it waits for none.
    """

    timer: asyncio.Timeout
    patience_s: float = PATIENCE_S
    busy: Callable[[], bool] = lambda: False
    fast_s: float = math.inf
    peer: str = ""
    received: int = 0
    shown: bool = True
    given_up: bool = False
    waiting: "tuple[asyncio.Future[None], int] | None" = None
    _begun: float = field(default_factory=time.monotonic)
    _looked: float = field(default_factory=time.monotonic)
    _seen: int = 0

    def has_room(self) -> None:
        """Look at the rate from now on: the request no longer waits."""
        self.waiting, self._looked, self._seen = None, time.monotonic(), self.received

    def give_up(self) -> bool:
        """End the reading, and return True, if the request was slow since the last look."""
        now = time.monotonic()
        passed_s = now - self._looked
        if self.timer.expired() or self.waiting is not None or passed_s < self.patience_s or self.busy():
            return False
        slow = self.shown and self.received - self._seen < MIN_RATE * passed_s
        self.given_up = slow or now - self._begun > self.fast_s
        self._looked, self._seen = now, self.received
        if self.given_up:
            self.timer.reschedule(asyncio.get_running_loop().time())
        return self.given_up


class ByteBudget:
    """Bytes that callers hold together, and each of them at most its share; used in the event loop only.

    Callers that wait take turns, so a caller with many calls does not delay the others. Requests that arrive slowly
    keep others out for about `PATIENCE_S`.

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
        self._making_room: asyncio.Task[None] | None = None  # runs while requests wait

    @property
    def share(self) -> int:
        """Most bytes of one caller."""
        return self._share

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
            self._let_first_go_on()

    async def take(self, caller: str, size: int, own: Arrival | None = None) -> None:
        """Hold bytes, after a wait if too many are held; at most ``share`` at a time.

        Args:
            own: the request, if it arrives already.
        """
        if self.take_now(caller, size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append((size, turn))
        if self._making_room is None:
            self._making_room = asyncio.create_task(self._make_room())
        if own is not None:
            own.waiting = (turn, size)
            self._let_first_go_on()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(caller, size)
            turn.cancel()
            raise
        finally:
            if own is not None:
                own.has_room()

    def take_now(self, caller: str, size: int) -> bool:
        """Hold bytes and return True if there is room, without a wait."""
        fits = caller not in self._waiting and self._fits(caller, size)
        if fits:
            self._hold(caller, size)
        return fits

    def take_or_exceed(self, caller: str, size: int, own: int) -> bool:
        """Hold more bytes and return True if there is room, or if the caller holds none besides its ``own``."""
        fits = self._fits(caller, size) or self._held[caller] == own
        if fits:
            self._hold(caller, size)
        return fits

    @property
    def greediest(self) -> str:
        """Caller that holds most bytes; empty if none holds any."""
        return max(self._held, key=self._held.__getitem__, default="")

    async def _make_room(self) -> None:
        """End slow arrivals again and again, until no request waits."""
        try:
            while True:
                await asyncio.sleep(PATIENCE_S)
                await self._count_received()
                waiting = {
                    caller: sum(not turn.done() for _, turn in queue)
                    for caller, queue in self._waiting.items()
                    if any(not turn.done() for _, turn in queue)
                }
                if not waiting:
                    return
                self._end_slow(waiting)
        finally:
            self._making_room = None

    async def _count_received(self) -> None:
        counted = [arrival for arrival in self._arriving if arrival.peer]
        if counted:
            received = await asyncio.to_thread(received_bytes, {arrival.peer for arrival in counted})
            for arrival in counted:
                arrival.shown = arrival.peer in received
                arrival.received = received.get(arrival.peer, arrival.received)

    def _end_slow(self, waiting: Mapping[str, int]) -> None:
        """End slow arrivals for requests that wait, oldest first: of callers whose share is full, else of all.

        Args:
            waiting: number of requests by caller.
        """
        oldest = {caller: arrival for arrival, caller in reversed(self._arriving.items())}
        for caller, arrival in oldest.items():  # it exceeds its caller's share
            if arrival.waiting is not None and arrival.waiting[1] <= self._free:
                self._let_go_on(arrival, caller)
        needed = sum(waiting.values())
        all_are_full = any(self._held[caller] + self._waiting[caller][0][0] <= self._share for caller in waiting)
        for arrival, holder in list(self._arriving.items()):
            if needed and (all_are_full or holder in waiting):
                needed -= arrival.give_up()

    def _let_first_go_on(self) -> None:
        """Let the oldest arrival exceed the bytes of all if it waits: else arrivals might all wait for each other."""
        for arrival, caller in self._arriving.items():
            self._let_go_on(arrival, caller)
            return

    def _let_go_on(self, arrival: Arrival, caller: str) -> None:
        if arrival.waiting is not None and not arrival.waiting[0].done():
            turn, size = arrival.waiting
            self._hold(caller, size)
            turn.set_result(None)

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
