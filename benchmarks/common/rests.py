"""Latency of one sentence after rests of several lengths: what a service pays that is called now and then."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common.ratios import aligned

RESTS = {0.0: 40, 0.05: 30, 0.3: 15, 1.0: 7, 10.0: 3, 60.0: 2}
"""Number of calls after each rest in seconds."""
QUICK_RESTS = {0.0: 3, 0.05: 2}
MAX_RATIO = 1.15
"""Limit of the latency after a rest, as a multiple of the latency back to back."""


@dataclass(frozen=True, kw_only=True)
class Rested:
    """Latencies of one contender.

    Attributes:
        model: name of the model.
        name: name of the contender.
        seconds: latencies in seconds, by the rest before each call in seconds.
    """

    model: str
    name: str
    seconds: Mapping[float, Sequence[float]]

    @property
    def ratios(self) -> dict[float, float]:
        """The median latency after each rest as a multiple of the one back to back."""
        medians = {rest: statistics.median(seconds) for rest, seconds in self.seconds.items()}
        return {rest: median / medians[0.0] for rest, median in medians.items()}


def measure_rests(
    model: str, name: str, rests: Mapping[float, int], call: Callable[[float, int], Sequence[float]]
) -> Rested:
    """Measure a contender.

    Args:
        rests: number of calls by the rest before each, in seconds; 0.0 is one of them.
        call: calls the contender after a rest, this many times; returns the latencies in seconds.
    """
    return Rested(model=model, name=name, seconds={rest: call(rest, calls) for rest, calls in rests.items()})


def rest_table(measured: Sequence[Rested], *, ratios: bool = True) -> str:
    """Table of latencies after rests, with multiples of the latency back to back if `ratios`."""
    rests = list(measured[0].seconds)
    rows = [["model", "contender", *(f"after {rest:g} s" if rest else "back to back" for rest in rests)]]
    for each in measured:
        cells = []
        for rest in rests:
            milliseconds = f"{1e3 * statistics.median(each.seconds[rest]):.1f} ms"
            cells.append(f"{milliseconds} ({each.ratios[rest]:.2f})" if ratios and rest else milliseconds)
        rows.append([each.model, each.name, *cells])
    return aligned(rows)
