"""Translation of a stream of items with a bounded window, whatever they come from and go to."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from typing import Generic, NamedTuple, TypeVar

from jumok_proto.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from jumok_proto.results import Timings, Translation
from jumok_serve.service.handlers.worker_pool import LoopWakeups, submit_when_there_is_room
from jumok_serve.service.rpc.call import Record, current_request_id
from jumok_serve.service.rpc.statuses import drop_frames, is_expected
from jumok_serve.share import RETRY_AFTER_S
from jumok_serve.text.translation import Pending

logger = logging.getLogger(__name__)

MAX_RESULTS = 64
"""Results that are written at once."""
MAX_OPEN_CHARACTERS = 2**20
"""Characters of a call's items without a written result; with markup each takes up to 100 bytes."""
ITEMS_PER_TURN = 16
"""Items that are read before other tasks of the event loop run."""
ITEM_FIELDS = ("content", "target_prefix", "attention")
"""Fields of a single item: an error in one leaves the other items alone."""


Written = TypeVar("Written")


class Item(NamedTuple):
    """A text of a corpus."""

    id: int
    content: str
    target_prefix: str = ""


class Result(NamedTuple):
    """The translation of an item with its timings, or its error."""

    id: int
    translation: Translation | None = None
    timings: Timings | None = None
    error: Exception | None = None


@dataclass(frozen=True, eq=False)
class _Item:
    """An item that was read: its characters, and its pending translation or its error."""

    id: int
    size: int
    pending: Pending | None
    error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.pending is None or all(future.done() for future in self.pending.futures)

    def result(self) -> Result:
        """Make the item's result, in any thread; raise call-ending errors."""
        if self.pending is None:
            return Result(self.id, error=self.error)
        try:
            with single_text_field_names():
                (translation,) = self.pending.collect()
        except (DeadlineExceededError, UnavailableError, CancelledError):  # a caller that has left cancels all items
            raise
        except Exception as error:
            return Result(self.id, error=_kept(error))
        return Result(self.id, translation, self.pending.timings())


@dataclass(frozen=True)
class Stream(Generic[Written]):
    """Origin of a corpus' items, and destination of their results.

    Attributes:
        read: returns the next items, or None after the last. It is given a function that is true while items are open:
            their sender may then wait for results.
        make: makes what is written of results, in any thread.
        write: writes it.
    """

    read: Callable[[Callable[[], bool]], Awaitable[Sequence[Item] | None]]
    make: Callable[[Sequence[Result]], Written]
    write: Callable[[Written], Awaitable[None]]


@dataclass(eq=False, kw_only=True)
class Corpus(Generic[Written]):
    """A corpus in translation.

    Attributes:
        window: bound on items without a result; `MAX_OPEN_CHARACTERS` bounds long ones.
        in_order: True if results keep the order of the items.
        run_work: runs a function in a thread if it takes long.
        stopping: event that ends the reading of items.
        record: results for observers of the call.
    """

    stream: Stream[Written]
    window: int
    in_order: bool
    submit: Callable[[Item], Awaitable[Pending]]
    run_work: Callable[[Callable[[], tuple[list[Result], Written]]], Awaitable[tuple[list[Result], Written]]]
    wakeups: LoopWakeups
    stopping: asyncio.Event
    record: Record
    _open: dict[_Item, None] = field(default_factory=dict, init=False)  # items without a written result, as they came
    _done: dict[_Item, None] = field(default_factory=dict, init=False)  # those of them that are done, first done first
    _size: int = field(default=0, init=False)  # characters of open items
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)  # an item is done, or the reading ended
    _window_open: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Translate all items; cancels open ones at an early end."""
        reading = asyncio.ensure_future(self._read())
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

    async def _read(self) -> bool:
        """Read items; True at their end, False if the server stops."""
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            while True:
                reading = asyncio.ensure_future(self.stream.read(lambda: bool(self._open)))
                try:
                    await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        return False
                finally:
                    reading.cancel()
                items = reading.result()
                if items is None:
                    return True
                await self._add(items)
        finally:
            stopping.cancel()

    async def _add(self, items: Sequence[Item]) -> None:
        """Start to translate items, waiting for the window."""
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
            future.add_done_callback(lambda _: self.wakeups.call_soon(partial(self._note_if_done, item)))

    def _note_if_done(self, item: _Item) -> None:
        if item.done and item in self._open:
            self._done[item] = None
            self._changed.set()

    async def _start(self, item: Item) -> _Item:
        """Submit an item, with retries while the queue is full or the caller too fast."""
        try:
            with single_text_field_names():
                return _Item(item.id, len(item.content), await submit_when_there_is_room(partial(self.submit, item)))
        except InvalidArgumentError as error:
            if error.field not in ITEM_FIELDS:
                raise
            return _Item(item.id, len(item.content), None, _kept(error))

    def _ready(self) -> list[_Item]:
        """Items with results to write now."""
        ready = takewhile(self._done.__contains__, self._open) if self.in_order else self._done
        return list(islice(ready, MAX_RESULTS))

    async def _write(self, ready: Sequence[_Item]) -> None:
        """Write results; until then they fill the window, which slows reading."""
        results, made = await self.run_work(partial(self._made, ready))
        for result in results:
            if result.translation is not None and result.timings is not None:
                self.record.add(result.id, result.translation, result.timings)
        await self.stream.write(made)
        for item in ready:
            del self._open[item], self._done[item]
            self._size -= item.size
        self._window_open.set()

    def _made(self, ready: Sequence[_Item]) -> tuple[list[Result], Written]:
        results = [item.result() for item in ready]
        return results, self.stream.make(results)


def _kept(error: Exception) -> Exception:
    """Log an error that the caller does not see, and drop what it holds."""
    if not is_expected(error):
        logger.error("request %s: an item of a corpus failed", current_request_id(), exc_info=error)
    drop_frames(error)
    return error


SINGLE_TEXT_FIELDS = {"contents": "content", "contents[0]": "content", "target_prefixes[0]": "target_prefix"}


@contextmanager
def single_text_field_names() -> Iterator[None]:
    """Rename fields of InvalidArgumentError for a request of one text, as models take lists."""
    try:
        yield
    except InvalidArgumentError as error:
        if error.field not in SINGLE_TEXT_FIELDS:
            raise
        name = SINGLE_TEXT_FIELDS[error.field]
        raise InvalidArgumentError(str(error).replace(error.field, name), field=name) from error
