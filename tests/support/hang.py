"""The time after which a test counts as hung, whatever else the machine does."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

HANG_S = 1500.0
"""Seconds; below pytest's own timeout, so that a hung subprocess is reported with its output."""


async def bounded(awaited: Awaitable[T]) -> T:
    """Wait for something with all that it waits for, but not for ever."""
    async with asyncio.timeout(HANG_S):
        return await awaited


async def until(true: Callable[[], bool]) -> None:
    """Wait for a condition, but not for ever."""
    async with asyncio.timeout(HANG_S):
        while not true():
            await asyncio.sleep(0.001)


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for a condition in a thread without an event loop, but not for ever."""
    limit = time.monotonic() + HANG_S
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.001)
