"""Simulate servers with continuous batching under random load, and their autoscaler.

A server holds sentences. Those in its batch, up to a bound, share its rate, which depends on their number: the service
curve. Others wait. With exponential work and Poisson arrivals a server is a birth-death process, for which
``stationary`` has the exact distribution; an M/M/c queue is the service curve ``min(n, c)``.
"""

import heapq
import itertools
import math
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

Rate = Callable[[int], float]
"""Sentences per second of a server, by the number of sentences in its batch."""


def interpolated(points: Sequence[tuple[int, float]]) -> Rate:
    """Make the service curve through measured points, linear in the logarithm of the number; constant beyond them.

    Args:
        points: numbers of sentences from 1 up, each with a rate.
    """
    numbers = [number for number, _ in points]

    def rate(number: int) -> float:
        right = bisect_left(numbers, number)
        if right == len(points):
            return points[-1][1]
        if right == 0 or numbers[right] == number:
            return points[right][1]
        (low, below), (high, above) = points[right - 1 : right + 1]
        return below + (above - below) * math.log(number / low) / math.log(high / low)

    return rate


def stationary(arrivals: float, rate: Rate, *, most: int) -> list[float]:
    """Probability of each number of sentences at a server, 0 to ``most``, from the balance equations.

    Args:
        arrivals: sentences per second, fewer than the server's rate.
        rate: rate by the number of sentences at the server.
        most: number whose probability is negligible.
    """
    logarithms = [*itertools.accumulate((math.log(arrivals / rate(n)) for n in range(1, most + 1)), initial=0.0)]
    top = max(logarithms)
    weights = [math.exp(each - top) for each in logarithms]
    total = sum(weights)
    return [weight / total for weight in weights]


@dataclass(slots=True)
class Sentence:
    """A sentence at a server; work in units of the mean sentence."""

    arrived: float
    work: float


class SimulatedServer:
    """A server: a batch whose sentences share the rate, and a queue.

    Args:
        rate: service curve.
        slots: most sentences in the batch.
        now: time of its start, in seconds.
    """

    def __init__(self, rate: Rate, slots: int, now: float) -> None:
        self._rate = rate
        self._slots = slots
        self._now = now
        self._shared = 0.0
        """Work that a sentence in the batch from the beginning would have got."""
        self._batch: list[tuple[float, int, Sentence]] = []
        self._queue: deque[Sentence] = deque()
        self._count = itertools.count()
        self.busy_s = 0.0
        self.changes = 0
        """Number of sentences that came or ended: earlier values of ``next_end`` are wrong."""

    @property
    def sentences(self) -> int:
        """Waiting and running sentences."""
        return len(self._batch) + len(self._queue)

    @property
    def waiting(self) -> int:
        """Waiting sentences."""
        return len(self._queue)

    def next_end(self) -> float:
        """Time at which the next sentence ends, if none arrives; infinite if the server is empty."""
        if not self._batch:
            return math.inf
        left = self._batch[0][0] - self._shared
        return self._now + left * len(self._batch) / self._rate(len(self._batch))

    def advance(self, now: float) -> None:
        """Work until a time at which no sentence ends before."""
        if self._batch:
            self._shared += (now - self._now) * self._rate(len(self._batch)) / len(self._batch)
            self.busy_s += now - self._now
        self._now = now

    def add(self, sentence: Sentence) -> None:
        """Take a sentence now."""
        self.changes += 1
        if len(self._batch) < self._slots:
            heapq.heappush(self._batch, (self._shared + sentence.work, next(self._count), sentence))
        else:
            self._queue.append(sentence)

    def end(self) -> Sentence:
        """End the sentence with the least work left, and let the next one join."""
        self.changes += 1
        _, _, ended = heapq.heappop(self._batch)
        if self._queue:
            self.add(self._queue.popleft())
        return ended


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A simulated service.

    Attributes:
        rate: service curve of a server.
        slots: most sentences in the batch of a server.
        arrivals: sentences per second by time.
        peak: upper bound of the arrivals.
        seconds: simulated time.
        servers: servers at the beginning.
        work: draws the work of a sentence, with the mean 1.
        seed: seed of all that is random.
        sample_s: time between two samples.
    """

    rate: Rate
    slots: int
    arrivals: Callable[[float], float]
    peak: float
    seconds: float
    servers: int
    work: Callable[[random.Random], float] = field(default=lambda generator: generator.expovariate(1.0))
    seed: int = 1
    sample_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Sample:
    """State of the service at one time.

    Attributes:
        time: seconds from the beginning.
        servers: servers that take sentences.
        starting: servers that start.
        sentences: waiting and running sentences of all servers.
        waiting: the waiting ones.
        busy: mean share of the time, since the last sample, in which servers had a sentence.
    """

    time: float
    servers: int
    starting: int
    sentences: int
    waiting: int
    busy: float


Scale = Callable[[Sequence[Sample]], int]
"""The number of servers that an autoscaler wants, after all samples so far."""


@dataclass(kw_only=True)
class Outcome:
    """Result of a simulation.

    Attributes:
        latencies: arrival and latency of each answered sentence, in seconds, in order of the answers.
        samples: samples in order.
        server_s: time of all servers, starting ones included.
    """

    latencies: list[tuple[float, float]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    server_s: float = 0.0

    def quantile(self, share: float, *, after: float = 0.0, before: float = math.inf) -> float:
        """Latency that a share of the sentences does not exceed, of those that arrived in a time."""
        chosen = sorted(latency for arrived, latency in self.latencies if after <= arrived < before)
        return chosen[min(int(share * len(chosen)), len(chosen) - 1)]


def simulate(plan: Plan, scale: Scale | None = None, *, start_s: float = 0.0) -> Outcome:
    """Simulate a service whose clients choose servers at random.

    Sentences that are at a server when it stops are still answered, as after SIGTERM.

    Args:
        plan: the service.
        scale: autoscaler, called after each sample; None: the servers of the plan.
        start_s: time from the decision for a server until it takes sentences.
    """
    generator = random.Random(plan.seed)
    outcome = Outcome()
    servers = [SimulatedServer(plan.rate, plan.slots, 0.0) for _ in range(plan.servers)]
    starting: deque[float] = deque()
    samples = itertools.count(1)
    sample_at = plan.sample_s
    arrivals = _arrivals(plan)
    arrival = next(arrivals)
    ends = _Ends()
    while True:
        ready_at = starting[0] if starting else math.inf
        now = min(arrival, ends.next(), sample_at, ready_at)
        if now >= plan.seconds:
            return outcome
        if now == ends.next():
            server = ends.pop()
            server.advance(now)
            ended = server.end()
            outcome.latencies.append((ended.arrived, now - ended.arrived))
            ends.push(server)
        elif now == ready_at:
            starting.popleft()
            servers.append(SimulatedServer(plan.rate, plan.slots, now))
        elif now == sample_at:
            _sample(outcome, servers, len(starting), now, plan.sample_s)
            sample_at = plan.sample_s * (next(samples) + 1)
            if scale is not None:
                _resize(scale(outcome.samples), servers, starting, now + start_s)
        else:
            server = generator.choice(servers)
            server.advance(now)
            server.add(Sentence(now, plan.work(generator)))
            ends.push(server)
            arrival = next(arrivals)


class _Ends:
    """The next end of a sentence of each server."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, SimulatedServer]] = []
        self._count = itertools.count()

    def push(self, server: SimulatedServer) -> None:
        """Note the next end of a server that has changed."""
        if server.sentences:
            heapq.heappush(self._heap, (server.next_end(), next(self._count), server.changes, server))

    def next(self) -> float:
        """Time of the next end; infinite without a sentence."""
        while self._heap and self._heap[0][2] != self._heap[0][3].changes:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def pop(self) -> SimulatedServer:
        """Take the server with the next end."""
        return heapq.heappop(self._heap)[3]


def _arrivals(plan: Plan) -> Iterator[float]:
    """Yield the times of a Poisson process with a varying rate, by thinning; autoscalers do not change them."""
    generator = random.Random(f"{plan.seed}.arrivals")
    now = 0.0
    while True:
        now += generator.expovariate(plan.peak)
        if generator.random() * plan.peak < plan.arrivals(now):
            yield now


def _sample(outcome: Outcome, servers: Sequence[SimulatedServer], starting: int, now: float, sample_s: float) -> None:
    busy_s = 0.0
    for server in servers:
        server.advance(now)
        busy_s += server.busy_s
        server.busy_s = 0.0
    outcome.server_s += (len(servers) + starting) * sample_s
    outcome.samples.append(
        Sample(
            time=now,
            servers=len(servers),
            starting=starting,
            sentences=sum(server.sentences for server in servers),
            waiting=sum(server.waiting for server in servers),
            busy=busy_s / (len(servers) * sample_s),
        )
    )


def _resize(wanted: int, servers: list[SimulatedServer], starting: deque[float], ready_at: float) -> None:
    """Start servers, or stop the newest; those that start are stopped first."""
    while len(servers) + len(starting) < wanted:
        starting.append(ready_at)
    while starting and len(servers) + len(starting) > wanted:
        starting.pop()
    del servers[max(wanted, 1) :]
