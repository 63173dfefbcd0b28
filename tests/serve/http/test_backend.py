"""Counts of characters by key: those of the last keys."""

import pytest

from jumok_serve.http import site
from jumok_serve.http.site import CharacterCounts


def test_the_key_that_is_idle_for_longest_is_no_longer_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "MAX_COUNTED", 2)
    counts = CharacterCounts()
    for key in ("a", "b", "a", "c"):
        counts.add(key, ["one", "two"])
    assert [counts.of(key) for key in ("a", "b", "c", "d")] == [12, 0, 6, 0]
