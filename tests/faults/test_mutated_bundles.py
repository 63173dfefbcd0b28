"""The scenario of mutated bundles, for a few dozen of them."""

from pathlib import Path

from tests.faults.mutated_bundles import try_mutated

COUNT = 40


def test_mutated_bundles_are_used_or_refused(tiny_bundle: Path) -> None:
    outcomes = try_mutated(tiny_bundle, COUNT, seed=5)
    assert outcomes.failed == []
    assert outcomes["good"] + outcomes["refused"] == COUNT
    assert outcomes["refused"] > COUNT / 4
    assert outcomes["good"] > 0
