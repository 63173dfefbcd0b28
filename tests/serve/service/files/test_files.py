"""Files over gRPC: SDK and command line, progress, problems, refusals, and rows that are freed."""

import asyncio
import gc
import io
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import jumok
from jumok_proto.errors import InvalidArgumentError
from jumok_proto.v1.file_pb2 import FileSettings, TranslateFileRequest
from jumok_proto.v1.translation_pb2 import CORPUS_ORDER_INPUT, CorpusSettings
from jumok_serve import Translator
from jumok_serve.service.handlers.file_service import MAX_OPEN_FILES, READING_THREADS
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.text.files.document import FileDocument, FileFormat, known_formats
from tests.serve.text.test_long_sentences import LONG
from tests.support.clients import await_, wait
from tests.support.command import run_here
from tests.support.hang import HANG_S, until
from tests.support.logs import OF_ANOTHER_LOOP
from tests.support.office import archive_of, document, members
from tests.support.servers.fake_model import FakeModel, failure, hold, received, stub_of
from tests.support.servers.fake_model import serving as serving_fake
from tests.support.servers.in_process_server import check_idle, serving

SRT = "1\n00:00:01,000 --> 00:00:02,500\nTwo women\nare talking.\n\n2\n00:00:03,000 --> 00:00:04,000\nA dog.\n"
XLIFF = (
    '<xliff version="1.2"><file source-language="en" target-language="de"><body><trans-unit id="1">'
    "<source>A dog.</source></trans-unit></body></file></xliff>"
)
SHORT: dict[str, Any] = {"beam_size": 1, "max_length": 6}


@pytest.fixture(scope="module")
def address(translator: Translator) -> Iterator[str]:
    with serving(translator, limits=ServiceLimits(max_file_bytes=200_000)) as served:
        yield served


@pytest.fixture
def client(address: str, translator: Translator) -> Iterator[jumok.Client]:
    with jumok.Client(address) as connected:
        yield connected
    check_idle(translator)


def test_lines_of_a_file(client: jumok.Client, translator: Translator, tmp_path: Path) -> None:
    lines = ["A man sleeps.  A dog.", "", "  Two women\t", "***"] * 100
    (tmp_path / "a.txt").write_text("\r\n".join(lines), encoding="utf-8", newline="")
    seen: list[tuple[int, int]] = []
    result = client.translate_file(
        tmp_path / "a.txt", tmp_path / "b.txt", on_progress=lambda *numbers: seen.append(numbers), **SHORT
    )
    first, second = (one.text for one in translator.translate(["A man sleeps.  A dog.", "Two women"], **SHORT))
    wanted = [first, "", f"  {second}\t", "***"] * 100
    assert (tmp_path / "b.txt").read_bytes().decode() == "\r\n".join(wanted)
    assert result == jumok.FileResult(text_count=200)
    assert seen == sorted(seen)
    assert seen[-1] == (200, 200)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_file_as_bytes_and_its_languages(client: jumok.Client, translator: Translator) -> None:
    out = io.BytesIO()
    options: dict[str, Any] = {"source_language": "auto", "target_language": "de", "glossary": {"dog": "Hund"}}
    result = client.translate_file(io.BytesIO(SRT.encode()), out, file_format="srt", **options, **SHORT)
    assert result.text_count == 2
    dog = translator.translate("A dog.", glossary={"dog": "Hund"}, markup="html", **SHORT).text
    assert out.getvalue().decode().endswith(f"\n\n2\n00:00:03,000 --> 00:00:04,000\n{dog}\n")
    assert "Hund" in dog


PAGE = "<html><body><p>A <b>brown</b> dog.<br>Two women.</p><pre>code</pre></body></html>\n"
UNITS = '<xliff version="1.2"><trans-unit id="1"><source>A <g id="1">brown</g> dog.</source></trans-unit></xliff>'


def translated(client: jumok.Client, content: str, file_format: str, **options: Any) -> str:
    out = io.BytesIO()
    client.translate_file(io.BytesIO(content.encode()), out, file_format=file_format, **options, **SHORT)
    return out.getvalue().decode()


def test_tags_are_in_the_translation_once(client: jumok.Client, translator: Translator) -> None:
    page = translated(client, PAGE, "html")
    inside, women = (
        translator.translate(one, markup="html", **SHORT).text for one in ("A <b>brown</b> dog.", "Two women.")
    )
    assert page == f"<html><body><p>{inside}<br>{women}</p><pre>code</pre></body></html>\n"
    units = translated(client, UNITS, "xliff")
    assert units.startswith(UNITS[: UNITS.index("</trans")] + "<target>")
    assert [units.count(tag) for tag in ('<g id="1">', "</g>", "<target>", "</target>")] == [2, 2, 1, 1]


def test_the_asynchronous_sdk(address: str, tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text(SRT, encoding="utf-8")
    for call, source, out in ((await_, tmp_path / "a.srt", "b.srt"), (wait, str(tmp_path / "a.srt"), "c.srt")):
        assert call("translate_file", address, source, tmp_path / out, **SHORT).text_count == 2
    assert (tmp_path / "b.srt").read_bytes() == (tmp_path / "c.srt").read_bytes()


def test_a_text_that_cannot_be_translated_stays(client: jumok.Client) -> None:
    out = io.BytesIO()
    result = client.translate_file(
        io.BytesIO(f"A dog.\n\n{'man ' * 300}.\nA dog.\n".encode()),
        out,
        file_format="text",
        split_sentences=False,
        **SHORT,
    )
    (problem,) = result.problems
    assert problem.line == 3
    assert isinstance(problem.error, jumok.InvalidArgumentError)
    lines = out.getvalue().decode().split("\n")
    assert lines[2] == f"{'man ' * 300}."
    assert lines[0] == lines[3] != "A dog."


def test_a_document_is_translated_and_its_problems_name_a_part(
    client: jumok.Client, address: str, translator: Translator, tmp_path: Path
) -> None:
    long = f"<w:p><w:r><w:t>{'man ' * 300}</w:t></w:r></w:p>"
    data = document("docx", f"<w:p/>{long}<w:p><w:r><w:rPr><w:b/></w:rPr><w:t>A dog.</w:t></w:r></w:p>")
    (tmp_path / "a.docx").write_bytes(data)
    result = client.translate_file(tmp_path / "a.docx", tmp_path / "b.docx", split_sentences=False, **SHORT)
    assert result.text_count == 2
    (problem,) = result.problems
    assert (problem.part, problem.line) == ("word/document.xml", 2)
    before, after = members(data), members((tmp_path / "b.docx").read_bytes())
    dog = translator.translate("A dog.", markup="xml", **SHORT).text
    wanted = before["word/document.xml"].decode().replace("A dog.", dog)
    assert after == {**before, "word/document.xml": wanted.encode()}
    arguments = ["--server", address, "--beam-size", "1", "--max-length", "6", "--no-cut-long-sentences"]
    ran = run_here("translate-file", str(tmp_path / "a.docx"), "--out", str(tmp_path / "c.docx"), *arguments)
    assert (ran.returncode, b"a.docx:word/document.xml:2: " in ran.stderr) == (1, True)


def test_the_properties_of_a_document_are_translated_if_they_are_asked_for(
    client: jumok.Client, address: str, tmp_path: Path
) -> None:
    entry = (
        b'<cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/core-properties" '
        b'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>A dog.</dc:title></cp:coreProperties>'
    )
    (tmp_path / "a.docx").write_bytes(archive_of(members(document("docx", "<w:p/>")) | {"docProps/core.xml": entry}))
    counts = [
        client.translate_file(tmp_path / "a.docx", tmp_path / "b.docx", document_properties=asked, **SHORT).text_count
        for asked in (False, True)
    ]
    assert counts == [0, 1]
    arguments = ["--document-properties", "--server", address, "--beam-size", "1", "--max-length", "6"]
    ran = run_here("translate-file", str(tmp_path / "a.docx"), "--out", str(tmp_path / "c.docx"), *arguments)
    assert (ran.returncode, ran.stderr) == (0, b"")
    written = members((tmp_path / "c.docx").read_bytes())
    assert written == members((tmp_path / "b.docx").read_bytes())
    assert written["docProps/core.xml"] != entry


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"%PDF-1.7", {"file_format": "text"}, "it is a PDF file: convert it to DOCX or text"),
        (b"1\n00:00:1 --> 2\nA\n", {"file_format": "srt"}, "line 2: the times of a cue must be as"),
        (b"a\n\xff", {"file_format": "text"}, "line 2: byte 0xff is not UTF-8: convert the file"),
        (b"a", {}, "has no known ending"),
        (b"a", {"file_format": "doc"}, "'doc' is unknown; choose of text"),
        (b"a" * 200_001, {"file_format": "text"}, "more than 200000 bytes: split it, or raise max_file_bytes"),
        (
            XLIFF.replace("de", "fr").encode(),
            {"file_format": "xliff"},
            "target-language is 'fr', but the request's target",
        ),
        (
            XLIFF.replace("en", "ko").encode(),
            {"file_format": "xliff"},
            "source-language is 'ko', but the request's source",
        ),
        (b"a", {"file_format": "text", "num_hypotheses": 2}, "one translation: leave num_hypotheses out"),
        (b"a", {"file_format": "text", "markup": "html"}, "a file has the markup of its format"),
        (b"a", {"file_format": "text", "target_language": "xx"}, "no target language 'xx'"),
    ],
)
def test_files_that_are_refused(
    client: jumok.Client, tmp_path: Path, content: bytes, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "out").write_bytes(b"before")
    with pytest.raises(jumok.JumokError, match=message):
        client.translate_file(io.BytesIO(content), tmp_path / "out", **options)
    assert (tmp_path / "out").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_missing_target_language_is_declared(client: jumok.Client, translator: Translator) -> None:
    out = io.BytesIO()
    content = XLIFF.replace(' target-language="de"', "")
    options: dict[str, Any] = {"source_language": "auto", "file_format": "xliff"}
    assert client.translate_file(io.BytesIO(content.encode()), out, **options, **SHORT).problems == ()
    dog = translator.translate("A dog.", markup="xml", **SHORT).text
    made = f"<target>{dog}</target>"
    assert out.getvalue().decode() == XLIFF.replace("</source>", f"</source>{made}")


async def test_a_translation_that_would_damage_the_file_is_left_out() -> None:
    tags = b"<b>a</b>" * 2_000
    file = b'msgid "A dog"\nmsgstr ""\n\nmsgid "%b"\nmsgstr ""\n' % tags
    request = TranslateFileRequest(settings=FileSettings(format="po"), file=file)
    async with serving_fake(FakeModel()) as (_, channel):
        responses = await received(stub_of(channel).TranslateFile(iter([request])))
    ((line, message),) = [
        (problem.line, problem.error.message) for response in responses for problem in response.problems
    ]
    assert line == 5
    assert message.startswith("contents: the translation is left out: the text has more than 4096 tags")
    written = b"".join(response.file for response in responses)
    assert written == file.replace(b'msgstr ""', b'msgstr "A DOG"', 1)


async def test_a_text_of_too_many_characters_stays() -> None:
    """Its error has the number of all of them; the file around it is translated."""
    long = "é" * 60
    file = f"A dog.\n{long}\n\n{long}\nA man.\n".encode()
    request = TranslateFileRequest(settings=FileSettings(format="text"), file=file)
    async with serving_fake(FakeModel(), limits=ServiceLimits(max_characters=50)) as (_, channel):
        responses = await received(stub_of(channel).TranslateFile(iter([request])))
        problems = [problem for response in responses for problem in response.problems]
        wanted = "content: a text takes at most 50 characters here, got 60: split it"
        assert [(one.line, one.error.message) for one in problems] == [(2, wanted), (4, wanted)]
        assert responses[-1].translated_count == 4
        lines = b"".join(response.file for response in responses).decode().split("\n")
        assert (lines[1], lines[2], lines[3], lines[5]) == (long, "", long, "")


def test_wrong_options_and_paths(client: jumok.Client, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="beam"):
        client.translate_file(io.BytesIO(b"a"), tmp_path / "out", file_format="text", beam=1)  # type: ignore[call-arg]
    with pytest.raises(FileNotFoundError):
        client.translate_file(tmp_path / "none.txt", tmp_path / "out")


async def test_messages_that_are_refused() -> None:
    settings = TranslateFileRequest(settings=FileSettings(format="text"))
    async with serving_fake(FakeModel()) as (_, channel):
        stub = stub_of(channel)
        for requests, field in (
            ([TranslateFileRequest(file=b"a")], "settings"),
            ([settings, settings], "settings"),
            (
                [TranslateFileRequest(settings=FileSettings(translation=CorpusSettings(order=CORPUS_ORDER_INPUT)))],
                "settings.translation.order",
            ),
        ):
            refused = await failure(received(stub.TranslateFile(iter(requests))))
            assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.field == field


async def test_a_caller_that_leaves_frees_its_rows() -> None:
    model = FakeModel(on_submit=hold)
    async with serving_fake(model) as (server, channel):
        requests = [TranslateFileRequest(settings=FileSettings(format="text"), file=b"A dog.\nA man.\n")]
        call = stub_of(channel).TranslateFile(iter(requests))
        answers = [await model.submitted.get() for _ in range(2)]
        call.cancel()
        await until(lambda: server.open_calls == 0)
        assert all(future.cancelled() for answer in answers for future in answer.futures)


async def test_a_caller_that_leaves_while_its_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes room for another file, and no thread goes on."""
    begun = threading.Semaphore(0)

    def endless(_: str) -> Iterator[str]:
        begun.release()
        yield from itertools.repeat("")

    formats = {"endless": FileFormat(endless), "text": known_formats()["text"]}
    monkeypatch.setattr("jumok_serve.text.files.document.known_formats", lambda: formats)
    request = TranslateFileRequest(settings=FileSettings(format="endless"), file=b"A dog.\n")
    other = TranslateFileRequest(settings=FileSettings(format="text"), file=b"A dog.\n")
    async with serving_fake(FakeModel()) as (server, channel):
        stub = stub_of(channel)
        calls = [stub.TranslateFile(iter([request])) for _ in range(MAX_OPEN_FILES)]
        for _ in range(READING_THREADS):
            await asyncio.to_thread(begun.acquire, timeout=HANG_S)
        for call in calls:
            call.cancel()
        await until(lambda: server.open_calls == 0)
        responses = await received(stub.TranslateFile(iter([other]), timeout=HANG_S))
        assert responses[-1].translated_count == 1


def test_a_caller_that_leaves_while_its_bad_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has no error that is left over, which it would log."""
    begun = threading.Event()

    def read(
        _data: bytes, _name: str, _format: str, stopped: Callable[[], bool], *_: str, **_languages: str
    ) -> Iterator[int]:
        begun.set()
        while not stopped():
            time.sleep(0.001)
        yield 1
        raise InvalidArgumentError("file: line 1: is bad", field="file")

    monkeypatch.setattr(FileDocument, "read", read)
    request = TranslateFileRequest(settings=FileSettings(format="text"), file=b"A dog.\n")
    logged: list[str] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context["message"]))
        async with serving_fake(FakeModel()) as (server, channel):
            call = stub_of(channel).TranslateFile(iter([request]))
            assert await asyncio.to_thread(begun.wait, HANG_S)
            call.cancel()
            await until(lambda: server.open_calls == 0)
        gc.collect()

    asyncio.run(scenario())
    assert [one for one in logged if OF_ANOTHER_LOOP not in one] == []


@pytest.mark.parametrize("options", [{}, {"target_language": "de"}, {"source_language": "auto"}])
def test_a_file_gets_the_language_of_its_translations(client: jumok.Client, options: dict[str, Any]) -> None:
    out = io.BytesIO()
    client.translate_file(io.BytesIO(b"en:\n  a: 12\n"), out, file_format="yaml", **options, **SHORT)
    assert out.getvalue() == b"de:\n  a: 12\n"


def test_the_command_line(address: str, tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text(SRT, encoding="utf-8")
    (tmp_path / "bad.srt").write_text(SRT.replace("--> 00:00:04,000", "-->"), encoding="utf-8")
    at = ("--server", address, "--max-length", "6")
    done = run_here("translate-file", tmp_path / "a.srt", "--out", tmp_path / "b.srt", *at)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    translated = (tmp_path / "b.srt").read_bytes()
    assert translated.count(b" --> ") == 2
    piped = run_here("translate-file", "-", "--out", "-", "--format", "srt", *at, given=SRT.encode())
    assert piped.stdout == translated
    bad = run_here("translate-file", tmp_path / "bad.srt", "--out", tmp_path / "c.srt", *at)
    assert bad.returncode == 1
    assert b"line 7: the times of a cue must be as 00:00:01,000 --> 00:00:02,500" in bad.stderr
    assert not (tmp_path / "c.srt").exists()
    nowhere = run_here("translate-file", tmp_path / "a.srt", "--out", tmp_path / "no" / "a.srt", *at)
    assert (nowhere.returncode, nowhere.stdout) == (1, b"")
    wanted = f"Error: {tmp_path / 'no'}: the folder does not exist; create it, or choose another\n"
    assert nowhere.stderr.decode() == wanted
    (tmp_path / "long.txt").write_text("A dog.\n" + "a" * 100_001, encoding="utf-8")
    long = run_here("translate-file", tmp_path / "long.txt", "--out", tmp_path / "d.txt", *at)
    assert long.returncode == 1
    assert b"long.txt:2: " in long.stderr
    assert (tmp_path / "d.txt").read_bytes().endswith(b"\n" + b"a" * 100_001)


def test_sentences_that_are_cut_are_counted(address: str, tmp_path: Path) -> None:
    source, out = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_text(f"A dog. {LONG} {LONG}\nA man.\n{LONG}\n", encoding="utf-8")
    command = ("translate-file", source, "--out", out, "--server", address, "--max-length", "6")
    cut = run_here(*command)
    assert (cut.returncode, cut.stderr.decode()) == (
        0,
        f"Warning: {source}: sentences too long for the model, cut into parts: 3; --no-cut-long-sentences reports "
        "their texts instead\n",
    )
    truncated = run_here(*command, "--truncate")
    assert (truncated.returncode, truncated.stderr.decode()) == (
        0,
        f"Warning: {source}: texts too long for the model, with ends left out: 2; without --truncate, sentences are "
        "cut into parts\n",
    )
    refused = run_here(*command, "--no-cut-long-sentences")
    assert refused.returncode == 1
    assert [line.startswith(f"Error: {source}:{at}: ") for line, at in zip(
        refused.stderr.decode().splitlines(), (1, 3), strict=True
    )] == [True, True]  # fmt: skip
