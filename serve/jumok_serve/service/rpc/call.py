"""Calls in any protocol: their state, access, admission, and observers."""

import asyncio
import heapq
import logging
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, Self
from urllib.parse import unquote

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from jumok_proto.errors import (
    InternalError,
    JumokError,
    OverloadedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from jumok_proto.results import Timings, Translation
from jumok_serve.engine.statistics import REFUSAL_SECONDS, SECONDS, Histogram
from jumok_serve.service.auth.tokens import SCOPES, TokenFile
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.statuses import drop_frames, is_expected
from jumok_serve.share import RETRY_AFTER_S, OpenCalls, RateLimiter, account_of

REQUEST_ID = "x-request-id"
"""Metadata key of the request id, in requests and in responses."""
HEALTH_METHODS = "/grpc.health.v1.Health/"
"""Prefix of health checks, which need no token and are answered under any load."""
logger = logging.getLogger(__name__)
_USABLE_ID = re.compile(r"[!#-<>-\[\]-~]{1,128}")
"""A caller's id that logs can show: visible ASCII without quotation mark, equals sign and backslash."""


SLOWEST_ITEMS = 16
"""Items of a corpus whose times are kept."""


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
class Record:
    """What observers see of a call's texts and results; written by the event loop.

    Attributes:
        contents, targets: texts of a request; None: it has none, or is a corpus.
        texts: number of texts; of a corpus, of its results.
        model: model of a request's first result, or of the last one of a corpus; empty: none was translated.
        timings: longest times of a request's texts.
        slowest: slowest items of a corpus, a heap with the fastest of them first.
    """

    contents: Sequence[str] | None = None
    targets: Sequence[str] | None = None
    texts: int | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    model: str = ""
    timings: Timings | None = None
    slowest: list[ItemTimes] = field(default_factory=list)

    @property
    def is_corpus(self) -> bool:
        """True if texts come one after the other."""
        return self.contents is None and self.texts is not None

    def note(self, contents: Sequence[str], targets: Sequence[str] = ()) -> None:
        """Note the texts of a request."""
        self.contents, self.targets, self.texts = contents, targets, len(contents)

    def add_request(self, counts: "Counts") -> None:
        """Count the results of a request."""
        self.model, self.input_tokens, self.output_tokens, self.timings = counts

    def add(self, item: int, translation: Translation, timings: Timings) -> None:
        """Count the result of an item, which is sent now."""
        self.texts = (self.texts or 0) + 1
        self.input_tokens += translation.source_token_count
        self.output_tokens += translation.output_token_count
        self.model = translation.model
        full = len(self.slowest) == SLOWEST_ITEMS
        if full and timings.total_s <= self.slowest[0].total_s:
            return
        now = time.monotonic()
        times = ItemTimes(timings.total_s, now, item, timings.queue_s, timings.encode_s, timings.decode_s)
        (heapq.heapreplace if full else heapq.heappush)(self.slowest, times)


class Counts(NamedTuple):
    """What a record has of the results of a request."""

    model: str
    input_tokens: int
    output_tokens: int
    timings: Timings

    @classmethod
    def of(cls, translations: Sequence[Translation], timings: Timings) -> Self:
        """Count the tokens of translations."""
        return cls(
            translations[0].model if translations else "",
            sum(one.source_token_count for one in translations),
            sum(one.output_token_count for one in translations),
            timings,
        )


class Write(Protocol):
    """Writer of the messages of a streamed response."""

    def __call__(self, message: Message, /, *, counted: bool = False) -> Awaitable[None]:
        """Write a message; raises as `interceptor.write_response`.

        Args:
            counted: True to count it until it is read.
        """


def closed(message: Message, /, *, counted: bool = False) -> Awaitable[None]:
    """Refuse a message of a call that is not open, or has one response."""
    raise RuntimeError("this call takes no message")


async def written(call: Callable[[Write], Awaitable[object]]) -> AsyncGenerator[Message]:
    """Yield the messages that a call writes, and raise its exception after them.

    Closing this generator cancels the call.

    Args:
        call: writes messages with the function that it gets, which returns once the message before was taken.
    """
    messages: asyncio.Queue[Message] = asyncio.Queue(1)  # a reader that is slow gets fewer messages

    async def write(message: Message, /, *, counted: bool = False) -> None:
        await messages.put(message)

    calling = asyncio.ensure_future(call(write))
    try:
        while not calling.done() or not messages.empty():
            getting = asyncio.ensure_future(messages.get())
            try:
                await asyncio.wait({getting, calling}, return_when=asyncio.FIRST_COMPLETED)
                if getting.done() or not messages.empty():
                    yield await getting
            finally:
                getting.cancel()
        await calling
    finally:
        calling.cancel()


def full_name(method: MethodDescriptor) -> str:
    """Return the name of a method on the wire, ``/jumok.v1.TranslationService/TranslateText``."""
    return f"/{method.containing_service.full_name}/{method.name}"


@dataclass(slots=True, kw_only=True)
class Call:
    """A call from its arrival to its end.

    Attributes:
        method: name on the wire.
        request_id: id in logs, traces and errors.
        peer: the caller's address in gRPC's notation.
        metadata: the caller's metadata; the last value of a repeated key.
        caller: name of the caller's token; empty without tokens.
        counted_by: count of open calls that holds the call; None before it is admitted.
        record: its texts and results.
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
    counted_by: OpenCalls | None = None
    record: Record = field(default_factory=Record)
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


def current_record() -> Record:
    """Record of the current call; one that has no reader if there is no call."""
    call = CALL.get(None)
    return Record() if call is None else call.record


def is_cancelled() -> bool:
    """True if the current task was cancelled, and not a part of its work alone."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def request_id_from(metadata: dict[str, str | bytes]) -> str:
    """Request id that the caller chose, or a new one instead of an unusable id."""
    given = metadata.get(REQUEST_ID)
    return given if isinstance(given, str) and _USABLE_ID.fullmatch(given) else _new_request_id()


_IDS = random.Random()  # noqa: S311 - an id is no secret
"""Seeded once: a system call for each id would release the GIL and wait for it again."""


def _new_request_id() -> str:
    return f"{_IDS.getrandbits(128):032x}"


SCOPES_BY_SERVICE = {
    "jumok.v1.TranslationService": frozenset({"translate"}),
    "jumok.v1.FileService": frozenset({"translate"}),
    "jumok.v1.GlossaryService": frozenset({"translate"}),
    "jumok.v1.ModelService": SCOPES,
    "grpc.reflection.v1.ServerReflection": SCOPES,
    "grpc.reflection.v1alpha.ServerReflection": SCOPES,
}
"""Scopes that open a service; other services need ADMIN."""
ADMIN = frozenset({"admin"})
BEARER = "Bearer "
WATCHES = frozenset(
    {f"{HEALTH_METHODS}Watch"}
    | {f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")}
)
"""Calls that stay open and do no work; they do not use up the room of other calls."""
CORPUS = "/jumok.v1.TranslationService/TranslateCorpus"
"""Calls that keep a request in memory as long as they are open."""


class CallCounts:
    """Counters of ended calls; written by the event loop, read by any thread.

    Attributes:
        ended_with: number of calls by method and status.
        duration_s: durations by method, in seconds.
        refused_s: durations of refused and failed calls by reason, in seconds.
    """

    def __init__(self) -> None:
        self.ended_with: Counter[tuple[str, str]] = Counter()
        self.duration_s = defaultdict[str, Histogram](partial(Histogram, SECONDS))
        self.refused_s = defaultdict[str, Histogram](partial(Histogram, REFUSAL_SECONDS))

    def ended(self, call: Call) -> None:
        """Count a call."""
        self.ended_with[call.method, call.code] += 1
        self.duration_s[call.method].observe(call.duration_s)
        if call.reason:
            self.refused_s[call.reason].observe(call.duration_s)


class CallObserver(Protocol):
    """Observer of ended calls, called in the event loop."""

    def ended(self, call: Call) -> None:
        """Handle a call that has ended in any way."""


class CallGate:
    """Admits calls by their number, token and rate, and observes their ends.

    Args:
        tokens: accepted tokens; None: calls need none.
        full: by method, a function that is true while the method's queue is full for a caller. Its calls are then
            refused before the request is read: under overload most are, and reading them would take time from the
            others.

    Attributes:
        needs_token: True if calls need a token.
        open_calls: number of open calls, health checks included.
    """

    def __init__(
        self,
        limits: ServiceLimits,
        tokens: TokenFile | None,
        observers: Sequence[CallObserver],
        full: Mapping[str, Callable[[str], bool]],
    ) -> None:
        self._calls = OpenCalls("calls", limits.max_calls, limits.max_calls_of_caller)
        self._corpora = OpenCalls("corpora", limits.max_corpora, max(1, limits.max_corpora // 2))
        half = max(1, limits.max_watches // 2)
        self._watches = OpenCalls("watches and reflections", limits.max_watches, half)
        self._checks = OpenCalls("health checks", limits.max_watches, half)
        self._tokens = tokens
        self._wrong_tokens = RateLimiter(limits.wrong_tokens_per_second)
        rate = limits.requests_per_second
        self._limiter = None if rate is None else RateLimiter(rate, limits.request_burst)
        self._observers = observers
        self._full = full
        self.needs_token = tokens is not None
        self.open_calls = 0

    @contextmanager
    def opened(self, call: Call) -> Iterator[None]:
        """Make a call the current one until its end; its code is set by then."""
        CALL.set(call)  # visible to the current task only
        self.open_calls += 1
        try:
            yield
        finally:
            self.open_calls -= 1
            if call.counted_by is not None:
                call.counted_by.close(call.account)
            self._end(call)

    @contextmanager
    def answering(self, call: Call) -> Iterator[None]:
        """Open and admit a call of a transport without an error boundary of its own.

        Raises:
            JumokError: an error that the caller may see. A fault of the server is logged, and becomes an InternalError.
        """
        with self.opened(call):
            try:
                self.admit(call)
                yield
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    call.code = "CANCELLED"
                    raise
                if isinstance(error, JumokError) and is_expected(error):
                    public: JumokError = error
                else:
                    logger.error("request %s: %s failed", call.request_id, call.method, exc_info=error)
                    public = InternalError("internal error")
                drop_frames(error)
                call.code, call.reason = public.code.name, public.reason
            else:
                call.code = call.code or "OK"
                return
        raise public

    def _end(self, call: Call) -> None:
        call.duration_s = time.monotonic() - call.started
        for observer in self._observers:
            observer.ended(call)
        # The context of a timer keeps the call until the timer is due, a cancelled one too: some 100 at a time.
        call.record = Record()
        call.write = closed

    def identify(self, call: Call) -> None:
        """Find the caller of a call that is opened later; one that is refused now counts as an ended call.

        Raises:
            JumokError: the errors of a caller without the right token; see `admit`.
        """
        try:
            self._authenticate(call)
        except JumokError as error:
            call.code, call.reason = error.code.name, error.reason
            self._end(call)
            raise

    def admit(self, call: Call) -> None:
        """Find the caller by its token, and raise if the call is refused.

        Raises:
            UnauthenticatedError: no token, or an unknown one.
            PermissionDeniedError: the token lacks the scope.
            RateLimitedError: the caller exceeds its rate, or its address the rate of wrong tokens.
            OverloadedError: too many calls are open, in all or of the caller, or the method's queue is full.
        """
        self._authenticate(call)
        health = call.method.startswith(HEALTH_METHODS)
        if call.method in WATCHES:
            calls = self._watches
        elif call.method == CORPUS:
            calls = self._corpora
        else:
            calls = self._checks if health else self._calls
        calls.open(call.account)
        call.counted_by = calls
        if self._limiter is not None and not health:
            self._limiter.charge(call.account, time.monotonic(), "calls")
        full = self._full.get(call.method)
        if full is not None and full(call.account):
            raise OverloadedError("the queue is full: no room for any text", retry_after_s=RETRY_AFTER_S)

    def _authenticate(self, call: Call) -> None:
        if self._tokens is None or call.method.startswith(HEALTH_METHODS):
            return
        credentials = call.metadata.get("authorization", "")
        if not isinstance(credentials, str) or not credentials.startswith(BEARER):
            self._wrong_tokens.charge(call.account, time.monotonic(), "calls without a token")
            raise UnauthenticatedError("this server needs a token: send the metadata 'authorization: Bearer TOKEN'")
        token = self._tokens.find(credentials.removeprefix(BEARER))
        if token is None:
            self._wrong_tokens.charge(call.account, time.monotonic(), "calls with a wrong token")
            raise UnauthenticatedError("this server does not know the token")
        call.caller = token.name
        service = call.method.removeprefix("/").partition("/")[0]
        needed = SCOPES_BY_SERVICE.get(service, ADMIN)
        if not token.scopes & needed:
            raise PermissionDeniedError(
                f"token {token.name!r} has the scope {' and '.join(sorted(token.scopes))}, and {service} needs "
                f"{' or '.join(sorted(needed))}"
            )
