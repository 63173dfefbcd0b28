"""Stop of a server at SIGTERM or SIGINT."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol, TypeAlias

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

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
    wait_failed: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until a signal, and finish open calls; a second signal cancels them.

    Args:
        grace_s: time for open calls after the first signal, in seconds.
        on_start: context to keep open while serving.
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
        logger.info("%s: finishing open calls, for %g s at most", received.result().name, grace_s)
        stopping = asyncio.ensure_future(server.stop(grace_s))
        again = asyncio.ensure_future(signals.get())
        await asyncio.wait({stopping, again}, return_when=asyncio.FIRST_COMPLETED)
        if again.done():
            await server.stop(0)
        again.cancel()
        await stopping
        await failed
