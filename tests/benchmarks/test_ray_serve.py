"""The benchmark of Ray Serve beside a server: both are measured with both kinds of load."""

import asyncio

import pytest

from benchmarks import ray_serve
from tests.support.hang import HANG_S

TEXTS = ["A dog runs on the beach.", "Two men are talking."]


def test_both_are_measured() -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    seconds = asyncio.run(
        asyncio.wait_for(
            ray_serve.measure(ray_serve.MODEL, TEXTS, replicas=1, outstanding=2, sentences=4, rounds=1), HANG_S
        )
    )
    assert list(seconds) == ["corpora", "one a call"]
    assert all(len(taken) == 1 and taken[0] > 0 for by_name in seconds.values() for taken in by_name.values())
