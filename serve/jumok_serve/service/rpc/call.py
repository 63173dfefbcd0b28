"""State of a call while it is answered."""

import random
import re
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import unquote

from google.protobuf.message import Message

from jumok_serve.service.rpc.open_calls import OpenCalls

REQUEST_ID = "x-request-id"
"""Metadata key of the request id, in requests and in responses."""
HEALTH_METHODS = "/grpc.health.v1.Health/"
"""Prefix of health checks, which need no token and are answered under any load."""
_USABLE_ID = re.compile(r"[!#-<>-\[\]-~]{1,128}")
"""A caller's id that logs can show: visible ASCII without quotation mark, equals sign and backslash."""


@dataclass(slots=True, kw_only=True)
class Call:
    """A call from its arrival to its end.

    Attributes:
        method: full name, ``/jumok.v1.TranslationService/TranslateText``.
        request_id: id in logs, traces and errors.
        peer: the caller's address in gRPC's notation.
        metadata: the caller's metadata; the last value of a repeated key.
        caller: name of the caller's token; empty without tokens.
        request: the request, if it is a single message that was read.
        counted_by: count of open calls that holds the call; None before it is admitted.
        response: last message of the response.
        started: arrival, in ``time.monotonic()`` seconds.
        duration_s: duration, set at the end.
        code: name of the final status, set at the end.
        reason: reason of a refusal or failure, in capitals; empty after success or cancellation.
    """

    method: str
    request_id: str
    peer: str = ""
    metadata: dict[str, str | bytes] = field(default_factory=dict)
    caller: str = ""
    request: Message | None = None
    counted_by: OpenCalls | None = None
    response: Message | None = None
    started: float = field(default_factory=time.monotonic)
    duration_s: float = 0.0
    code: str = ""
    reason: str = ""

    @property
    def account(self) -> str:
        """Party whose share of the server the call uses: the token, or the address without tokens."""
        return self.caller or _network(self.peer.rpartition(":")[0])


@lru_cache(4096)
def _network(address: str) -> str:
    """Return an address without its port; of IPv6 the network of 64 bits, which one host may have all of."""
    kind, _, host = address.partition(":")
    if kind != "ipv6":
        return address
    try:
        full = ip_address(unquote(host).strip("[]").partition("%")[0])
    except ValueError:
        return address
    return f"ipv6:{full.packed[:8].hex()}"


CALL: ContextVar[Call] = ContextVar("call")
"""Call that the current task answers."""


def current_request_id() -> str:
    """Request id of the current call, or a new one outside of calls."""
    call = CALL.get(None)
    return _new_request_id() if call is None else call.request_id


def current_caller() -> str:
    """Key of the current call's caller: name of its token, else its address; empty outside of calls."""
    call = CALL.get(None)
    return "" if call is None else call.account


def request_id_from(metadata: dict[str, str | bytes]) -> str:
    """Request id that the caller chose, or a new one instead of an unusable id."""
    given = metadata.get(REQUEST_ID)
    return given if isinstance(given, str) and _USABLE_ID.fullmatch(given) else _new_request_id()


_IDS = random.Random()  # noqa: S311 - an id is no secret
"""Seeded once: a system call for each id would release the GIL and wait for it again."""


def _new_request_id() -> str:
    return f"{_IDS.getrandbits(128):032x}"
