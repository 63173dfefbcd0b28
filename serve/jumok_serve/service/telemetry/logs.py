"""Logs, written by a thread of their own."""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from types import TracebackType
from typing import Any

from jumok_proto.errors import printable
from jumok_serve.service.rpc.call import CALL, HEALTH_METHODS, Call

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


calls = logging.getLogger("jumok_serve.calls")

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FIELDS = "fields"
"""Attribute of a record with further JSON fields."""


@contextmanager
def logging_to_stderr(*, log_format: str, level: str) -> Iterator[None]:
    """Log to standard error, in a thread: a reader that does not read holds up nothing else."""
    handler = QueuedHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("grpc._cython.cygrpc").addFilter(CALLERS_FAULTS)
    logging.captureWarnings(True)
    try:
        with writing(handler, stderr_writer()):
            yield
    finally:
        logging.captureWarnings(False)


class _CallersFaults(logging.Filter):
    """Downgrades gRPC's errors about callers to debug level: nothing of the server's has failed.

    They cancel during the response, and such calls are counted as cancelled; or their metadata is no UTF-8, and gRPC
    reads it as Latin-1.
    """

    _MESSAGES = ("ExecuteBatchError raised in core", "Invalid encoding on")

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith(self._MESSAGES):
            record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        return True


CALLERS_FAULTS = _CallersFaults()


class TextFormatter(logging.Formatter):
    """Formats a record as a line; those of a traceback follow, indented.

    Messages hold names and texts of callers and files, so line ends and control characters in them are escaped.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the base class
        """Format the first line of a record."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(  # noqa: N802 - of the base class
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """Format a traceback."""
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - of the base class
        """Format a stack."""
        return _indented(super().formatStack(stack_info))


def _indented(lines: str) -> str:
    return "\n".join(f"  {printable(line)}" for line in lines.split("\n"))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, message, request id."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        call = CALL.get(None)
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if call is not None:
            fields["request_id"] = call.request_id
        extra = getattr(record, FIELDS, None)
        if isinstance(extra, Mapping):
            fields |= extra
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return printable_json(fields)


class CallLog:
    """Logs calls when they end."""

    def __init__(self, *, texts: bool) -> None:
        self._texts = texts

    def ended(self, call: Call) -> None:
        """Log a call, but health checks only if they fail."""
        if call.code == "OK" and call.method.startswith(HEALTH_METHODS):
            return
        fields: dict[str, object] = {
            "method": call.method,
            "code": call.code,
            "duration_s": round(call.duration_s, 6),
            "request_id": call.request_id,
            "peer": call.peer,
        }
        if call.caller:
            fields["caller"] = call.caller
        if call.reason:
            fields["reason"] = call.reason
        if self._texts:
            record = {"contents": call.record.contents, "targets": call.record.targets}
            fields |= {name: list(texts) for name, texts in record.items() if texts}
        words = " ".join(f"{name}={_word(value)}" for name, value in fields.items() if name not in {"method", "code"})
        calls.info("%s %s %s", call.method, call.code, words, extra={FIELDS: fields})


def _word(value: object) -> str:
    """Return a value as one word: in quotes unless it is plain."""
    word = str(value)
    if isinstance(value, list) or not word or any(one.isspace() or one in '"=' for one in word):
        return printable_json(value)
    return word


def printable_json(value: object) -> str:
    """Return JSON in one printable line."""
    written = json.dumps(value, ensure_ascii=False, default=str)
    if written.isprintable():
        return written
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in written)
