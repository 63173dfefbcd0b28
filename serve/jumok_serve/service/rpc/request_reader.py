"""Reader of requests within bounds of bytes, which callers share, fields and time, and the check of what was read."""

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from grpc.aio import EOF  # type: ignore[attr-defined]  # its types lack it

from jumok_proto.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    JumokError,
    OverloadedError,
    UnavailableError,
)
from jumok_serve.service.connections import received_bytes
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.service.rpc.call import current_peer
from jumok_serve.share import RETRY_AFTER_S

PATIENCE_S = 1.0
"""Wait of a request for room, in seconds, after which the oldest slow arrival is given up for it."""
MIN_RATE = 16 * 1024
"""Bytes per second below which an arrival is slow."""


@dataclass(eq=False, kw_only=True)
class Arrival:
    """A request that holds bytes while it arrives.

    Attributes:
        timer: timeout of the reading, which expires at once if the request is given up.
        patience_s: shortest time, in seconds, over which the rate is looked at.
        fast_s: time, in seconds, after which the request is slow at any rate.
        peer: address of a connection whose bytes count as received, as gRPC shows no others; empty: the reader counts.
        busy: true while the sender waits for the server, and may be silent.
        received: bytes so far.
        shown: true if these bytes are known; else the request is not slow until ``fast_s``.
        given_up: true if others needed the room.
        waiting: turn and size of the bytes that the request waits for; None: it waits for none.
    """

    timer: asyncio.Timeout
    patience_s: float = PATIENCE_S
    busy: Callable[[], bool] = lambda: False
    fast_s: float = math.inf
    peer: str = ""
    received: int = 0
    shown: bool = True
    given_up: bool = False
    waiting: "tuple[asyncio.Future[None], int] | None" = None
    _begun: float = field(default_factory=time.monotonic)
    _looked: float = field(default_factory=time.monotonic)
    _seen: int = 0

    def has_room(self) -> None:
        """Look at the rate from now on: the request no longer waits."""
        self.waiting, self._looked, self._seen = None, time.monotonic(), self.received

    def give_up(self) -> bool:
        """End the reading, and return True, if the request was slow since the last look."""
        now = time.monotonic()
        passed_s = now - self._looked
        if self.timer.expired() or self.waiting is not None or passed_s < self.patience_s or self.busy():
            return False
        slow = self.shown and self.received - self._seen < MIN_RATE * passed_s
        self.given_up = slow or now - self._begun > self.fast_s
        self._looked, self._seen = now, self.received
        if self.given_up:
            self.timer.reschedule(asyncio.get_running_loop().time())
        return self.given_up


class ByteBudget:
    """Bytes that callers hold together, and each of them at most its share; used in the event loop only.

    Callers that wait take turns, so a caller with many calls does not delay the others. Requests that arrive slowly
    keep others out for about `PATIENCE_S`.

    Args:
        most: bytes of all callers.

    Attributes:
        share: most bytes of one caller.
        free: bytes that no caller holds.
    """

    def __init__(self, most: int, share: int) -> None:
        self.free = most
        self.share = share
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()
        self._arriving: dict[Arrival, str] = {}  # callers, oldest request first
        self._making_room: asyncio.Task[None] | None = None  # runs while requests wait

    @contextmanager
    def arriving(self, caller: str, arrival: Arrival) -> Iterator[Arrival]:
        """Let others end a caller's request if it arrives too slowly."""
        self._arriving[arrival] = caller
        try:
            yield arrival
        finally:
            del self._arriving[arrival]
            self._let_first_go_on()

    async def take(self, caller: str, size: int, own: Arrival | None = None) -> None:
        """Hold bytes, after a wait if too many are held; at most ``share`` at a time.

        Args:
            own: the request, if it arrives already.
        """
        if self.take_now(caller, size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append((size, turn))
        if self._making_room is None:
            self._making_room = asyncio.create_task(self._make_room())
        if own is not None:
            own.waiting = (turn, size)
            self._let_first_go_on()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(caller, size)
            turn.cancel()
            raise
        finally:
            if own is not None:
                own.has_room()

    def take_now(self, caller: str, size: int) -> bool:
        """Hold bytes and return True if there is room, without a wait."""
        fits = caller not in self._waiting and self._fits(caller, size)
        if fits:
            self._hold(caller, size)
        return fits

    def take_or_exceed(self, caller: str, size: int, own: int) -> bool:
        """Hold more bytes and return True if there is room, or if the caller holds none besides its ``own``."""
        fits = self._fits(caller, size) or self._held[caller] == own
        if fits:
            self._hold(caller, size)
        return fits

    @property
    def greediest(self) -> str:
        """Caller that holds most bytes; empty if none holds any."""
        return max(self._held, key=self._held.__getitem__, default="")

    async def _make_room(self) -> None:
        """End slow arrivals again and again, until no request waits."""
        try:
            while True:
                await asyncio.sleep(PATIENCE_S)
                await self._count_received()
                waiting = {
                    caller: sum(not turn.done() for _, turn in queue)
                    for caller, queue in self._waiting.items()
                    if any(not turn.done() for _, turn in queue)
                }
                if not waiting:
                    return
                self._end_slow(waiting)
        finally:
            self._making_room = None

    async def _count_received(self) -> None:
        counted = [arrival for arrival in self._arriving if arrival.peer]
        if counted:
            received = await asyncio.to_thread(received_bytes, {arrival.peer for arrival in counted})
            for arrival in counted:
                arrival.shown = arrival.peer in received
                arrival.received = received.get(arrival.peer, arrival.received)

    def _end_slow(self, waiting: Mapping[str, int]) -> None:
        """End slow arrivals for requests that wait, oldest first: of callers whose share is full, else of all.

        Args:
            waiting: number of requests by caller.
        """
        oldest = {caller: arrival for arrival, caller in reversed(self._arriving.items())}
        for caller, arrival in oldest.items():  # it exceeds its caller's share
            if arrival.waiting is not None and arrival.waiting[1] <= self.free:
                self._let_go_on(arrival, caller)
        needed = sum(waiting.values())
        all_are_full = any(self._held[caller] + self._waiting[caller][0][0] <= self.share for caller in waiting)
        for arrival, holder in list(self._arriving.items()):
            if needed and (all_are_full or holder in waiting):
                needed -= arrival.give_up()

    def _let_first_go_on(self) -> None:
        """Let the oldest arrival exceed the bytes of all if it waits: else arrivals might all wait for each other."""
        for arrival, caller in self._arriving.items():
            self._let_go_on(arrival, caller)
            return

    def _let_go_on(self, arrival: Arrival, caller: str) -> None:
        if arrival.waiting is not None and not arrival.waiting[0].done():
            turn, size = arrival.waiting
            self._hold(caller, size)
            turn.set_result(None)

    def give_back(self, caller: str, size: int) -> None:
        """Stop to hold bytes."""
        self._hold(caller, -size)
        if self._held[caller] == 0:
            del self._held[caller]
        refused = 0  # callers in a row for whom there is no room
        while self.free > 0 and refused < len(self._waiting):
            refused = 0 if self._take_turn(next(iter(self._waiting))) else refused + 1

    def _take_turn(self, caller: str) -> bool:
        """Give a waiting caller its next bytes if there is room, and put the caller last; False if there is none."""
        queue = self._waiting.pop(caller)
        while queue and queue[0][1].done():  # cancelled
            queue.popleft()
        if not queue:
            return True
        fits = self._fits(caller, queue[0][0])
        if fits:
            size, turn = queue.popleft()
            self._hold(caller, size)
            turn.set_result(None)
        if queue:
            self._waiting[caller] = queue
        return fits

    def _fits(self, caller: str, size: int) -> bool:
        return size <= self.free and self._held[caller] + size <= self.share

    def _hold(self, caller: str, size: int) -> None:
        self.free -= size
        self._held[caller] += size


Fields: TypeAlias = "Mapping[int, Fields | None]"
"""Fields that hold further fields, by number: for a message its own such fields, for packed numbers None."""

_NO_NUMBERS = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_MESSAGE)
_VARINT, _BYTES = 0, 2
"""Wire types of fields with a length of their own."""
_LENGTHS = {1: 8, 3: 0, 4: 0, 5: 4}
"""Bytes of a field of each other wire type."""
_MAX_VARINT_BITS = 70


def fields_of(message: Descriptor) -> Fields:
    """Describe the fields of a message type."""
    known: dict[str, dict[int, Fields | None]] = {}

    def describe(kind: Descriptor) -> Fields:
        if kind.full_name not in known:
            fields = known[kind.full_name] = {}
            for field in kind.fields:
                if field.message_type is not None:
                    fields[field.number] = describe(field.message_type)
                elif field.cpp_type not in _NO_NUMBERS:
                    fields[field.number] = None
        return known[kind.full_name]

    return describe(message)


def check_fields(data: bytes, fields: Fields, most: int) -> None:
    """Refuse a message with too many fields, unknown ones and packed numbers included.

    The count ends at ``most`` fields. A message of at most ``most`` bytes is not counted: each field takes a byte.

    Raises:
        InvalidArgumentError: too many fields, or no message.
    """
    if len(data) <= most:
        return
    at = count = 0
    open_messages = [(len(data), fields)]
    while open_messages:
        end, known = open_messages[-1]
        if at == end:
            open_messages.pop()
            continue
        key, at = _varint(data, at, end)
        content: Fields | None = _LEAF
        if key & 7 == _BYTES:
            content = known.get(key >> 3, _LEAF)
            length, at = _varint(data, at, end)
        else:
            length = _length(data, at, end, key & 7)
        if length > end - at:
            raise no_message()
        count += 1
        if content is None:
            count += length
        if content is None or content is _LEAF:
            at += length
        else:
            open_messages.append((at + length, content))
        if count > most:
            raise InvalidArgumentError(
                f"the request has more than {most} fields and numbers; send several requests", field="request"
            )


_LEAF: Fields = {}
"""Content of a field that holds no others."""


def _length(data: bytes, at: int, end: int, kind: int) -> int:
    """Length of a number; 0 of a mark that begins or ends a group."""
    if kind == _VARINT:
        return _varint(data, at, end)[1] - at
    if kind not in _LENGTHS:
        raise no_message()
    return _LENGTHS[kind]


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a number; returns it and the position after it."""
    value = shift = 0
    while at < end and shift < _MAX_VARINT_BITS:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise no_message()


def no_message() -> InvalidArgumentError:
    """Make the error about bytes that are no message."""
    return InvalidArgumentError("the request is no valid protobuf message; texts must be UTF-8", field="request")


STREAM_SHARE = 4
"""Bytes of streams, for each byte of single requests."""
STRANGERS = 4
"""Requests of the largest size that callers without a known token may have in memory together."""
FIELDS_PER_TEXT, OPTIONS = 4, 1024
"""Fields and numbers of a message: those of an item of a corpus, for each text, and those of options."""
MIN_TEXTS = 1024
"""Items that a message of a corpus may have."""
STREAM_PATIENCE_S = 5.0
"""Silence of a stream, in seconds, after which others may have its room."""
MAX_NAME_BYTES = 4096
"""Bytes of a request that is a name: of a service, a model, a type or a file."""
HEALTH_UPLOAD_S = 5.0
"""Time for a health check to arrive: its callers have no token."""


@dataclass(frozen=True, kw_only=True)
class Intake:
    """Bounds on the reading of requests.

    Attributes:
        budget: bytes of single requests; each read holds ``max_bytes`` until the size of its message is known.
        stream_budget: bytes of streams. A stream that is silent holds ``max_bytes`` too, and must not delay calls.
        stranger_budget: bytes of single requests whose callers are known only after they were read.
        max_bytes: size of a message, which gRPC checks before it reads the message; other transports may not.
        max_fields: fields of a message, and packed numbers, at all depths.
        upload_s: time for a request to arrive, in seconds.
        silence_s: time between two requests of a stream, in seconds.
        names: true if requests are names. Their calls may stay open, so the requests are short, and hold no bytes.
    """

    budget: ByteBudget
    stream_budget: ByteBudget
    stranger_budget: ByteBudget
    max_bytes: int
    max_fields: int
    upload_s: float
    silence_s: float
    names: bool = False


def make_intake(limits: ServiceLimits, reads: int | None = None) -> Intake:
    """Make the bounds of a service.

    Args:
        reads: most reads of names at once; None: requests are others, of ``max_open_bytes`` in all.
    """
    largest = limits.max_message_bytes
    most = max(limits.max_open_bytes, 2 * largest) if reads is None else reads * largest
    return Intake(
        budget=ByteBudget(most, most // 2),
        stream_budget=ByteBudget(STREAM_SHARE * most, STREAM_SHARE * most // 2),
        stranger_budget=ByteBudget(STRANGERS * largest, STRANGERS * largest // 2),
        max_bytes=largest,
        max_fields=FIELDS_PER_TEXT * max(limits.max_texts, MIN_TEXTS) + OPTIONS,
        upload_s=limits.upload_s if reads is None else min(limits.upload_s, HEALTH_UPLOAD_S),
        silence_s=limits.silence_s,
        names=reads is not None,
    )


class RequestFormat:
    """Type of a method's requests."""

    def __init__(self, message: Descriptor) -> None:
        self._parse = GetMessageClass(message).FromString
        self._fields = fields_of(message)

    def parse(self, data: bytes, max_fields: int) -> Message:
        """Make a message.

        Raises:
            InvalidArgumentError: too many fields, or invalid bytes.
        """
        check_fields(data, self._fields, max_fields)
        try:
            return self._parse(data)
        except DecodeError:
            pass
        raise no_message()


@asynccontextmanager
async def arriving_in_time(
    budget: ByteBudget, caller: str, upload_s: float, what: str = "request", **arrival: Any
) -> AsyncIterator[Arrival]:
    """Let a request of a caller arrive, which holds bytes of a budget.

    Args:
        upload_s: time for it, in seconds.
        what: its name in errors.
        arrival: attributes of its `Arrival`.

    Raises:
        DeadlineExceededError: it does not arrive in time.
        OverloadedError: it arrives so slowly that others had to wait for its room.
    """
    try:
        async with asyncio.timeout(upload_s) as timer:
            with budget.arriving(caller, Arrival(timer=timer, **arrival)) as arriving:
                yield arriving
    except TimeoutError:
        late: JumokError = DeadlineExceededError(f"the {what} did not arrive within {upload_s:g} s")
        if arriving.given_up:
            late = OverloadedError(f"the {what} arrived too slowly while others waited", retry_after_s=RETRY_AFTER_S)
    else:
        return
    raise late


class RequestReader:
    """Reads the requests of one call; an asynchronous iterator.

    Args:
        read: returns the next request as bytes, or `EOF`.
        caller: the caller whose share of the budget is used.
    """

    def __init__(
        self, read: Callable[[], Awaitable[Any]], caller: str, intake: Intake, request_format: RequestFormat
    ) -> None:
        self._read = read
        self._caller = caller
        self._intake = intake
        self._format = request_format
        self._budget = intake.budget
        self._held = 0
        self._closed = False
        self._alarm: asyncio.TimerHandle | None = None

    async def only(self) -> Message:
        """Read the request of a call that has one.

        Raises:
            InvalidArgumentError: no request, an invalid one, or a name that is too long.
            DeadlineExceededError: the request does not arrive in time.
            OverloadedError: it arrives so slowly that others had to wait for its room.
        """
        await self._hold(self._intake.budget)
        async with arriving_in_time(self._budget, self._caller, self._intake.upload_s, peer=current_peer()):
            data = await self._read()
        if data is EOF:
            raise InvalidArgumentError("the call ended without a request", field="request")
        return self._parse(data)

    async def next(self, busy: Callable[[], bool] = lambda: False) -> Message | None:
        """Read the next request of a stream, or None at its end.

        Args:
            busy: true while the caller waits for the server, and may be silent.

        Raises:
            InvalidArgumentError: an invalid request, or a name that is too long.
            UnavailableError: the caller is silent for too long.
        """
        self._release()
        try:
            await self._hold(self._intake.stream_budget)
            async with asyncio.timeout(None) as timer:
                self._watch(timer, busy)
                try:
                    arrival = Arrival(
                        timer=timer,
                        patience_s=STREAM_PATIENCE_S,
                        fast_s=self._intake.upload_s,
                        busy=busy,
                        peer=current_peer(),
                    )
                    with self._budget.arriving(self._caller, arrival):
                        data = await self._read()
                finally:
                    if self._alarm is not None:
                        self._alarm.cancel()
        except TimeoutError:
            waited = "while others waited" if arrival.given_up else f"for {self._intake.silence_s:g} s"
            silent = UnavailableError(
                f"no message arrived {waited}: send the rest in another call", retry_after_s=RETRY_AFTER_S
            )
        else:
            if data is not EOF:
                return self._parse(data)
            self._release()
            return None
        finally:
            if self._closed:  # the call ended while this task ran
                self._release()
        raise silent

    def _watch(self, timer: asyncio.Timeout, busy: Callable[[], bool]) -> None:
        """Look after the time of silence if the caller may be silent, again and again."""
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(self._intake.silence_s, self._look, timer, busy)

    def _look(self, timer: asyncio.Timeout, busy: Callable[[], bool]) -> None:
        self._alarm = None
        if busy():
            self._watch(timer, busy)
        else:
            timer.reschedule(asyncio.get_running_loop().time())

    async def __aiter__(self) -> AsyncIterator[Message]:
        while (request := await self.next()) is not None:
            yield request

    async def _hold(self, budget: ByteBudget) -> None:
        await budget.take(self._caller, self._intake.max_bytes)
        self._budget, self._held = budget, self._intake.max_bytes

    def _parse(self, data: bytes) -> Message:
        if len(data) > self._intake.max_bytes:
            raise InvalidArgumentError(
                f"a request takes at most {self._intake.max_bytes} bytes here, got {len(data)}: send several",
                field="request",
            )
        self._budget.give_back(self._caller, self._held - len(data))
        self._held = len(data)
        if self._intake.names:
            self._release()
            if len(data) > MAX_NAME_BYTES:
                raise InvalidArgumentError(
                    f"no name here has more than {MAX_NAME_BYTES} bytes, got {len(data)}: send a shorter one",
                    field="request",
                    code=grpc.StatusCode.NOT_FOUND,
                )
        return self._format.parse(data, self._intake.max_fields)

    def close(self) -> None:
        """Give back the bytes of the last request, and hold no others."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        if self._held:
            self._budget.give_back(self._caller, self._held)
            self._held = 0


MAX_NAME_CHARACTERS = 100_000
"""Most characters of a name, or of a language, as of a text: longer ones take a tenth of a second to compare."""

NAMES = frozenset({"model", "name", "source_language_code", "target_language_code", "glossary", "stored", "format"})
"""Fields that have a name; ``glossary`` is one where it is no message."""


def check_request(message: Message, field: str = "") -> None:
    """Refuse a request with a field of a later version, at any depth, or with a name that is too long.

    Ignoring a field would give another result than the caller wanted, silently. Names are compared, and come back in
    errors.

    Raises:
        InvalidArgumentError: an unknown field; ``field`` is the path of its message, or ``request``.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown) > 0:
        raise InvalidArgumentError(
            f"{field or 'the request'} holds the field number {unknown[0].field_number} with a value that this server "
            "does not know: leave it out, or call a newer server",
            field=field or "request",
        )
    for descriptor, value in message.ListFields():
        name = f"{field}.{descriptor.name}".lstrip(".")
        if descriptor.message_type is not None:
            for number, part in enumerate(value if descriptor.is_repeated else (value,)):
                check_request(part, f"{name}[{number}]" if descriptor.is_repeated else name)
        elif descriptor.name in NAMES:
            check_name(name, value)


def check_name(field: str, name: str) -> None:
    """Raise InvalidArgumentError for a name, or a language, that is too long: names are compared with others."""
    if len(name) > MAX_NAME_CHARACTERS:
        raise InvalidArgumentError(
            f"{field} takes at most {MAX_NAME_CHARACTERS} characters, got {len(name)}: shorten it", field=field
        )
