"""Token buckets: their rate and burst, units that are given back, and callers that are forgotten."""

import pytest

from jumok_serve import share
from jumok_serve.share import RateLimiter


def test_a_bucket_fills_at_its_rate_up_to_its_burst() -> None:
    """Compared with a token bucket that the clock refills."""
    now = 0.0
    limiter = RateLimiter(4.0, 3)
    filled, at = 3.0, 0.0
    taken = 0
    for step in (0.0, 0.0, 0.0, 0.0, 0.125, 0.125, 0.0, 0.25, 5.0, 0.0, 0.0, 0.0, 0.0, 0.375, 0.375, 0.25):
        now += step
        filled, at = min(3.0, filled + 4.0 * (now - at)), now
        wait_s = limiter.take("a", now)
        if filled >= 1:
            filled -= 1
            taken += 1
            assert wait_s == 0
        else:
            assert wait_s == pytest.approx((1 - filled) / 4.0)
    assert taken == 11
    assert limiter.take("b", now) == 0


@pytest.mark.parametrize(("per_second", "calls"), [(0.5, 1), (1.0, 1), (2.5, 2), (7.0, 7)])
def test_the_default_burst_is_that_of_a_second(per_second: float, calls: int) -> None:
    limiter = RateLimiter(per_second)
    assert [limiter.take("a", 0.0) > 0 for _ in range(calls + 1)] == [False] * calls + [True]


def test_more_than_the_burst_needs_a_full_bucket_and_leaves_a_debt() -> None:
    limiter = RateLimiter(10.0, 20)
    assert limiter.take("a", 0.0, 1) == 0
    assert limiter.take("a", 0.0, 50) == pytest.approx(0.1)
    assert limiter.take("a", 0.1, 50) == 0
    assert limiter.take("a", 0.1, 1) == pytest.approx(3.1)
    assert limiter.take("a", 3.2, 1) == 0


def test_units_are_given_back_and_a_bucket_holds_no_more_than_its_burst() -> None:
    limiter = RateLimiter(10.0, 20)
    limiter.give_back("a", 5)
    assert limiter.take("a", 0.0, 20) == 0
    limiter.give_back("a", 15)
    assert limiter.take("a", 0.0, 15) == 0
    assert limiter.take("a", 0.0, 1) == pytest.approx(0.1)
    limiter.give_back("a", 100)
    assert limiter.take("a", 0.0, 20) == 0
    assert limiter.take("a", 0.0, 1) == pytest.approx(0.1)
    limiter.give_back("a", -10)  # more was used than estimated
    assert limiter.take("a", 0.0, 1) == pytest.approx(1.1)


def test_callers_who_have_rested_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "MAX_CALLERS", 3)
    limiter = RateLimiter(1.0, 1)
    for caller in "abc":
        assert limiter.take(caller, 0.0) == 0
    assert limiter.take("d", 0.5) == 0  # the one that has been here longest makes room
    assert limiter.take("b", 0.5) > 0
    assert limiter.take("e", 1.0) == 0
    assert limiter.take("d", 1.0) > 0
