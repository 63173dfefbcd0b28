"""Budget of the bytes of requests in flight, over all connections."""

import asyncio
from collections import Counter, OrderedDict, deque


class ByteBudget:
    """Bytes that callers hold together, and each of them at most its share; used in the event loop only.

    Callers that wait take turns, so a caller with many calls does not delay the others.

    Args:
        most: bytes of all callers.
        share: most bytes of one caller.
    """

    def __init__(self, most: int, share: int) -> None:
        self._free = most
        self._share = share
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()

    @property
    def free(self) -> int:
        """Bytes that no caller holds."""
        return self._free

    async def take(self, caller: str, size: int) -> None:
        """Hold bytes, after a wait if too many are held; at most ``share`` at a time."""
        if caller not in self._waiting and self._fits(caller, size):
            self._hold(caller, size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(caller, size)
            turn.cancel()
            raise

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
