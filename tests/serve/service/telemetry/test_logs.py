"""Logs that cannot be forged, and that hold up no call."""

import json
import logging
import re
import signal
import sys
import threading
from pathlib import Path

import pytest

import jumok
from jumok_proto.errors import printable
from jumok_serve.service.rpc.call import REQUEST_ID
from jumok_serve.service.telemetry import logs
from jumok_serve.service.telemetry.logs import (
    TEXT_FORMAT,
    CallLog,
    JsonFormatter,
    QueuedHandler,
    TextFormatter,
    dropped_lines,
    logging_to_stderr,
    printable_json,
    writing,
)
from tests.support.command import serve
from tests.support.hang import HANG_S
from tests.support.logs import own_records
from tests.support.servers.fake_model import ONE, FakeModel, serving, stub_of

FORGERIES = [
    "a\n2026-01-01 ERROR forged",
    "a\r\x1b[2K\x9b31m",
    "a\u2028b\u2029c\x85",
    "\udcff\ud800",
    "\u202egnp.exe",
    "\0",
]


@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_name_begins_a_line_or_moves_the_cursor(forgery: str) -> None:
    try:
        raise ValueError(forgery)
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("jumok_serve.any", logging.INFO, __file__, 1, "bundle %s", (forgery,), error)
    first, *others = TextFormatter(TEXT_FORMAT).format(record).split("\n")
    assert first.endswith(f"INFO jumok_serve.any: bundle {printable(forgery)}")
    assert others[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in others)
    written = JsonFormatter().format(record)
    assert written.isprintable()
    assert json.loads(written)["message"] == f"bundle {forgery}"
    written.encode()


def test_printable_text_is_kept() -> None:
    for text in ("", "größer 日本語 😀 'a' \\n", "한국어"):
        assert printable(text) == text
        assert json.loads(printable_json([text])) == [text]
    assert printable("a\nb\x1b\udcff\U000e0001") == "a\\nb\\x1b\\udcff\\U000e0001"
    assert json.loads(printable_json({"a": "\U000e0001\u2028"})) == {"a": "\U000e0001\u2028"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("0af76519-16cd.43dd:8448/1", True),
        ("Root=1;Parent=2", False),
        ("x code=OK caller=admin", False),
        (" x", False),
        ('"x"', False),
        ("x\\n", False),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
    ],
)
async def test_an_id_that_could_forge_a_line_is_replaced(
    given: str, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="jumok_serve.calls")
    async with serving(FakeModel(), observers=[CallLog(texts=False)]) as (_, channel):
        call = stub_of(channel).TranslateText(ONE, metadata=((REQUEST_ID, given),))
        assert await call
        used = dict(await call.trailing_metadata())[REQUEST_ID]
    assert (used == given) is kept
    assert kept or re.fullmatch("[0-9a-f]{32}", used)
    (record,) = own_records(caplog)
    words = record.getMessage().split()
    assert words[1] == "OK"
    assert [word for word in words if word.startswith("request_id=")] == [f"request_id={used}"]


def test_lines_that_find_the_queue_full_are_counted(
    root_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_QUEUED_CHARACTERS", 100)
    written: list[str] = []
    reading, blocked = threading.Event(), threading.Event()

    def write(line: str) -> None:
        blocked.set()
        assert reading.wait(HANG_S)
        written.append(line)

    handler = QueuedHandler()
    handler.setFormatter(TextFormatter("%(message)s"))
    root_logger.handlers = [handler]
    with writing(handler, write):
        root_logger.warning("first")
        assert blocked.wait(HANG_S)
        for number in range(50):
            root_logger.warning("line %2d", number)  # 8 characters: 13 fill the queue
        assert dropped_lines() == handler.dropped == 37
        reading.set()
    first, said, *kept = written
    assert (first, kept) == ("first\n", [f"line {number:2}\n" for number in range(13)])
    assert said == "37 lines were dropped: standard error was not read in time\n"


def test_a_writer_that_is_stuck_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FLUSH_S", 0.05)
    never = threading.Event()
    handler = QueuedHandler()

    def write(line: str) -> None:
        never.wait()

    with writing(handler, write):
        handler.handle(logging.LogRecord("any", logging.INFO, __file__, 1, "stuck", None, None))
    never.set()


def test_all_lines_are_written_at_the_end(root_logger: logging.Logger, capfd: pytest.CaptureFixture[str]) -> None:
    with logging_to_stderr(log_format="text", level="info"):
        for number in range(2000):
            root_logger.info("line %d of it", number)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.endswith(" of it")]
    assert [int(line.split()[-3]) for line in lines] == list(range(2000))


def test_a_log_that_is_not_read_holds_up_neither_calls_nor_the_end(tiny_bundle: Path) -> None:
    texts = ["a man " * 10] * 256
    with serve(tiny_bundle, "--log-requests", "--log-texts") as (process, address):
        with jumok.Client(address, timeout_s=HANG_S) as client:
            for _ in range(10):  # 15 KB of texts each; a pipe holds 64 KiB
                client.translate(texts, max_length=1, beam_size=1, truncate=True)
            assert client.list_models()
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0
        assert process.stderr is not None
        *whole, _ = process.stderr.read().splitlines()  # the last one that fits the pipe is cut
        assert whole
        assert all(re.match(r"\d{4}-\d\d-\d\d \S+ INFO ", line) for line in whole)
