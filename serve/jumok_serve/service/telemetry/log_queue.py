"""Bounded queue of log lines, written by a thread: a reader that is slow or stuck holds up no call."""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from typing import Any

MAX_QUEUED_CHARACTERS = 8 * 2**20
"""Characters of all queued lines together: some 50,000 calls, or a few with the texts of large requests."""
FLUSH_S = 2.0
"""Seconds that queued lines have at the end of the process."""

Write = Callable[[str], None]


class _Lines(Queue[Any]):
    """Queue whose size is the number of characters of its lines."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._characters = 0

    def _qsize(self) -> int:
        return self._characters

    def _put(self, item: Any) -> None:
        super()._put(item)
        self._characters += _size(item)

    def _get(self) -> Any:
        item = super()._get()
        self._characters -= _size(item)
        return item


def _size(line: str | None) -> int:
    return 1 if line is None else len(line)


class QueuedHandler(QueueHandler):
    """Handler that formats a record in the thread that logs it, and queues the line.

    Attributes:
        dropped: number of lines that found the queue full.
    """

    def __init__(self) -> None:
        super().__init__(_Lines(MAX_QUEUED_CHARACTERS))
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> Any:
        """Return the line of a record."""
        return f"{self.format(record)}\n"

    def enqueue(self, record: Any) -> None:
        """Queue a line, or count it; `logging` holds the handler's lock."""
        try:
            self.queue.put_nowait(record)
        except Full:
            self.dropped += 1


class _Writer(QueueListener):
    """Thread that writes the lines of a handler.

    After the first line that follows dropped ones, it writes their number.
    """

    def __init__(self, handler: QueuedHandler, write: Write) -> None:
        super().__init__(handler.queue)
        self._lines: Queue[Any] = handler.queue  # type: ignore[assignment]  # its types allow less than it makes
        self._handler = handler
        self._write = write
        self._reported = 0

    def handle(self, record: Any) -> None:
        """Write a line."""
        self._write(record)
        dropped = self._handler.dropped
        if dropped > self._reported:
            lost, self._reported = dropped - self._reported, dropped
            lines = "1 line was" if lost == 1 else f"{lost} lines were"
            message = f"{lines} dropped: standard error was not read in time"
            record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, None, None)
            self._write(self._handler.prepare(record))

    def enqueue_sentinel(self) -> None:
        """Queue the end, once there is room."""
        self._lines.put(None)


@contextmanager
def writing(handler: QueuedHandler, write: Write) -> Iterator[None]:
    """Write a handler's lines in a thread; at the end, wait `FLUSH_S` seconds at most for queued ones."""
    writer = _Writer(handler, write)
    writer.start()
    try:
        yield
    finally:
        # A thread that writes into a full pipe may never end; it ends with the process.
        stopping = threading.Thread(target=writer.stop, name="log-stop", daemon=True)
        stopping.start()
        stopping.join(FLUSH_S)


def stderr_writer() -> Write:
    """Return a function that writes to standard error.

    It does not use the stream's buffer: a thread that waits within its lock would abort the process at its end.
    """
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError):  # replaced by a stream without a descriptor, as tests do
        return lambda line: print(line, end="", file=sys.stderr, flush=True)

    def write(line: str) -> None:
        left = memoryview(line.encode("utf-8", "backslashreplace"))
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError:  # closed: the log has no reader
            pass

    return write


def dropped_lines() -> int:
    """Return the number of log lines of this process that were dropped."""
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, QueuedHandler))
