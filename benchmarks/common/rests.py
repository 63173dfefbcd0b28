"""Latency of one sentence after rests of several lengths: what a service pays that is called now and then."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common.ratios import aligned

RESTS = {0.05: 30, 0.3: 15, 1.0: 9, 10.0: 5, 60.0: 3}
"""Number of calls after each rest in seconds."""
QUICK_RESTS = {0.05: 2}
AGAIN = 3
"""Calls back to back after each call that follows a rest: the machine is as fast for them as for that call."""
WARM_UP = 5


@dataclass(frozen=True, kw_only=True)
class Rested:
    """Latencies of one contender.

    Attributes:
        model: name of the model.
        name: name of the contender.
        seconds: by rest in seconds: for each rest the latency of the call after it, and the median of the calls back to
            back that follow.
    """

    model: str
    name: str
    seconds: Mapping[float, Sequence[tuple[float, float]]]

    @property
    def back_to_back_s(self) -> float:
        """The median latency of all calls back to back, in seconds."""
        return statistics.median(again for pairs in self.seconds.values() for _, again in pairs)

    @property
    def ratios(self) -> dict[float, float]:
        """The median over the rests of the latency after a rest as a multiple of those that follow back to back."""
        return {
            rest: statistics.median(after / again for after, again in pairs) for rest, pairs in self.seconds.items()
        }


def measure_rests(
    model: str, name: str, rests: Mapping[float, int], call: Callable[[Sequence[float]], Sequence[float]]
) -> Rested:
    """Measure a contender.

    Args:
        rests: number of calls by the rest before each, in seconds.
        call: calls the contender after each of these rests, zeros included; returns the latencies in seconds.
    """
    group = 1 + AGAIN
    seconds = {}
    for rest, calls in rests.items():
        latencies = call([*[0.0] * WARM_UP, *[rest, *[0.0] * AGAIN] * calls])[WARM_UP:]
        groups = [latencies[first : first + group] for first in range(0, len(latencies), group)]
        seconds[rest] = [(after, statistics.median(again)) for after, *again in groups]
    return Rested(model=model, name=name, seconds=seconds)


def rest_table(measured: Sequence[Rested], *, ratios: bool = True) -> str:
    """Table of latencies after rests, with multiples of the latency back to back if `ratios`."""
    rests = list(measured[0].seconds)
    rows = [["model", "contender", "back to back", *(f"after {rest:g} s" for rest in rests)]]
    for each in measured:
        cells = [f"{1e3 * each.back_to_back_s:.1f} ms"]
        for rest in rests:
            milliseconds = f"{1e3 * statistics.median(after for after, _ in each.seconds[rest]):.1f} ms"
            cells.append(f"{milliseconds} ({each.ratios[rest]:.2f})" if ratios else milliseconds)
        rows.append([each.model, each.name, *cells])
    return aligned(rows)
