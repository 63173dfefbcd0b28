"""Counts of ended calls, by method, status and reason."""

from collections import Counter
from collections.abc import Sequence

from jumok_serve.engine.statistics import REFUSAL_SECONDS, SECONDS, Histogram
from jumok_serve.service.rpc.call import Call


class CallCounts:
    """Counters of ended calls; written by the event loop, read by any thread.

    Attributes:
        ended_with: number of calls by method and status.
        duration_s: durations by method, in seconds.
        refused_s: durations of refused and failed calls by reason, in seconds.
    """

    def __init__(self) -> None:
        self.ended_with: Counter[tuple[str, str]] = Counter()
        self.duration_s: dict[str, Histogram] = {}
        self.refused_s: dict[str, Histogram] = {}

    def ended(self, call: Call) -> None:
        """Count a call."""
        self.ended_with[call.method, call.code] += 1
        _histogram(self.duration_s, call.method, SECONDS).observe(call.duration_s)
        if call.reason:
            _histogram(self.refused_s, call.reason, REFUSAL_SECONDS).observe(call.duration_s)


def _histogram(histograms: dict[str, Histogram], name: str, bounds: Sequence[float]) -> Histogram:
    found = histograms.get(name)
    if found is None:
        found = histograms[name] = Histogram(bounds)
    return found
