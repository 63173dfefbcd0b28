"""Input lines, and their answers in order: many lines a request, or one call of a server for all."""

import codecs
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, Self, TypeAlias, TypeVar

import click

from jumok import Client, TextResult, Translation
from jumok._concurrency import WAKE_S
from jumok.commands._options import LocalTranslator
from jumok_proto.errors import JumokError, parameter_name

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
_Value = TypeVar("_Value")
Request = Callable[[list[str]], Sequence[Answer]]
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
    def unread(cls, line: Line) -> Self:
        """Make the error of a line that has a problem."""
        return cls(f"{line.name}: {line.problem}")

    @classmethod
    def of(cls, line: Line, error: JumokError) -> Self:
        """Make the error of a line, which names the line instead of the parameter."""
        problem = str(error).removeprefix(f"{error.field}: ").removeprefix(f"{parameter_name(error.field)}: ")
        refusal = cls(f"{line.name}: {problem}")
        refusal.__cause__ = error
        return refusal


_Batch: TypeAlias = tuple[list[tuple[Line, Answer | InputError]], Exception | None]
"""Consecutive lines with their outcomes, and the error that ended the input after them."""


Outcome: TypeAlias = Translation | InputError
TranslateIter = Callable[[Iterator[str]], Generator[TextResult, None, None]]
Runner: TypeAlias = Callable[[Iterable[Line]], Generator[tuple[Line, Outcome], None, None]]
"""Translates lines: yields each with its translation or error, as `answer_lines` does."""


def outcome_of(line: Line, answer: Answer | JumokError) -> Answer | InputError:
    """Return the answer to a line, or the error that names it."""
    if line.problem:
        return InputError.unread(line)
    return InputError.of(line, answer) if isinstance(answer, JumokError) else answer


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


def answer_lines(
    lines: Iterable[Line], request: Request[Answer], *, retry_s: float, until_error: bool = False
) -> Generator[tuple[Line, Answer | InputError], None, None]:
    """Yield each line with its answer or error, in order and as soon as possible.

    Lines are read in another thread. An exception of ``lines``, or of a request as a whole, is raised after the
    outcomes of earlier lines. A request that an overloaded server refuses is retried, for ``retry_s`` seconds.

    Args:
        until_error: True if the first error of a line ends the input: lines after it are not asked for.
    """
    queue = _LineQueue()
    order: SimpleQueue[Future[_Batch[Answer]] | None] = SimpleQueue()
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
            future: Future[_Batch[Answer]] = Future()
            with take_lock:  # answers come in the order in which lines are taken
                unwritten.acquire()
                taken = queue.take()
                order.put(future if taken else None)
            if not taken:
                return
            future.set_result(_answer_batch(taken, request, retry_s, until_error=until_error))

    for target in (read, *[work] * REQUESTS_IN_FLIGHT):
        # Daemons, because a thread that waits for a line or an answer must not keep the program from ending.
        threading.Thread(target=target, name=f"answer-lines-{target.__name__}", daemon=True).start()
    try:
        while (future := _next(order)) is not None:
            while not wait([future], WAKE_S).done:
                pass
            outcomes, error = future.result()
            yield from outcomes
            if error is not None:
                raise error
            unwritten.release()
        if queue.error is not None:
            raise queue.error
    finally:
        queue.finish(discard=True)
        unwritten.release(MAX_UNWRITTEN_REQUESTS)


def _next(order: "SimpleQueue[_Value]") -> _Value:
    """Wait for a value, a moment at a time."""
    while True:
        with suppress(Empty):
            return order.get(timeout=WAKE_S)


def _answer_batch(lines: list[Line], request: Request[Answer], retry_s: float, *, until_error: bool) -> _Batch[Answer]:
    outcomes: list[tuple[Line, Answer | InputError]] = []
    asked = list(takewhile(lambda line: not line.problem, lines)) if until_error else lines
    answers = _answers([line.text for line in asked if not line.problem], request, retry_s)
    try:
        for line in lines:
            outcomes.append((line, InputError.unread(line) if line.problem else outcome_of(line, next(answers))))
            if until_error and isinstance(outcomes[-1][1], InputError):
                break
    except Exception as error:
        return outcomes, error
    return outcomes, None


def _answers(texts: list[str], request: Request[Answer], retry_s: float) -> Iterator[Answer | JumokError]:
    """Yield the answer to each text, or the error that blames it.

    A request that is too large as a whole is split in two.
    """
    give_up = time.monotonic() + retry_s
    while texts:
        try:
            yield from request(texts)
        except JumokError as error:
            if error.retry_after_s is not None and time.monotonic() + error.retry_after_s < give_up:
                time.sleep(max(error.retry_after_s, MIN_RETRY_S))
                continue
            blamed = re.fullmatch(r"(?:contents|targets|target_prefixes)\[(\d{1,9})\]", error.field)
            if blamed is not None and int(blamed[1]) < len(texts):
                end, rest = int(blamed[1]), int(blamed[1]) + 1
            elif error.field in SIZE_FIELDS:
                end, rest = len(texts) // 2, max(len(texts) // 2, 1)
            else:
                raise
            yield from _answers(texts[:end], request, retry_s)
            yield from [error] * (rest - end)
            yield from _answers(texts[rest:], request, retry_s)
        return


class _LineQueue:
    """A bounded queue of lines."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self.error: Exception | None = None

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
            self.error = error
            if discard:
                self._lines.clear()
            self._changed.notify_all()

    def take(self) -> list[Line]:
        """Wait for lines, and take up to a request's limits; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or bool(self._lines))
            taken: list[Line] = []
            size = 0
            while self._lines and len(taken) < MAX_REQUEST_LINES:
                size += self._lines[0].size
                if taken and size > MAX_REQUEST_BYTES:
                    break
                taken.append(self._lines.popleft())
            self._changed.notify_all()
            return taken


def make_runner(
    translator: Client | LocalTranslator,
    *,
    model: str,
    timeout_s: float,
    target_prefix: str | None = None,
    **settings: Any,
) -> Runner:
    """Make the runner of a server or a bundle.

    Args:
        model: name of the server's model; empty: chosen by the server.
        timeout_s: timeout of a request; an overloaded translator is asked again for as long.
        target_prefix: beginning of each translation.
        settings: further parameters of ``translate``.
    """
    if isinstance(translator, Client):
        translate_iter = partial(
            translator.translate_iter, model=model, timeout_s=timeout_s, target_prefix=target_prefix, **settings
        )
        return partial(_by_server, translate_iter=translate_iter)
    translate = translator.translate

    def translate_lines(contents: list[str]) -> list[Translation]:
        prefixes = None if target_prefix is None else [target_prefix] * len(contents)
        return translate(contents, target_prefix=prefixes, timeout_s=timeout_s, **settings)

    return partial(answer_lines, request=translate_lines, retry_s=timeout_s)


def _by_server(lines: Iterable[Line], translate_iter: TranslateIter) -> Generator[tuple[Line, Outcome], None, None]:
    """Translate lines through a server, in one call; in order, and as they arrive."""
    sent: deque[Line] = deque()

    def texts() -> Iterator[str]:
        for line in lines:
            sent.append(line)
            yield line.text

    with closing(translate_iter(texts())) as results:
        for result in results:
            line = sent.popleft()
            yield line, outcome_of(line, result.outcome)
