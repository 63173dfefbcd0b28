"""Requests of many input lines each, two in flight, results in order."""

import codecs
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, Generic, Self, TypeVar

import click

from jumok_proto.errors import JumokError
from jumok_proto.parameters import parameter_name

STDIN = 0
MAX_REQUEST_LINES = 128
MAX_REQUEST_BYTES = 64 * 2**10
MAX_LINE_BYTES = 2**20
MAX_QUEUED_LINES = 4 * MAX_REQUEST_LINES
REQUESTS_IN_FLIGHT = 2
MAX_UNWRITTEN_REQUESTS = 2 * REQUESTS_IN_FLIGHT
MIN_RETRY_S = 0.05
SIZE_FIELDS = ("contents", "attention")
"""Fields that a server blames if a request is too large as a whole."""

Answer = TypeVar("Answer")
Request = Callable[[list[str]], list[Answer]]
"""Sends texts in one request; gives one answer for each."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of input.

    Attributes:
        text: the line, or empty if it cannot be read.
        name: name of the line in errors.
        size: bytes, line end included.
        problem: the reason why it cannot be read, or empty.
        carriage_return: True if one ends the line, besides the line feed.
        is_document: True if it is the whole input, with line ends.
    """

    text: str
    name: str
    size: int
    problem: str = ""
    carriage_return: bool = False
    is_document: bool = False


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
    """Answers to consecutive lines, and the error that ended the input after them."""

    lines: list[Line]
    answers: list[Answer]
    error: Exception | None = None


def open_lines(source: Path | None) -> tuple[int, Iterator[Line]]:
    """Open a file, or standard input; returns its descriptor and its lines.

    It stays open until the program ends, because closing would wait for a thread that reads it.
    """
    stream = open(STDIN if source is None else source, "rb", closefd=source is not None)  # noqa: SIM115
    if source is None and stream.isatty():
        click.echo("Reading lines from the terminal; Ctrl-D ends them.", err=True)
    return stream.fileno(), read_lines(stream, "standard input" if source is None else str(source))


def open_texts(
    texts: Sequence[str],
    source: Path | None,
    open_source: Callable[[Path | None], tuple[int | None, Iterator[Line]]] = open_lines,
) -> tuple[int | None, Iterator[Line]]:
    """Make lines of the texts of a command, or open its source if there are none."""
    if not texts:
        return open_source(source)
    if source is not None:
        raise click.UsageError(f"give texts, or --input {source}, not both")
    return None, (Line(text, f"text {number}", len(text)) for number, text in enumerate(texts, start=1))


def readable(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines; raise InputError at the first that cannot be read."""
    for line in lines:
        if line.problem:
            raise InputError(f"{line.name}: {line.problem}")
        yield line


def open_document(source: Path | None) -> tuple[int | None, Iterator[Line]]:
    """Read a file, or standard input, as one text; it has the name of the source in errors."""
    stream = open(STDIN if source is None else source, "rb", closefd=source is not None)  # noqa: SIM115
    name = "standard input" if source is None else str(source)
    with stream:
        data = stream.read(MAX_LINE_BYTES + 1)
    if len(data) > MAX_LINE_BYTES:
        return None, iter([Line("", name, len(data), f"longer than {MAX_LINE_BYTES} bytes")])
    data = data.removeprefix(codecs.BOM_UTF8)
    return None, iter([_decoded(data, name, len(data), is_document=True)])


def read_lines(stream: BinaryIO, source: str = "standard input") -> Iterator[Line]:
    """Read the lines of a source, given by its name too; unusable ones have a ``problem``."""
    number = 0
    while data := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        name, size = f"{source}, line {number}", len(data)
        if number == 1:
            data = data.removeprefix(codecs.BOM_UTF8)
        if size > MAX_LINE_BYTES:
            while data and not data.endswith(b"\n"):
                data = stream.readline(MAX_LINE_BYTES)
                size += len(data)
            yield Line("", name, size, f"longer than {MAX_LINE_BYTES} bytes")
            continue
        content = data.removesuffix(b"\n")
        text = content.removesuffix(b"\r")
        yield _decoded(text, name, size, carriage_return=content != text)


def _decoded(data: bytes, name: str, size: int, *, carriage_return: bool = False, is_document: bool = False) -> Line:
    """Make a line of its bytes."""
    try:
        return Line(data.decode("utf-8"), name, size, "", carriage_return, is_document)
    except UnicodeDecodeError as error:
        at = f"byte {error.start + 1}: 0x{data[error.start]:02x}"
        return Line("", name, size, f"{at} is not UTF-8 ({error.reason}); convert it", carriage_return)


def answer_lines(lines: Iterable[Line], request: Request[Answer], *, retry_s: float) -> Iterator[Batch[Answer]]:
    """Request answers as lines arrive; an error comes after earlier answers.

    A request that an overloaded server refuses is retried, for ``retry_s`` seconds.
    """
    queue = _LineQueue()
    order: SimpleQueue[Future[Batch[Answer]] | None] = SimpleQueue()
    unwritten = threading.Semaphore(MAX_UNWRITTEN_REQUESTS)
    take_lock = threading.Lock()

    def read() -> None:
        try:
            for line in lines:
                if not queue.put(line):
                    return
            queue.finish()
        except Exception as error:
            queue.finish(error)

    def work() -> None:
        while True:
            future: Future[Batch[Answer]] = Future()
            with take_lock:  # answers come in the order in which lines are taken
                unwritten.acquire()
                try:
                    taken = queue.take()
                except Exception as error:
                    future.set_result(Batch([], [], error))
                order.put(future if future.done() or taken else None)
            if future.done() or not taken:
                return
            future.set_result(_answer_batch(taken, request, retry_s))

    for target in (read, *[work] * REQUESTS_IN_FLIGHT):
        # Daemons, because a thread that waits for a line or an answer must not keep the program from ending.
        threading.Thread(target=target, name=f"answer-lines-{target.__name__}", daemon=True).start()
    try:
        while (future := order.get()) is not None:
            batch = future.result()
            yield batch
            if batch.error is not None:
                raise batch.error
            unwritten.release()
    finally:
        queue.finish(discard=True)
        unwritten.release(MAX_UNWRITTEN_REQUESTS)


def _answer_batch(lines: list[Line], request: Request[Answer], retry_s: float) -> Batch[Answer]:
    give_up = time.monotonic() + retry_s
    while True:
        try:
            return Batch(lines, request([line.text for line in lines]))
        except JumokError as error:
            if error.retry_after_s is not None and time.monotonic() + error.retry_after_s < give_up:
                time.sleep(max(error.retry_after_s, MIN_RETRY_S))
                continue
            if error.field in SIZE_FIELDS and len(lines) > 1:
                return _answer_halves(lines, request, retry_s)
            return _before_error(lines, error, request, retry_s)
        except Exception as error:
            return Batch([], [], error)


def _answer_halves(lines: list[Line], request: Request[Answer], retry_s: float) -> Batch[Answer]:
    """Split a request that is too large in two."""
    middle = len(lines) // 2
    first = _answer_batch(lines[:middle], request, retry_s)
    if first.error is not None:
        return first
    second = _answer_batch(lines[middle:], request, retry_s)
    return Batch([*first.lines, *second.lines], [*first.answers, *second.answers], second.error)


def _before_error(lines: list[Line], error: JumokError, request: Request[Answer], retry_s: float) -> Batch[Answer]:
    """Answer the lines before the one that an error blames.

    The error is changed to name that line.
    """
    index = blamed_line(error, len(lines))
    if index is None or index >= len(lines):
        return Batch([], [], error)
    before: Batch[Answer] = _answer_batch(lines[:index], request, retry_s) if index else Batch([], [])
    if before.error is not None:
        return before
    return Batch(before.lines, before.answers, InputError.of(lines[index], error))


def blamed_line(error: JumokError, lines: int) -> int | None:
    """Give the index of the text that an error of a request blames, or None."""
    if lines == 1 and error.field in SIZE_FIELDS:
        return 0
    blamed = re.fullmatch(r"(?:contents|targets|target_prefixes)\[(\d+)\]", error.field)
    return None if blamed is None else int(blamed[1])


class _LineQueue:
    """A bounded queue of lines."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: Exception | None = None

    def put(self, line: Line) -> bool:
        """Wait for room and add a line; return False after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._lines) < MAX_QUEUED_LINES)
            if not self._ended:
                self._lines.append(line)
                self._changed.notify_all()
            return not self._ended

    def finish(self, error: Exception | None = None, *, discard: bool = False) -> None:
        """End the queue, with an error if there is one."""
        with self._changed:
            self._ended = True
            self._error = error
            if discard:
                self._lines.clear()
            self._changed.notify_all()

    def take(self) -> list[Line]:
        """Wait for lines, and take up to a request's limits.

        At the end no lines are returned, or the error of the input is raised.
        """
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
