"""What is known of a call while it is answered."""

import random
import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from google.protobuf.message import Message

REQUEST_ID = "x-request-id"
"""Metadata: what callers name their call, and what they are told that its name is."""
HEALTH = "/grpc.health.v1.Health/"
"""Methods that are asked by what has no token, often, and when the server is busy."""
MAX_REQUEST_ID = 128
"""Characters of a name that is taken over."""


@dataclass(slots=True, kw_only=True)
class Call:
    """A call from its arrival to its end.

    Attributes:
        method: as gRPC spells it, ``/jumok.v1.TranslationService/TranslateText``.
        request_id: its name in logs, traces and errors.
        peer: the address that it came from, as gRPC spells it.
        metadata: what came with it; of a repeated key the last.
        caller: name of the token that came with it; empty without tokens.
        request: what was asked, where that is one message.
        response: the last message of the answer.
        started: when it arrived, in ``time.monotonic()`` seconds.
        duration_s: how long it took, once it has ended.
        code: name of the status that it ended with.
        reason: why it was refused or failed, in capitals; empty where it was answered or given up.
    """

    method: str
    request_id: str
    peer: str = ""
    metadata: dict[str, str | bytes] = field(default_factory=dict)
    caller: str = ""
    request: Message | None = None
    response: Message | None = None
    started: float = field(default_factory=time.monotonic)
    duration_s: float = 0.0
    code: str = ""
    reason: str = ""


CALL: ContextVar[Call] = ContextVar("call")
"""The call that this task answers."""


def current_request_id() -> str:
    """Name the call that is answered, in the log and to its caller."""
    call = CALL.get(None)
    return _new_request_id() if call is None else call.request_id


def request_id_of(metadata: dict[str, str | bytes]) -> str:
    """The name that a caller gave, or a new one."""
    given = metadata.get(REQUEST_ID)
    return given if isinstance(given, str) and 0 < len(given) <= MAX_REQUEST_ID else _new_request_id()


_IDS = random.Random()  # noqa: S311 - an id is no secret
"""Seeded by the system once: a system call for each id would let go of Python's lock, and wait for it again."""


def _new_request_id() -> str:
    return f"{_IDS.getrandbits(128):032x}"
