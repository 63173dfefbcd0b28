"""Translation of a stream of items with a bounded window."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from typing import Any, cast

from google.rpc import status_pb2

from jumok_proto.conversion import timings_to_proto, translation_to_proto
from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from jumok_proto.v1.translation_pb2 import CorpusItem, CorpusResult, TranslateCorpusRequest, TranslateCorpusResponse
from jumok_serve.engine.admission import RETRY_AFTER_S
from jumok_serve.engine.future import Future
from jumok_serve.engine.sentence import Decoded
from jumok_serve.service.handlers.full_queues import submit_when_there_is_room
from jumok_serve.service.handlers.loop_wakeups import LoopWakeups
from jumok_serve.service.handlers.requests import Context, check_request, single_text_field_names
from jumok_serve.service.rpc.call import CorpusRecord, current_request_id
from jumok_serve.service.rpc.error_table import drop_frames, is_expected, to_status
from jumok_serve.service.rpc.request_reader import RequestReader
from jumok_serve.service.rpc.responses import write_response
from jumok_serve.tasks.translation import Pending

logger = logging.getLogger(__name__)

MAX_ITEMS_PER_MESSAGE = 1024
MAX_RESULTS_PER_MESSAGE = 64
MAX_OPEN_CHARACTERS = 2**20
"""Characters of a call's items without a written result; with markup each takes up to 100 bytes."""
ITEMS_PER_TURN = 16
"""Items that are read before other tasks of the event loop run."""
ITEM_FIELDS = ("content", "target_prefix", "attention")
"""Fields of a single item: an error in one leaves the other items alone."""


@dataclass(frozen=True, eq=False)
class _Item:
    """An item that was read: its characters, and its pending translation or its error."""

    id: int
    size: int
    pending: Pending | None
    error: status_pb2.Status | None = None

    @property
    def done(self) -> bool:
        return self.pending is None or all(future.done() for future in self.pending.futures)

    def result(self) -> CorpusResult:
        """Make the item's result, in any thread; raise call-ending errors."""
        if self.pending is None:
            return CorpusResult(id=self.id, error=self.error)
        try:
            with single_text_field_names():
                (translation,) = self.pending.collect()
        except (DeadlineExceededError, UnavailableError, CancelledError):  # a caller that has left cancels all items
            raise
        except Exception as error:
            return CorpusResult(id=self.id, error=_status(error))
        return CorpusResult(
            id=self.id,
            translation=translation_to_proto(translation),
            timings=timings_to_proto(self.pending.timings()),
        )


@dataclass(eq=False, kw_only=True)
class Corpus:
    """One call of TranslateCorpus, after its settings were read.

    Attributes:
        window: bound on items without a result; `MAX_OPEN_CHARACTERS` bounds long ones.
        in_order: True if results keep the order of the items.
        run_work: runs a function in a thread if it takes long.
        stopping: event that ends the reading of items.
        record: results for observers of the call.
    """

    requests: RequestReader
    context: Context
    window: int
    in_order: bool
    submit: Callable[[CorpusItem], Awaitable[Pending]]
    run_work: Callable[[Callable[[], Any]], Awaitable[Any]]
    wakeups: LoopWakeups
    stopping: asyncio.Event
    record: CorpusRecord
    _open: dict[_Item, None] = field(default_factory=dict, init=False)  # items without a written result, as they came
    _done: dict[_Item, None] = field(default_factory=dict, init=False)  # those of them that are done, first done first
    _size: int = field(default=0, init=False)  # characters of open items
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)  # an item is done, or the reading ended
    _window_open: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self, items: Sequence[CorpusItem]) -> None:
        """Translate these and later items; cancels open ones at an early end."""
        reading = asyncio.ensure_future(self._read(items))
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # raised below, or too late
        reading.add_done_callback(lambda _: self._changed.set())
        try:
            while not reading.done() or self._open:
                if reading.done():
                    reading.result()
                if ready := self._ready():
                    await self._write(ready)
                else:
                    await self._changed.wait()
                    self._changed.clear()
            if not reading.result():
                raise UnavailableError(
                    "the server is being stopped: send the items without a result to another server, or again later",
                    retry_after_s=RETRY_AFTER_S,
                )
        finally:
            reading.cancel()
            for item in self._open:
                if item.pending is not None:
                    item.pending.cancel()

    async def _read(self, items: Sequence[CorpusItem]) -> bool:
        """Read items; True at their end, False if the server stops."""
        await self._add(items)
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            while True:
                reading = asyncio.ensure_future(self.requests.next(lambda: bool(self._open)))
                try:
                    await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        return False
                finally:
                    reading.cancel()
                message = cast("TranslateCorpusRequest | None", reading.result())
                if message is None:
                    return True
                check_request(message)
                if message.HasField("settings"):
                    raise InvalidArgumentError("settings are allowed in the first message only", field="settings")
                await self._add(message.items)
        finally:
            stopping.cancel()

    async def _add(self, items: Sequence[CorpusItem]) -> None:
        """Start to translate items, waiting for the window."""
        if len(items) > MAX_ITEMS_PER_MESSAGE:
            raise InvalidArgumentError(
                f"a message takes at most {MAX_ITEMS_PER_MESSAGE} items, got {len(items)}; send several", field="items"
            )
        for number, item in enumerate(items):
            while len(self._open) >= self.window or (
                self._open and self._size + len(item.content) > MAX_OPEN_CHARACTERS
            ):
                self._window_open.clear()
                await self._window_open.wait()
            self._note_open(await self._start(item))  # kept nowhere else: it may hold memory that the next waits for
            if number % ITEMS_PER_TURN == ITEMS_PER_TURN - 1:
                await asyncio.sleep(0)

    def _note_open(self, item: _Item) -> None:
        self._open[item] = None
        self._size += item.size
        if item.pending is None or item.done:
            self._note_if_done(item)
            return
        # Also if it is done by now: the callback then runs at once.
        for future in item.pending.futures:
            future.add_done_callback(partial(self._future_done, item))

    def _future_done(self, item: _Item, _future: Future[Decoded]) -> None:
        """Note it in the event loop; called in any thread."""
        self.wakeups.call_soon(partial(self._note_if_done, item))

    def _note_if_done(self, item: _Item) -> None:
        if item.done and item in self._open:
            self._done[item] = None
            self._changed.set()

    async def _start(self, item: CorpusItem) -> _Item:
        """Submit an item, with retries while the queue is full or the caller too fast."""
        try:
            with single_text_field_names():
                return _Item(item.id, len(item.content), await submit_when_there_is_room(partial(self.submit, item)))
        except InvalidArgumentError as error:
            if error.field not in ITEM_FIELDS:
                raise
            return _Item(item.id, len(item.content), None, _status(error))

    def _ready(self) -> list[_Item]:
        """Items with results to write now, at most one message."""
        ready = takewhile(self._done.__contains__, self._open) if self.in_order else self._done
        return list(islice(ready, MAX_RESULTS_PER_MESSAGE))

    async def _write(self, ready: Sequence[_Item]) -> None:
        """Write results; until then they fill the window, which slows reading."""
        message: TranslateCorpusResponse = await self.run_work(partial(_response, ready))
        for item, result in zip(ready, message.results, strict=True):
            if item.pending is not None and result.HasField("translation"):
                self.record.add(item.id, result.translation, item.pending.timings())
        await write_response(self.context, message)
        for item in ready:
            del self._open[item], self._done[item]
            self._size -= item.size
        self._window_open.set()


def _response(items: Sequence[_Item]) -> TranslateCorpusResponse:
    return TranslateCorpusResponse(results=[item.result() for item in items])


def _status(error: Exception) -> status_pb2.Status:
    request_id = current_request_id()
    if not is_expected(error):
        logger.error("request %s: an item of a corpus failed", request_id, exc_info=error)
    drop_frames(error)
    return to_status(error, request_id)
