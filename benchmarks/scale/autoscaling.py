"""Autoscalers as Kubernetes has them, for the simulation."""

import math
from collections.abc import Callable, Sequence

from benchmarks.scale.simulation import Sample, Scale

TOLERANCE = 0.1
"""Deviation from the target that changes nothing."""
STABILIZATION_S = 300.0
"""Time in which an autoscaler wants fewer servers all along before it stops any."""
MEAN_S = 60.0
"""Time over which the measure is averaged."""


def autoscaler(measure: Callable[[Sample], float], target: float, *, least: int, most: int) -> Scale:
    """Make an autoscaler that holds the measure of each server at a target, as HorizontalPodAutoscaler does.

    It wants the sum of the measure over servers, divided by the target. It at most doubles the servers, or adds four,
    between two samples, and stops servers only if it wanted fewer for five minutes.

    Args:
        measure: sum over all servers at a sample.
        target: target of a server.
        least, most: bounds of the number of servers.
    """
    wishes: list[tuple[float, int]] = []

    def scale(samples: Sequence[Sample]) -> int:
        now = samples[-1].time
        recent = [sample for sample in samples if sample.time > now - MEAN_S]
        total = sum(map(measure, recent)) / len(recent)
        current = samples[-1].servers + samples[-1].starting
        share = total / target / samples[-1].servers
        wish = current if abs(share - 1) <= TOLERANCE else math.ceil(total / target)
        wishes.append((now, wish))
        if wish > current:
            return min(wish, max(2 * current, current + 4), most)
        lasting = max(each for time, each in wishes if time > now - STABILIZATION_S)
        return max(min(current, lasting), least)

    return scale


def by_cpu(*, least: int, most: int, target: float = 0.7) -> Scale:
    """Scale by CPU use: the share of the time in which a server has any sentence."""
    return autoscaler(lambda sample: sample.busy * sample.servers, target, least=least, most=most)


def by_waiting(target: float, *, least: int, most: int) -> Scale:
    """Scale by the waiting sentences of each server."""
    return autoscaler(lambda sample: sample.waiting, target, least=least, most=most)


def by_most(*scales: Scale) -> Scale:
    """Scale by several measures: the largest number of servers that one of them wants."""
    return lambda samples: max([scale(samples) for scale in scales])
