"""Logging: text lines, or one JSON object per line."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

from google.protobuf.message import Message

from jumok_serve.service.rpc.call import CALL, HEALTH_METHODS, Call

calls = logging.getLogger("jumok_serve.calls")

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FIELDS = "fields"
"""Attribute of a record with further JSON fields."""


def configure_logging(*, log_format: str, level: str) -> None:
    """Log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("grpc._cython.cygrpc").addFilter(CANCELLED_CALLS)


class _CancelledCalls(logging.Filter):
    """Downgrades gRPC's error about callers that cancel during the response to debug level.

    Such calls are counted as cancelled; nothing has failed.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("ExecuteBatchError raised in core"):
            record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        return True


CANCELLED_CALLS = _CancelledCalls()


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time, level, logger, message, request id."""

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
        return json.dumps(fields, ensure_ascii=False, default=str)


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
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
