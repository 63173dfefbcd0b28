"""The end of a connection: for threads, which wait for it, and for tasks, whose calls it cancels."""

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
        """Enclose a call; raise CallCancelledError if the end, and not the task's own cancellation, cancels it."""
        try:
            yield
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if self.closed and task is not None and not task.cancelling():
                raise CallCancelledError("the client was closed") from error
            raise


@contextmanager
def cancelled_at_exit(call: Any) -> Iterator[None]:
    """Cancel a call of either kind at the end of the block; after its own end this does nothing."""
    try:
        yield
    finally:
        call.cancel()
