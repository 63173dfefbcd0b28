"""Growth of a sampled quantity, with its confidence interval.

Neighbouring samples of a process' memory are nearly the same, so that least squares over all of them would claim an
interval that is far too narrow. Means of blocks longer than the correlation lasts are nearly independent, and a line
through them has the usual interval (the method of batch means: Law and Kelton, Simulation Modeling and Analysis,
section 9.5.3, here with a trend). The correlation that is left between neighbouring residuals is told, so that a reader
can judge whether the blocks were long enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

BLOCKS = 10
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Slope:
    """A line through block means.

    Attributes:
        per_minute: how much is added in a minute.
        low: the lower end of the interval of that.
        high: its upper end.
        start: value of the line at time 0.
        correlation: of neighbouring residuals; near 0 where the blocks are long enough.
    """

    per_minute: float
    low: float
    high: float
    start: float
    correlation: float


def slope(times_s: Sequence[float], values: Sequence[float], blocks: int = BLOCKS) -> Slope:
    """Fit a line to samples that were taken at even intervals.

    Args:
        times_s: ascending moments, in seconds.
        values: a sample of each.
        blocks: of equal numbers of samples; those that are left over at the beginning are left out.

    Raises:
        ValueError: there are fewer than 3 blocks, or not two samples for each.
    """
    length = len(values) // blocks
    if blocks < 3 or length < 2:
        raise ValueError(f"{len(values)} samples are too few for {blocks} blocks: at least 3 blocks of 2 are needed")
    minutes = np.asarray(times_s[-blocks * length :]).reshape(blocks, length).mean(axis=1) / 60
    means = np.asarray(values[-blocks * length :]).reshape(blocks, length).mean(axis=1)
    line = stats.linregress(minutes, means)
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, blocks - 2) * line.stderr)
    residuals = means - (line.intercept + line.slope * minutes)
    power = float(residuals @ residuals)
    return Slope(
        per_minute=float(line.slope),
        low=float(line.slope) - half,
        high=float(line.slope) + half,
        start=float(line.intercept),
        correlation=float(residuals[1:] @ residuals[:-1]) / power if power > 0 else 0.0,
    )
