"""Calls of functions, noted while they work as ever."""

from typing import Any

import pytest


def noted_calls(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[tuple[Any, ...]]:
    """Return a list that gets the positional arguments of each call of a function."""
    calls, function = list[tuple[Any, ...]](), getattr(owner, name)

    def noted(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, noted)
    return calls
