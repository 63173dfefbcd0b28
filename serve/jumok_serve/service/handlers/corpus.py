"""A corpus on its way through a model: items come in, a bounded number of them is under way, answers go out."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import grpc
from google.rpc import status_pb2

from jumok_proto.conversion import timings_to_proto, translation_to_proto
from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError, OverloadedError, UnavailableError
from jumok_proto.v1.translation_pb2 import CorpusItem, CorpusResult, TranslateCorpusRequest, TranslateCorpusResponse
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.service.handlers.loop_wakeups import Arrivals
from jumok_serve.service.handlers.one_text import naming_one_text
from jumok_serve.service.handlers.unknown_fields import check_known
from jumok_serve.service.rpc.call import current_request_id
from jumok_serve.service.rpc.error_boundary import next_request
from jumok_serve.service.rpc.error_table import is_expected, to_status
from jumok_serve.tasks.translation import Pending

logger = logging.getLogger(__name__)

MAX_ITEMS = 1024
"""Of one message."""
MAX_RESULTS = 64
"""Of one message."""
ITEMS_AT_ONCE = 16
"""Items that are read before other calls have their turn."""
FIRST_WAIT_S = 0.05
"""How long an item waits that the engine's queue had no room for; twice as long each time, up to RETRY_AFTER_S."""
FIELDS_OF_ITEMS = ("content", "target_prefix", "attention")
"""What an error blames that another item need not have."""

Context = grpc.aio.ServicerContext[TranslateCorpusRequest, TranslateCorpusResponse]


class _Entry:
    """An item that was read: what it waits for, or why it has no translation."""

    def __init__(self, item_id: int, pending: Pending | None, error: status_pb2.Status | None = None) -> None:
        self.id = item_id
        self.pending = pending
        self._error = error

    @property
    def done(self) -> bool:
        return self.pending is None or all(future.done() for future in self.pending.futures)

    def result(self) -> CorpusResult:
        """Make the answer, in any thread; raise what ends the whole call."""
        if self.pending is None:
            return CorpusResult(id=self.id, error=self._error)
        try:
            (translation,) = self.pending.collect()
        except (DeadlineExceededError, UnavailableError):
            raise
        except Exception as error:
            return CorpusResult(id=self.id, error=_status(error))
        return CorpusResult(
            id=self.id,
            translation=translation_to_proto(translation),
            timings=timings_to_proto(self.pending.timings()),
        )


class Corpus:
    """One call of TranslateCorpus, behind its settings.

    Args:
        context: of the call.
        window: items that may be unanswered.
        in_order: whether answers keep the order of the items.
        submit: starts to translate an item.
        work: has a thread do something.
        arrivals: of the event loop.
        stopping: set when nothing more is to be read.
    """

    def __init__(
        self,
        context: Context,
        *,
        window: int,
        in_order: bool,
        submit: Callable[[CorpusItem], Awaitable[Pending]],
        work: Callable[[Callable[[], Any]], Awaitable[Any]],
        arrivals: Arrivals,
        stopping: asyncio.Event,
    ) -> None:
        self._context = context
        self._window = window
        self._in_order = in_order
        self._submit = submit
        self._work = work
        self._arrivals = arrivals
        self._stopping = stopping
        self._unanswered: deque[_Entry] = deque()
        self._changed = asyncio.Event()  # something is done, or nothing more is read
        self._room = asyncio.Event()

    async def run(self, items: Sequence[CorpusItem]) -> None:
        """Translate these items and all that follow; what is under way when this ends early is given up."""
        reading = asyncio.ensure_future(self._read(items))
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is raised below, or too late
        reading.add_done_callback(lambda _: self._changed.set())
        try:
            while not reading.done() or self._unanswered:
                if reading.done():
                    reading.result()
                if ready := self._ready():
                    await self._answer(ready)
                else:
                    await self._changed.wait()
                    self._changed.clear()
            if not reading.result():
                raise UnavailableError(
                    "the server is being stopped: what has no answer can be sent to another, or again later",
                    retry_after_s=RETRY_AFTER_S,
                )
        finally:
            reading.cancel()
            for entry in self._unanswered:
                if entry.pending is not None:
                    entry.pending.cancel()

    async def _read(self, items: Sequence[CorpusItem]) -> bool:
        """Read items until they end, or the server is to stop; says whether they have ended."""
        await self._enter(items)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while True:
                reading = asyncio.ensure_future(self._next())
                try:
                    await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        return False
                finally:
                    reading.cancel()
                message = reading.result()
                if message is None:
                    return True
                check_known(message)
                if message.HasField("settings"):
                    raise InvalidArgumentError("settings stand in the first message alone", field="settings")
                await self._enter(message.items)
        finally:
            stopping.cancel()

    async def _next(self) -> TranslateCorpusRequest | None:
        """The next message, or None."""
        message = await next_request(self._context)
        return message  # noqa: RET504 - without the name its type is not found

    async def _enter(self, items: Sequence[CorpusItem]) -> None:
        """Start to translate items, as there is room for them."""
        if len(items) > MAX_ITEMS:
            raise InvalidArgumentError(
                f"a message takes at most {MAX_ITEMS} items, got {len(items)}; send several", field="items"
            )
        for number, item in enumerate(items):
            check_known(item, f"items[{number}]")
            while len(self._unanswered) >= self._window:
                self._room.clear()
                await self._room.wait()
            entry = await self._start(item)
            self._unanswered.append(entry)
            for future in entry.pending.futures if entry.pending else ():
                future.add_done_callback(lambda _: self._arrivals.tell(self._changed.set))
            if entry.done:
                self._changed.set()
            if number % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                await asyncio.sleep(0)

    async def _start(self, item: CorpusItem) -> _Entry:
        """Queue an item, however long the queue is full, or say why it cannot be translated."""
        wait_s = FIRST_WAIT_S
        while True:
            try:
                with naming_one_text():
                    return _Entry(item.id, await self._submit(item))
            except OverloadedError:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_AFTER_S)
            except InvalidArgumentError as error:
                if error.field not in FIELDS_OF_ITEMS:
                    raise
                return _Entry(item.id, None, _status(error))

    def _ready(self) -> list[_Entry]:
        """What can be answered now, up to one message of it."""
        if not self._in_order:
            return [entry for entry in self._unanswered if entry.done][:MAX_RESULTS]
        ready: list[_Entry] = []
        for entry in self._unanswered:
            if not entry.done or len(ready) == MAX_RESULTS:
                break
            ready.append(entry)
        return ready

    async def _answer(self, ready: Sequence[_Entry]) -> None:
        """Write answers; until they are written they keep their places, so that a slow reader stops the reading."""
        message = await self._work(partial(_response, ready))
        await self._context.write(message)
        for entry in ready:
            self._unanswered.remove(entry)
        self._room.set()


def _response(entries: Sequence[_Entry]) -> TranslateCorpusResponse:
    return TranslateCorpusResponse(results=[entry.result() for entry in entries])


def _status(error: Exception) -> status_pb2.Status:
    """The error of one item."""
    request_id = current_request_id()
    if not is_expected(error):
        logger.error("request %s: an item of a corpus failed", request_id, exc_info=error)
    return to_status(error, request_id)
