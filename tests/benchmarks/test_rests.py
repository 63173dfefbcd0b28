"""Latency after rests: each call is compared with those right after it."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import pytest

from benchmarks.common.rests import measure_rests, rest_table
from benchmarks.contenders.worker import Task, take_turn

COST = {0.5: 0.1, 2.0: 0.3}
"""Part by which a call is slower after these rests."""


class SlowingMachine:
    """Calls of a service whose machine becomes slower with each call."""

    def __init__(self) -> None:
        self._calls = 0

    def call(self, rests_s: Sequence[float]) -> list[float]:
        return [self._latency_s(rest_s) for rest_s in rests_s]

    def _latency_s(self, rest_s: float) -> float:
        self._calls += 1
        return 0.03 * 1.004**self._calls * (1 + COST.get(rest_s, 0.0))


def test_ratios_are_those_of_calls_next_to_each_other() -> None:
    found = measure_rests("model", "service", {0.5: 9, 2.0: 3}, SlowingMachine().call)
    assert {rest: len(pairs) for rest, pairs in found.seconds.items()} == {0.5: 9, 2.0: 3}
    for rest, ratio in found.ratios.items():
        assert ratio == pytest.approx(1 + COST[rest], rel=0.02)
    _, row = rest_table([found]).splitlines()[:2]
    assert [f"({ratio:.2f})" in row for ratio in found.ratios.values()] == [True, True]
    assert "(" not in rest_table([found], ratios=False)


def test_a_turn_rests_before_the_calls_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("benchmarks.contenders.worker.time.sleep", slept.append)
    task = Task(texts=["a"], tokens=[["a"]], beam_size=1, min_length=0, max_length=1, least_s=0.0, rests_s=[0.0, 5.0])
    turn = take_turn(lambda _: lambda: [["b"]], Task(**json.loads(json.dumps(asdict(task)))))
    assert slept == [0.0, 5.0]
    assert len(turn.seconds) == 2
