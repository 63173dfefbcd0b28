"""What a server counts of its calls; whoever publishes it reads it."""

from collections import Counter

from jumok_serve.counters import SECONDS, Histogram
from jumok_serve.service.call import Call


class CallCounts:
    """Counts calls as they end; written by the event loop, read by any thread.

    Attributes:
        ended_with: calls by method and status.
        duration_s: seconds that they took, by method.
        refused: calls that were refused or failed, by the reason that the caller was told.
    """

    def __init__(self) -> None:
        self.ended_with: Counter[tuple[str, str]] = Counter()
        self.duration_s: dict[str, Histogram] = {}
        self.refused: Counter[str] = Counter()

    def ended(self, call: Call) -> None:
        """Count a call."""
        self.ended_with[call.method, call.code] += 1
        durations = self.duration_s.get(call.method)
        if durations is None:
            durations = self.duration_s[call.method] = Histogram(SECONDS)
        durations.observe(call.duration_s)
        if call.reason:
            self.refused[call.reason] += 1
