"""Stop of a server at SIGTERM or SIGINT."""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NoReturn, Protocol, TypeAlias

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

CLOSING_S = 5.0
"""Seconds that a process may take to close after the grace."""

Signals: TypeAlias = "asyncio.Queue[signal.Signals]"


def end_after(grace_s: float) -> None:
    """End this process with status 1, `CLOSING_S` after a grace, if it still runs then.

    The end waits for no thread, and not for Python's lock: native code may hold it.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)  # open until the end: tracebacks of threads go there
    faulthandler.dump_traceback_later(min(grace_s + CLOSING_S, threading.TIMEOUT_MAX), exit=True, file=nowhere)


def stop_before_serving(*_: object) -> NoReturn:
    """Handle SIGTERM in a process that serves nothing yet: it ends with status 0."""
    end_after(0)
    sys.exit(0)


class Stoppable(Protocol):
    """A server that can stop in an orderly way."""

    async def start(self) -> None:
        """Listen and serve.

        Raises:
            ListenError: the address cannot be bound.
            CredentialsError: the certificates are unusable.
        """

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, wait ``grace_s`` seconds for open ones, then cancel the rest; may be called again."""


@contextmanager
def received_signals() -> Iterator[Signals]:
    """Put stop signals into a queue, in the event loop; call it in the main thread."""
    loop = asyncio.get_running_loop()
    signals: Signals = asyncio.Queue()

    def received(number: int, _: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(signals.put_nowait, signal.Signals(number))

    # Not loop.add_signal_handler: its wakeup descriptor would replace that of the `jumok` command.
    before = {number: signal.signal(number, received) for number in STOP_SIGNALS}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def serve_until_stopped(
    server: Stoppable,
    signals: Signals,
    grace_s: float,
    on_start: Callable[[], AbstractContextManager[None]],
    *,
    on_stop: Callable[[], None] = lambda: None,
    wait_failed: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until a signal, and finish open calls; a second signal cancels them.

    Args:
        grace_s: time for open calls after the first signal, in seconds.
        on_start: context to keep open while serving.
        on_stop: called at the first signal.
        wait_failed: raises what ends the server without a stop; returns after a stop.

    Raises:
        ListenError: the address cannot be bound.
        CredentialsError: the certificates are unusable.
        Exception: that of ``wait_failed``.
    """
    await server.start()
    with on_start():
        received = asyncio.ensure_future(signals.get())
        failed = asyncio.ensure_future(received if wait_failed is None else wait_failed())
        await asyncio.wait({received, failed}, return_when=asyncio.FIRST_COMPLETED)
        if not received.done():
            received.cancel()
            await server.stop(0)
            await failed
            return
        on_stop()
        logger.info(
            "%s: finishing open calls, for %g s at most; the process ends %g s later in any case",
            received.result().name,
            grace_s,
            CLOSING_S,
        )
        stopping = asyncio.ensure_future(server.stop(grace_s))
        again = asyncio.ensure_future(signals.get())
        await asyncio.wait({stopping, again}, return_when=asyncio.FIRST_COMPLETED)
        if again.done():
            await server.stop(0)
        again.cancel()
        await stopping
        await failed
