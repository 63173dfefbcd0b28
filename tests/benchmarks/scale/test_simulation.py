"""The simulation of servers under load, against queueing theory and numbers worked by hand."""

import math
from dataclasses import replace

import pytest

from benchmarks.scale.autoscaling import STABILIZATION_S, autoscaler, by_cpu, by_most, by_waiting
from benchmarks.scale.simulation import Plan, Sample, interpolated, simulate, stationary

MU = 2.0


def servers_of(count: int) -> Plan:
    """An M/M/c queue of rate 2 for each of c servers, three quarters full, for 40,000 sentences."""
    arrivals = 0.75 * MU * count
    return Plan(
        rate=lambda number: MU * min(number, count),
        slots=10**6,
        arrivals=lambda _: arrivals,
        peak=arrivals,
        seconds=40_000 / arrivals,
        servers=1,
        seed=7,
    )


def erlang_c(count: int, offered: float) -> float:
    """Probability of waiting in an M/M/c queue, by Erlang's formula; offered load in servers."""
    last = offered**count / math.factorial(count) * count / (count - offered)
    return last / (sum(offered**number / math.factorial(number) for number in range(count)) + last)


@pytest.mark.parametrize(("count", "waits"), [(1, 0.75), (2, 9 / 14)])
def test_erlangs_formula_gives_what_is_worked_by_hand(count: int, waits: float) -> None:
    """M/M/1: the load. M/M/2 with a = 1.5: 1.125 * 4 / (1 + 1.5 + 4.5) = 4.5 / 7."""
    assert erlang_c(count, 0.75 * count) == pytest.approx(waits)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_queue_of_several_servers_is_that_of_erlang(count: int) -> None:
    plan = servers_of(count)
    waits = erlang_c(count, 0.75 * count)
    mean_s = 1 / MU + waits / (MU * count * 0.25)
    exact = stationary(plan.peak, plan.rate, most=400)
    assert sum(exact[count:]) == pytest.approx(waits)
    assert sum(number * share for number, share in enumerate(exact)) == pytest.approx(mean_s * plan.peak)
    latencies = [latency for _, latency in simulate(plan).latencies]
    assert len(latencies) == pytest.approx(40_000, rel=0.02)
    assert sum(latencies) / len(latencies) == pytest.approx(mean_s, rel=0.08)


def test_latencies_of_one_server_are_exponential_and_bounded_slots_change_no_mean() -> None:
    """In an M/M/1 queue that serves in turn, a latency exceeds t with the probability exp(-(mu - lambda) t)."""
    plan = servers_of(1)
    in_turn = simulate(replace(plan, slots=1))
    for share in (0.5, 0.9, 0.99):
        assert in_turn.quantile(share) == pytest.approx(-math.log(1 - share) / (0.25 * MU), rel=0.2)
    shared = simulate(plan)
    means = [sum(latency for _, latency in each.latencies) / len(each.latencies) for each in (in_turn, shared)]
    assert means[0] == pytest.approx(means[1], rel=0.15)
    assert shared.quantile(0.99) > in_turn.quantile(0.99)  # a long sentence shares with all that come meanwhile


def test_a_service_curve_goes_through_its_points() -> None:
    rate = interpolated([(1, 10.0), (4, 30.0), (16, 50.0)])
    assert [rate(number) for number in (1, 2, 4, 8, 16, 64)] == pytest.approx([10, 20, 30, 40, 50, 50])


def test_arrivals_follow_their_rate() -> None:
    outcome = simulate(
        Plan(
            rate=lambda _: 1e6,
            slots=1,
            arrivals=lambda now: 100.0 if now < 50 else 20.0,
            peak=100.0,
            seconds=100.0,
            servers=1,
            seed=3,
        )
    )
    early = sum(arrived < 50 for arrived, _ in outcome.latencies)
    assert early == pytest.approx(5000, rel=0.05)
    assert len(outcome.latencies) - early == pytest.approx(1000, rel=0.1)


def sample(time: float, servers: int, *, busy: float = 0.0, sentences: int = 0, waiting: int = 0) -> Sample:
    return Sample(time=time, servers=servers, starting=0, sentences=sentences, waiting=waiting, busy=busy)


def test_autoscalers_want_what_kubernetes_documents() -> None:
    """desired = ceil(current * measure / target), within 10 % of the target no change, at most twice as many."""
    assert by_cpu(least=1, most=99)([sample(15, 4, busy=0.9)]) == math.ceil(4 * 0.9 / 0.7)
    assert by_cpu(least=1, most=99)([sample(15, 4, busy=0.75)]) == 4
    assert by_waiting(32, least=1, most=99)([sample(15, 2, waiting=300)]) == 6  # not 10: at most four more
    assert by_waiting(32, least=1, most=5)([sample(15, 2, waiting=300)]) == 5
    assert by_waiting(32, least=2, most=99)([sample(15, 2, sentences=64)]) == 2
    both = by_most(by_cpu(least=1, most=99), by_waiting(32, least=1, most=99))
    assert both([sample(15, 4, busy=0.9, waiting=64)]) == 6
    assert both([sample(30, 4, busy=0.1, waiting=640)]) == 8
    mean = autoscaler(lambda each: each.sentences, 10, least=1, most=99)
    assert mean([sample(15, 1, sentences=10), sample(30, 1, sentences=50)]) == 3


def test_an_autoscaler_stops_servers_only_after_five_minutes_of_less() -> None:
    scale = by_waiting(10, least=1, most=99)
    samples = [sample(15, 6, waiting=60)]
    assert scale(samples) == 6
    wanted = {}
    for number in range(2, 40):
        samples.append(sample(15 * number, 6, waiting=10))
        wanted[15 * number] = scale(samples)
    lasts = max(time for time, count in wanted.items() if count == 6)
    assert STABILIZATION_S <= lasts <= STABILIZATION_S + 15  # after the first sample, at 15 s
    assert wanted[15 * 39] == 1


def test_a_scaled_service_starts_servers_and_answers_all_that_arrived() -> None:
    plan = Plan(
        rate=interpolated([(1, 30.0), (32, 90.0)]),
        slots=64,
        arrivals=lambda now: 200.0 if 60 <= now < 240 else 30.0,
        peak=200.0,
        seconds=900.0,
        servers=2,
        work=lambda generator: generator.uniform(0.5, 1.5),
    )
    outcome = simulate(plan, by_waiting(32, least=2, most=8), start_s=30.0)
    counts = [each.servers for each in outcome.samples]
    assert (counts[0], max(counts) > 2, counts[-1]) == (2, True, 2)
    fixed = simulate(plan)
    arrived = sum(1 for time, _ in fixed.latencies if time < 800)
    assert sum(1 for time, _ in outcome.latencies if time < 800) == arrived
    assert outcome.server_s == sum(15 * (each.servers + each.starting) for each in outcome.samples)
    assert outcome.quantile(0.99, after=200, before=240) < fixed.quantile(0.99, after=200, before=240)
