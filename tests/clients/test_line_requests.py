"""Lines of ``jumok translate`` as requests: order, sizes, latency, bad lines."""

import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator

import pytest

from jumok.commands._line_requests import (
    MAX_LINE_BYTES,
    MAX_QUEUED_LINES,
    MAX_REQUEST_BYTES,
    MAX_REQUEST_LINES,
    MAX_UNWRITTEN_REQUESTS,
    InputError,
    Line,
    Outcome,
    answer_lines,
    read_lines,
)
from jumok.commands._output import as_json, n_best, one_line
from jumok_proto.errors import InvalidArgumentError, JumokError, parameter_name
from jumok_proto.results import Translation
from tests.support.corpus_jobs import in_capitals, translation
from tests.support.hang import HANG_S


def raising(error: Exception) -> Callable[[list[str]], list[Translation]]:
    def translate(texts: list[str]) -> list[Translation]:
        raise error

    return translate


def lines(*texts: str) -> list[Line]:
    return [Line(text, f"text {number}", len(text)) for number, text in enumerate(texts, start=1)]


def outputs(outcomes: Iterator[tuple[Line, Outcome]]) -> Iterator[str]:
    for _, outcome in outcomes:
        yield str(outcome) if isinstance(outcome, InputError) else outcome.text


def test_lines_are_split_as_files_are() -> None:
    stream = io.BytesIO("one\n\n  \ntwo\r\n\u2028drei\u0085\nlast".encode())
    read = list(read_lines(stream))
    assert [line.text for line in read] == ["one", "", "  ", "two", "\u2028drei\u0085", "last"]
    assert sum(line.size for line in read) == len(stream.getvalue())
    assert read[3].name == "standard input, line 4"
    assert list(read_lines(io.BytesIO())) == []


def test_many_lines_are_translated_in_order_and_in_large_requests() -> None:
    sizes = []

    def translate(texts: list[str]) -> list[Translation]:
        sizes.append(len(texts))
        return in_capitals(texts)

    texts = [f"line {number}" for number in range(2000)]
    done = list(outputs(answer_lines(lines(*texts), translate, retry_s=1)))
    assert done == [text.upper() for text in texts]
    assert sum(sizes) == 2000
    assert max(sizes) <= MAX_REQUEST_LINES


def test_long_lines_make_small_requests() -> None:
    sizes = []

    def translate(texts: list[str]) -> list[Translation]:
        sizes.append(sum(map(len, texts)))
        return in_capitals(texts)

    half = "x" * (MAX_REQUEST_BYTES // 2)
    done = list(outputs(answer_lines(lines(*[half] * 5, half * 3), translate, retry_s=1)))
    assert len(done) == 6
    assert sorted(sizes)[-1] == 3 * len(half)
    assert sorted(sizes)[-2] <= 2 * len(half)


def test_two_requests_are_in_flight() -> None:
    together = threading.Barrier(2, timeout=HANG_S)

    def translate(texts: list[str]) -> list[Translation]:
        together.wait()
        return in_capitals(texts)

    texts = ["x" * MAX_REQUEST_BYTES] * 4
    assert len(list(outputs(answer_lines(lines(*texts), translate, retry_s=1)))) == 4


def test_a_line_is_answered_before_the_next_arrives() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as typed:
        answers = outputs(answer_lines(read_lines(stream), in_capitals, retry_s=1))
        for text in ("one", "two", "three", "four", "five", "six"):
            typed.write(f"{text}\n".encode())
            assert next(answers) == text.upper()
        typed.write(b"seven")
        typed.close()
        assert list(answers) == ["SEVEN"]


def test_lines_after_the_first_error_are_not_asked_for_if_it_ends_the_input() -> None:
    asked: list[str] = []
    held, read = threading.Semaphore(0), threading.Event()

    def in_one_request(texts: Iterable[Line]) -> Iterator[Line]:
        """Keep both requests in flight busy with a line each until all others are read."""
        for line in lines("first", "second"):
            yield line
            assert held.acquire(timeout=HANG_S)
        yield from texts
        read.set()

    def translate(texts: list[str]) -> list[Translation]:
        if texts in (["first"], ["second"]):
            held.release()
            assert read.wait(HANG_S)
            return in_capitals(texts)
        if "bad" in texts:
            raise InvalidArgumentError("it is bad", field=f"contents[{texts.index('bad')}]")
        asked.extend(texts)
        return in_capitals(texts)

    def answers(texts: Iterable[Line], *, until_error: bool = True) -> Iterator[str]:
        read.clear()
        found = outputs(answer_lines(in_one_request(texts), translate, retry_s=1, until_error=until_error))
        assert [next(found), next(found)] == ["FIRST", "SECOND"]
        return found

    assert list(answers(lines("one", "two", "bad", "three")))[:2] == ["ONE", "TWO"]
    assert asked == ["one", "two"]
    unread = [*lines("four"), Line("", "text 2", 9, "longer than 8 bytes"), *lines("five")]
    assert next(answers(unread)) == "FOUR"
    assert asked == ["one", "two", "four"]
    assert list(answers(unread, until_error=False))[1:] == ["text 2: longer than 8 bytes", "FIVE"]
    assert "" not in asked


def test_a_slow_writer_stops_the_reader() -> None:
    read = 0

    def endless() -> Iterator[Line]:
        nonlocal read
        while True:
            read += 1
            yield Line("x", "text", 1)

    answers = answer_lines(endless(), in_capitals, retry_s=1)
    for _ in range(50 * MAX_REQUEST_LINES):
        next(answers)
    # Written so far, waiting to be written, waiting to be sent, and the one in the reader's hand.
    assert read <= 50 * MAX_REQUEST_LINES + MAX_UNWRITTEN_REQUESTS * MAX_REQUEST_LINES + MAX_QUEUED_LINES + 1
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("answer-lines")]
    assert len(threads) >= 3
    answers.close()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive()


def test_unreadable_lines_do_not_stop_the_others() -> None:
    data = b"one\nab\xff\n\xed\xa0\x80\n" + b"x" * (2 * MAX_LINE_BYTES + 5) + b"\nfive\n" + b"x" * (MAX_LINE_BYTES + 1)
    read = list(read_lines(io.BytesIO(data)))
    assert [line.text for line in read] == ["one", "", "", "", "five", ""]
    assert [line.name for line in read] == [f"standard input, line {number}" for number in range(1, 7)]
    assert sum(line.size for line in read) == len(data)
    assert [line.problem.partition(" (")[0] for line in read] == [
        "",
        "byte 3: 0xff is not UTF-8",
        "byte 1: 0xed is not UTF-8",
        f"longer than {MAX_LINE_BYTES} bytes",
        "",
        f"longer than {MAX_LINE_BYTES} bytes",
    ]


@pytest.mark.parametrize("part", ["contents", "targets"])
def test_refused_lines_are_named_and_the_others_are_answered(part: str) -> None:
    def translate(texts: list[str]) -> list[Translation]:
        for index, text in enumerate(texts):
            if text in {"bad", "worse"}:
                field = f"{part}[{index}]"
                raise JumokError(f"{parameter_name(field)}: too long", field=field)
        return in_capitals(texts)

    texts = ["bad", "a", "bad", "worse", "b", "c", "bad"]
    found = list(answer_lines([*lines(*texts), Line("", "text 8", 1, "not UTF-8")], translate, retry_s=1))
    assert [line.name for line, _ in found] == [f"text {number}" for number in range(1, 9)]
    said = list(outputs(iter(found)))
    assert said[:4] == ["text 1: too long", "A", "text 3: too long", "text 4: too long"]
    assert said[4:] == ["B", "C", "text 7: too long", "text 8: not UTF-8"]


def test_answers_of_a_request_that_was_split_come_before_its_error() -> None:
    def translate(texts: list[str]) -> list[Translation]:
        if len(texts) > 1:
            raise JumokError("too many", field="contents")
        if texts == ["c"]:
            raise JumokError("gone")
        return in_capitals(texts)

    answers = outputs(answer_lines(lines(*"abcd"), translate, retry_s=1))
    assert [next(answers), next(answers)] == ["A", "B"]
    with pytest.raises(JumokError, match="gone"):
        next(answers)


class TooMuch(JumokError):
    """A request that a server could answer in parts."""


@pytest.mark.parametrize("field", ["contents", "attention"])
def test_a_request_that_is_too_large_is_split(field: str) -> None:
    sizes: list[int] = []

    def translate(texts: list[str]) -> list[Translation]:
        if len(texts) > 3:
            raise TooMuch(field=field)
        if "ab" in texts:
            raise InputError("no")
        sizes.append(len(texts))
        return in_capitals(texts)

    texts = [chr(97 + number) for number in range(20)]
    assert list(outputs(answer_lines(lines(*texts), translate, retry_s=1))) == [text.upper() for text in texts]
    assert max(sizes) > 1
    with pytest.raises(InputError, match="no"):
        list(answer_lines(lines(*texts, "ab"), translate, retry_s=1))
    (said,) = outputs(answer_lines(lines("a"), raising(TooMuch(field=field)), retry_s=1))
    assert said.startswith("text 1: ")


def test_an_overloaded_server_is_retried() -> None:
    attempts = 0

    def translate(texts: list[str]) -> list[Translation]:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise JumokError("full", retry_after_s=0.001)
        return in_capitals(texts)

    assert list(outputs(answer_lines(lines("a"), translate, retry_s=30))) == ["A"]
    assert attempts == 3


@pytest.mark.parametrize("error", [JumokError("full", retry_after_s=2.0), JumokError("gone"), RuntimeError("a bug")])
def test_other_errors_are_raised(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        list(answer_lines(lines("a", "b"), raising(error), retry_s=1))


def test_a_translation_is_one_line() -> None:
    answer = translation("a\nb\r\nc\u2028d\x85e\x0bf", "g\th\n")
    assert one_line(answer.text) == "a b c\u2028d\x85e\x0bf"
    assert n_best(answer, 3) == "3\t1\t-1.000000\ta b c\u2028d\x85e\x0bf\n3\t2\t-2.000000\tg\th"
    assert "\n" not in as_json(answer, "x\ny")
