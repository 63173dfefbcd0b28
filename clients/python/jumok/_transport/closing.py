"""The end of a connection: wakes waiting threads, and cancels calls of tasks."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jumok_proto.errors import CallCancelledError


class Closing:
    """The end of a connection that threads share."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    @property
    def closed(self) -> bool:
        """True after the end."""
        return self._closed.is_set()

    def close(self) -> None:
        """End the connection."""
        self._closed.set()

    def sleep(self, delay_s: float) -> None:
        """Wait, at most until the end."""
        self._closed.wait(delay_s)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Enclose a call; gRPC itself reports the end to threads."""
        yield


class AsyncClosing:
    """The end of a connection that tasks share."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        """End the connection."""
        self.closed = True

    async def sleep(self, delay_s: float) -> None:
        """Wait."""
        await asyncio.sleep(delay_s)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Enclose a call; the end of the connection raises CallCancelledError."""
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.closed and task is not None and not task.cancelling():
                raise CallCancelledError("the client was closed") from None
            raise


@contextmanager
def cancelled_at_exit(call: Any) -> Iterator[None]:
    """Cancel a call at the end of the block, unless it has ended."""
    try:
        yield
    finally:
        call.cancel()
