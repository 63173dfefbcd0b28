"""State of a call while it is answered."""

import heapq
import random
import re
import time
from collections.abc import Awaitable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from google.protobuf.message import Message

from jumok_proto.results import Timings, Translation
from jumok_serve.service.address import account_of
from jumok_serve.service.rpc.open_calls import OpenCalls
from jumok_serve.service.rpc.unread_responses import UnreadResponses

REQUEST_ID = "x-request-id"
"""Metadata key of the request id, in requests and in responses."""
HEALTH_METHODS = "/grpc.health.v1.Health/"
"""Prefix of health checks, which need no token and are answered under any load."""
_USABLE_ID = re.compile(r"[!#-<>-\[\]-~]{1,128}")
"""A caller's id that logs can show: visible ASCII without quotation mark, equals sign and backslash."""


SLOWEST_ITEMS = 16
"""Items of a corpus whose times are kept for observers."""


class ItemTimes(NamedTuple):
    """Times of one item of a corpus in seconds, compared by the total."""

    total_s: float
    ended: float
    """Time of the result, in ``time.monotonic()`` seconds."""
    id: int
    queue_s: float
    encode_s: float
    decode_s: float


@dataclass(slots=True)
class CorpusRecord:
    """Translated items of a corpus call: sums, and the slowest items.

    Attributes:
        slowest: heap with the fastest of the slowest items first.
    """

    texts: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    model: str = ""
    slowest: list[ItemTimes] = field(default_factory=list)

    def add(self, item: int, translation: Translation, timings: Timings) -> None:
        """Count the result of an item, which is sent now."""
        self.texts += 1
        self.input_tokens += translation.source_token_count
        self.output_tokens += translation.output_token_count
        self.model = translation.model
        full = len(self.slowest) == SLOWEST_ITEMS
        if full and timings.total_s <= self.slowest[0].total_s:
            return
        now = time.monotonic()
        times = ItemTimes(timings.total_s, now, item, timings.queue_s, timings.encode_s, timings.decode_s)
        (heapq.heapreplace if full else heapq.heappush)(self.slowest, times)


class Write(Protocol):
    """Writer of the messages of a streamed response."""

    def __call__(self, message: Message, /, *, counted: bool = False) -> Awaitable[None]:
        """Write a message; raises as `responses.write_response`.

        Args:
            counted: True to count it until it is read.
        """


def closed(message: Message, /, *, counted: bool = False) -> Awaitable[None]:
    """Refuse a message of a call that is not open, or has one response."""
    raise RuntimeError("this call takes no message")


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
        unread: bounds responses until they are read; None: others do.
        counted_by: count of open calls that holds the call; None before it is admitted.
        response: last message of the response.
        corpus: results of a corpus; None for other calls.
        deadline: last moment for the response, in ``time.monotonic()`` seconds; None: no limit.
        write: writes a message of a streamed response.
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
    unread: UnreadResponses | None = None
    counted_by: OpenCalls | None = None
    response: Message | None = None
    corpus: CorpusRecord | None = None
    deadline: float | None = None
    write: Write = closed
    started: float = field(default_factory=time.monotonic)
    duration_s: float = 0.0
    code: str = ""
    reason: str = ""

    @property
    def account(self) -> str:
        """Party whose share of the server the call uses: the token, or the address without tokens."""
        return self.caller or account_of(self.peer)


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


def current_peer() -> str:
    """Address of the current call's connection in gRPC's notation; empty outside of calls."""
    call = CALL.get(None)
    return "" if call is None else unquote(call.peer)  # gRPC quotes the brackets of IPv6


def current_owner() -> str:
    """Owner of the current call's glossaries: name of its token; empty without tokens."""
    call = CALL.get(None)
    return "" if call is None else call.caller


def record_items() -> CorpusRecord:
    """Start the record of the items of the current call."""
    record = CorpusRecord()
    call = CALL.get(None)
    if call is not None:
        call.corpus = record
    return record


def request_id_from(metadata: dict[str, str | bytes]) -> str:
    """Request id that the caller chose, or a new one instead of an unusable id."""
    given = metadata.get(REQUEST_ID)
    return given if isinstance(given, str) and _USABLE_ID.fullmatch(given) else _new_request_id()


_IDS = random.Random()  # noqa: S311 - an id is no secret
"""Seeded once: a system call for each id would release the GIL and wait for it again."""


def _new_request_id() -> str:
    return f"{_IDS.getrandbits(128):032x}"
