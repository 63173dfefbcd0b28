"""The end of a process that does not stop: a second SIGTERM or SIGINT ends it."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
CLOSING_S = 5.0
"""Seconds that a process may take to close after the second signal."""


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
