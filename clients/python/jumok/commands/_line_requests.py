"""Lines in, answers out: as they come, in order, in large requests where many wait, two of them under way."""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import BinaryIO, Generic, Self, TypeVar

from jumok._validation import parameter_name
from jumok_proto.errors import JumokError

MAX_REQUEST_LINES = 128
MAX_REQUEST_BYTES = 64 * 2**10
MAX_LINE_BYTES = 2**20
MAX_WAITING_LINES = 4 * MAX_REQUEST_LINES
REQUESTS_UNDER_WAY = 2
MAX_UNWRITTEN_REQUESTS = 2 * REQUESTS_UNDER_WAY
MIN_RETRY_S = 0.05
FIELDS_OF_SIZE = ("contents", "attention")
"""What a refusal of too many lines at once, or of too much that is asked for all of them together, blames."""

Answer = TypeVar("Answer")
Ask = Callable[[list[str]], list[Answer]]
"""Translates lines, or does something else to each."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of input; ``name`` says which in an error, ``size`` is its bytes, line end included."""

    text: str
    name: str
    size: int
    problem: str = ""
    """Why it cannot be read, where it cannot: its ``text`` is empty then."""


class InputError(JumokError):
    """A line of input that cannot be used."""

    @classmethod
    def of(cls, line: Line, error: JumokError) -> Self:
        """Make the error of a line, which names the line instead of the parameter."""
        problem = str(error).removeprefix(f"{error.field}: ").removeprefix(f"{parameter_name(error.field)}: ")
        refusal = cls(f"{line.name}: {problem}")
        refusal.__cause__ = error
        return refusal


@dataclass(frozen=True, slots=True)
class Batch(Generic[Answer]):
    """Answers to consecutive lines, and what ended the input after them, if anything did."""

    lines: list[Line]
    answers: list[Answer]
    error: Exception | None = None


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    """Give the lines of standard input; one that is too long or not UTF-8 has a ``problem``."""
    number = 0
    while data := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        name, size = f"standard input, line {number}", len(data)
        if size > MAX_LINE_BYTES:
            while data and not data.endswith(b"\n"):
                data = stream.readline(MAX_LINE_BYTES)
                size += len(data)
            yield Line("", name, size, f"longer than {MAX_LINE_BYTES} bytes")
            continue
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            at = f"byte {error.start + 1}: 0x{data[error.start]:02x}"
            yield Line("", name, size, f"{at} is not UTF-8 ({error.reason})")
            continue
        yield Line(text.removesuffix("\n").removesuffix("\r"), name, size)


def answer_lines(lines: Iterable[Line], ask: Ask[Answer], *, patience_s: float) -> Iterator[Batch[Answer]]:
    """Ask for answers to lines as they come; errors are raised in their place, after the answers before them.

    A server that is overloaded is asked again when it says, for ``patience_s`` seconds a request.
    """
    waiting = _Waiting()
    order: SimpleQueue[Future[Batch[Answer]] | None] = SimpleQueue()
    unwritten = threading.Semaphore(MAX_UNWRITTEN_REQUESTS)
    taking = threading.Lock()

    def read() -> None:
        try:
            for line in lines:
                if not waiting.put(line):
                    return
            waiting.finish()
        except Exception as error:
            waiting.finish(error)

    def work() -> None:
        while True:
            future: Future[Batch[Answer]] = Future()
            with taking:  # a request's place in the order is that of its taking
                unwritten.acquire()
                try:
                    taken = waiting.take()
                except Exception as error:
                    future.set_result(Batch([], [], error))
                order.put(future if future.done() or taken else None)
            if future.done() or not taken:
                return
            future.set_result(_answer_batch(taken, ask, patience_s))

    for target in (read, *[work] * REQUESTS_UNDER_WAY):
        # Daemons: one that waits for a line, or for an answer, must not keep the program from ending.
        threading.Thread(target=target, name=f"answer-lines-{target.__name__}", daemon=True).start()
    try:
        while (future := order.get()) is not None:
            batch = future.result()
            yield batch
            if batch.error is not None:
                raise batch.error
            unwritten.release()
    finally:
        waiting.finish(discard=True)
        unwritten.release(MAX_UNWRITTEN_REQUESTS)


def _answer_batch(lines: list[Line], ask: Ask[Answer], patience_s: float) -> Batch[Answer]:
    give_up = time.monotonic() + patience_s
    while True:
        try:
            return Batch(lines, ask([line.text for line in lines]))
        except JumokError as error:
            if error.retry_after_s is not None and time.monotonic() + error.retry_after_s < give_up:
                time.sleep(max(error.retry_after_s, MIN_RETRY_S))
                continue
            if error.field in FIELDS_OF_SIZE and len(lines) > 1:
                return _answer_halves(lines, ask, patience_s)
            return _before_error(lines, error, ask, patience_s)
        except Exception as error:
            return Batch([], [], error)


def _answer_halves(lines: list[Line], ask: Ask[Answer], patience_s: float) -> Batch[Answer]:
    """Ask in two requests for what is too much for one."""
    middle = len(lines) // 2
    first = _answer_batch(lines[:middle], ask, patience_s)
    if first.error is not None:
        return first
    second = _answer_batch(lines[middle:], ask, patience_s)
    return Batch([*first.lines, *second.lines], [*first.answers, *second.answers], second.error)


def _before_error(lines: list[Line], error: JumokError, ask: Ask[Answer], patience_s: float) -> Batch[Answer]:
    """Answer the lines before the one that a refused request blames, and name that line in the error."""
    index = blamed_line(error)
    if index is None or index >= len(lines):
        return Batch([], [], error)
    before: Batch[Answer] = _answer_batch(lines[:index], ask, patience_s) if index else Batch([], [])
    if before.error is not None:
        return before
    return Batch(before.lines, before.answers, InputError.of(lines[index], error))


def blamed_line(error: JumokError) -> int | None:
    """Which of a request's texts an error blames; None where it is none of them."""
    blamed = re.fullmatch(r"(?:contents|targets|target_prefixes)\[(\d+)\]", error.field)
    return None if blamed is None else int(blamed[1])


class _Waiting:
    """Lines that were read and not yet taken; bounded."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: Exception | None = None

    def put(self, line: Line) -> bool:
        """Add a line when there is room; False when nobody will take it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._lines) < MAX_WAITING_LINES)
            if not self._ended:
                self._lines.append(line)
                self._changed.notify_all()
            return not self._ended

    def finish(self, error: Exception | None = None, *, discard: bool = False) -> None:
        """Say that no line comes any more, and why."""
        with self._changed:
            self._ended = True
            self._error = error
            if discard:
                self._lines.clear()
            self._changed.notify_all()

    def take(self) -> list[Line]:
        """Wait for a line, and give what is there up to a request's limits; nothing at the end, or raise its reason."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or bool(self._lines))
            taken: list[Line] = []
            size = 0
            while self._lines and len(taken) < MAX_REQUEST_LINES:
                size += self._lines[0].size
                if taken and size > MAX_REQUEST_BYTES:
                    break
                taken.append(self._lines.popleft())
            if not taken and self._error is not None:
                raise self._error
            self._changed.notify_all()
            return taken
