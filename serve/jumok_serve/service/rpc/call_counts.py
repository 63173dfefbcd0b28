"""What a server counts of its calls; whoever publishes it reads it."""

from collections import Counter
from collections.abc import Sequence

from jumok_serve.engine.counters import REFUSAL_SECONDS, SECONDS, Histogram
from jumok_serve.service.rpc.call import Call


class CallCounts:
    """Counts calls as they end; written by the event loop, read by any thread.

    Attributes:
        ended_with: calls by method and status.
        duration_s: seconds that they took, by method.
        refused_s: seconds that it took to refuse a call, or until it failed, by the reason that the caller was told.
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
    """The histogram of a name, made where there is none yet."""
    found = histograms.get(name)
    if found is None:
        found = histograms[name] = Histogram(bounds)
    return found
