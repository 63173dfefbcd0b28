"""Logging: text lines, or one JSON object per line."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType

from google.protobuf.message import Message

from jumok_proto.errors import printable
from jumok_serve.service.rpc.call import CALL, HEALTH_METHODS, Call
from jumok_serve.service.telemetry.log_queue import QueuedHandler, stderr_writer, writing

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
            fields |= {name: texts for name in ("contents", "targets") if (texts := _texts(call.request, name))}
        words = " ".join(f"{name}={_word(value)}" for name, value in fields.items() if name not in {"method", "code"})
        calls.info("%s %s %s", call.method, call.code, words, extra={FIELDS: fields})


def _texts(request: Message | None, name: str) -> list[str]:
    return list(getattr(request, name, ()))


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
