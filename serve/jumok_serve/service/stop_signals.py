"""Stop of a server at SIGTERM or SIGINT, and the end of a process that does not stop at a second one."""

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol, TypeAlias

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
CLOSING_S = 5.0
"""Seconds that a process may take to close after the second signal."""


Signals: TypeAlias = "asyncio.Queue[signal.Signals]"


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

    # Not loop.add_signal_handler: its wakeup descriptor would replace that of `ending_at_second_signal`.
    before = {number: signal.signal(number, received) for number in STOP_SIGNALS}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def serve_until_stopped(
    server: Stoppable, signals: Signals, grace_s: float, on_start: Callable[[], AbstractContextManager[None]]
) -> None:
    """Serve until a signal, and finish open calls; a second signal cancels them.

    Args:
        grace_s: time for open calls after the first signal, in seconds.
        on_start: context to keep open while serving.
    """
    await server.start()
    with on_start():
        received = await signals.get()
        logger.info("%s: finishing open calls, for %g s at most", received.name, grace_s)
        stopping = asyncio.ensure_future(server.stop(grace_s))
        again = asyncio.ensure_future(signals.get())
        await asyncio.wait({stopping, again}, return_when=asyncio.FIRST_COMPLETED)
        if again.done():
            await server.stop(0)
        again.cancel()
        await stopping


@contextmanager
def ending_at_second_signal(closing_s: float = CLOSING_S) -> Iterator[None]:
    """End the process `closing_s` seconds after a second stop signal.

    A thread counts signals, so that the main thread may be stuck in native code. Call it in the main thread,
    with Python handlers of both signals set. No other code may set a wakeup descriptor.
    """
    received, written = socket.socketpair()
    written.setblocking(False)
    before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(received, closing_s), name="stop signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        written.close()


def _watch(received: socket.socket, closing_s: float) -> None:
    stops = 0
    with received:
        while numbers := received.recv(64):
            stops += sum(number in STOP_SIGNALS for number in numbers)
            if stops >= 2:
                break
        else:
            return
        end = time.monotonic() + closing_s
        while (left := end - time.monotonic()) > 0:  # further signals change nothing
            received.settimeout(left)
            try:
                if not received.recv(64):
                    return
            except TimeoutError:
                break
    logger.error("still closing %g s after the second signal; the process ends now", closing_s)
    os._exit(1)
