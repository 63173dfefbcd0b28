"""What the server logs, and how: lines for people, or one JSON object a line."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

from google.protobuf.message import Message

from jumok_serve.service.rpc.call import CALL, HEALTH, Call

calls = logging.getLogger("jumok_serve.calls")

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FIELDS = "fields"
"""The attribute of a record that holds what JSON has besides its message."""


def configure_logging(*, log_format: str, level: str) -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("grpc._cython.cygrpc").addFilter(DEPARTED)


class _Departed(logging.Filter):
    """Takes for details what gRPC says, as an error, of callers who have left just as they were answered.

    They are counted as calls that were cancelled, and nothing has failed.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record."""
        if str(record.msg).startswith("ExecuteBatchError raised in core"):
            record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        return True


DEPARTED = _Departed()


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time, level, logger, message, and the request's id where one is answered."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        call = CALL.get(None)
        written: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if call is not None:
            written["request_id"] = call.request_id
        fields = getattr(record, FIELDS, None)
        if isinstance(fields, Mapping):
            written |= fields
        if record.exc_info:
            written["exception"] = self.formatException(record.exc_info)
        return json.dumps(written, ensure_ascii=False, default=str)


class CallLog:
    """Logs calls when they end.

    Args:
        texts: log what was asked too.
    """

    def __init__(self, *, texts: bool) -> None:
        self._texts = texts

    def ended(self, call: Call) -> None:
        """Log a call; of health checks, which never end, only those that fail."""
        if call.code == "OK" and call.method.startswith(HEALTH):
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
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
