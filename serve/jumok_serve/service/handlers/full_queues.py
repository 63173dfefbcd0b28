"""Waiting for room in a full queue."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from jumok_proto.errors import OverloadedError, RateLimitedError
from jumok_serve.engine.admission import RETRY_AFTER_S

FIRST_RETRY_S = 0.05
"""Wait after a full queue, in seconds; doubles at each retry, up to RETRY_AFTER_S."""

Result = TypeVar("Result")


async def submit_when_there_is_room(submit: Callable[[], Awaitable[Result]]) -> Result:
    """Submit, with retries while the queue is full or the caller too fast."""
    wait_s = FIRST_RETRY_S
    while True:
        try:
            return await submit()
        except (OverloadedError, RateLimitedError) as error:
            fast = error.retry_after_s if isinstance(error, RateLimitedError) else None
            await asyncio.sleep(min(fast or wait_s, RETRY_AFTER_S))
            wait_s = min(2 * wait_s, RETRY_AFTER_S)
