"""Callers: their unfinished work, and which of them are present."""

from collections import deque
from collections.abc import Sequence
from itertools import islice

from jumok_serve.engine.future import Future
from jumok_serve.engine.sentence import Decoded, Sentence

PRESENCE_S = 5.0
"""Seconds after its last sentence for which a caller counts as present."""

LIGHT_WORK = 4096
"""Most unfinished work of a light caller, in row steps: 20 sentences of 17 tokens at beam size 4."""


class Callers:
    """Unfinished work and last arrival of each caller.

    Futures report ends from any thread; all else happens under the scheduler's lock.
    """

    def __init__(self) -> None:
        self._unfinished: dict[str, int] = {}
        self._heavy: set[str] = set()
        self._last_seen: dict[str, float] = {}  # the latest last
        self._ended: deque[tuple[str, int]] = deque()

    def arrived(self, sentences: Sequence[Sentence], now: float) -> None:
        """Add the work of sentences until their futures are done."""
        for sentence in sentences:
            self._add(sentence.caller, sentence.work)
            sentence.future.add_done_callback(_Report(self._ended, sentence.caller, sentence.work))
        for caller in {sentence.caller for sentence in sentences}:
            self._last_seen.pop(caller, None)
            self._last_seen[caller] = now
        while len(self._last_seen) > 1:
            oldest = next(iter(self._last_seen))
            if now - self._last_seen[oldest] <= PRESENCE_S:
                break
            del self._last_seen[oldest]

    def settle(self) -> None:
        """Subtract the work of sentences that have ended."""
        while self._ended:
            caller, work = self._ended.popleft()
            self._add(caller, -work)

    def several(self, now: float) -> bool:
        """True if more than one caller is present."""
        if len(self._unfinished) > 1:
            return True
        latest = next(islice(reversed(self._last_seen.items()), 1, None), None)
        return latest is not None and now - latest[1] <= PRESENCE_S

    def contended(self, now: float) -> bool:
        """True if several callers are present, one of them with much work."""
        return bool(self._heavy) and self.several(now)

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
    """Callback of a future; refers to neither sentence nor queue."""

    __slots__ = ("_caller", "_ended", "_work")

    def __init__(self, ended: deque[tuple[str, int]], caller: str, work: int) -> None:
        self._ended, self._caller, self._work = ended, caller, work

    def __call__(self, _future: Future[Decoded]) -> None:
        self._ended.append((self._caller, self._work))
