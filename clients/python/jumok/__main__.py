"""The ``jumok`` command, also ``python -m jumok``; a second Ctrl-C or SIGTERM always ends it."""

import atexit
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
CLOSING_S = 5.0
"""Seconds that a process may take to close after the second signal."""
_STDERR = 2
FIRST_FREE = 3
"""First file number after the standard streams."""


def main() -> NoReturn:
    """Run the command line and exit with its code; a second Ctrl-C or SIGTERM always ends the process."""
    end_at_second_signal()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, who then wants no output
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives
    try:
        from jumok.commands._main import INTERRUPTED, run  # noqa: PLC0415 - not every installation has click
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print("jumok: the command line needs click; install it with: pip install 'jumok[cli]'", file=sys.stderr)
        sys.exit(2)
    code = run(sys.argv[1:])
    if code == INTERRUPTED:  # native threads may still compute, and would crash while libraries are taken down
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def end_at_second_signal(closing_s: float = CLOSING_S) -> None:
    """End this process with status 1, `closing_s` seconds after a second stop signal.

    A thread counts signals, so that the main thread may be stuck in native code. A signal counts if Python has a
    handler for it. Call it in the main thread; no other code may set a wakeup descriptor. On Windows it does nothing.
    """
    if sys.platform == "win32":
        return
    received, written = map(_above_standard_streams, socket.socketpair())
    written.setblocking(False)
    signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget)  # Ctrl-C reaches forked children too, and would count twice
    threading.Thread(target=_watch, args=(received, written, closing_s), name="stop signals", daemon=True).start()


def _above_standard_streams(end: socket.socket) -> socket.socket:
    """Give a socket another number than those of standard streams, which a caller may have closed."""
    from fcntl import F_DUPFD_CLOEXEC, fcntl  # noqa: PLC0415 - Windows does not have it

    with end:
        return socket.socket(fileno=fcntl(end, F_DUPFD_CLOEXEC, FIRST_FREE))


def _forget() -> None:
    with suppress(ValueError):  # forked by another thread than the main one
        signal.set_wakeup_fd(-1)


def _watch(received: socket.socket, _written: socket.socket, closing_s: float) -> None:
    """Count signals; the written end stays open as long as this runs."""
    stops = 0
    while stops < 2:
        stops += sum(number in STOP_SIGNALS for number in received.recv(64))
    time.sleep(closing_s)
    message = f"Error: still closing {closing_s:g} s after the second signal; the process ends now\n"
    with suppress(OSError):
        if select.select([], [_STDERR], [], 0)[1]:  # else the reader of a pipe does not read
            os.write(_STDERR, message.encode())
    os._exit(1)


if __name__ == "__main__":
    main()
