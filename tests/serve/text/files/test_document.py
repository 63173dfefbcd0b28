"""Reading of files: formats, encodings, bytes that are no text, and plain text."""

import codecs
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.file_formats import FILE_FORMATS
from jumok_serve.text.files.document import known_formats
from tests.support.files import made, read_file, rewritten, texts, written
from tests.support.refusals import refused


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"])
def test_encodings_stay(encoding: str) -> None:
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(encoding, b"")
    data = mark + "Ein Größen-Test\r\n한국어 🙂\n\n".encode(encoding)
    document = read_file(data, "a.TXT", "")
    assert document.count == 2
    assert written(document) == data


def test_formats_by_name_and_ending() -> None:
    assert known_formats().keys() == FILE_FORMATS.keys()
    page = (Path(__file__).parents[4] / "docs/files.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ((?:`[\w.]+`(?:, )?)+) \|", page, re.MULTILINE)
    documented = [[re.findall(r"`\.?([\w.]+)`", cell) for cell in row] for row in rows]
    assert {name for names, _ in documented for name in names} == set(FILE_FORMATS)
    for names, endings in documented:
        assert [one for name in names for one in FILE_FORMATS[name]] == endings
    srt = b"1\n00:00:01,000 --> 00:00:02,500\nA dog\n"
    assert read_file(srt, r"C:\films\a.Srt", "").count == 1
    assert read_file(srt, "", "srt").count == 1
    assert read_file(srt, "a.srt", "text").count == 1
    assert read_file(b"<resources/>", "values-de/Strings.xml", "").count == 0
    assert read_file(b'{"a": {"message": "A dog", "description": "b"}}', "_locales/en/messages.json", "").count == 1
    assert read_file(b'{"a": {"message": "A dog", "description": "No"}}', "en.json", "").count == 2
    with refused("format", r"the name 'other.xml' has no known ending \(txt, .*strings.xml.*\): give the format"):
        read_file(b"<resources/>", "other.xml", "")
    with pytest.raises(
        InvalidArgumentError, match=r"the name 'a.xyz' has no known ending .*: give the format, one of text"
    ):
        read_file(srt, "a.xyz", "")
    with pytest.raises(InvalidArgumentError, match="format: 'doc' is unknown; choose of text, markdown, html"):
        read_file(srt, "a.srt", "doc")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("one\nGröße\n".encode("latin-1"), "line 2: byte 0xf6 is not UTF-8: convert the file, as with 'iconv"),
        (b"\x7fELF\x02\x01\x00\xff", "line 1: it is a binary file, no text"),
        (b"a\n\0b", "line 2: it is a binary file"),
        (b"PK\x03\x04\x00\x00", "line 1: it is a binary file"),
        (codecs.BOM_UTF16_LE + b"a\xd8", "line 1: byte 0x61 is not UTF-16-LE"),
    ],
)
def test_bytes_that_are_no_text(data: bytes, message: str) -> None:
    with refused("file", message):
        read_file(data, "a.txt", "")


def test_catalogues_in_other_encodings_are_converted_by_a_tool_of_gettext() -> None:
    with refused("file", "line 1: byte 0xf6 is not UTF-8: convert the file, as with 'msgconv --to-code=UTF-8'"):
        read_file('msgid "Größe"\n'.encode("latin-1"), "a.po", "")


@given(st.text(st.characters(exclude_categories=["Cs"])))
@made
def test_nothing_changes_without_a_change(content: str) -> None:
    assert rewritten(content, "text") == content
    kept = rewritten(content, "text", lambda _: "")
    assert kept.count("\n") == content.count("\n")
    assert [text.line for text in texts(content, "text")] == sorted({text.line for text in texts(content, "text")})


def test_lines_are_texts() -> None:
    content = "\n  A dog. It runs.\t\r\n***\n12\n\x0cTwo\u2028lines\n"
    assert [(text.content, text.line) for text in texts(content, "text")] == [
        ("A dog. It runs.", 2),
        ("Two\u2028lines", 5),
    ]
    assert rewritten(content, "text", str.upper) == "\n  A DOG. IT RUNS.\t\r\n***\n12\n\x0cTWO\u2028LINES\n"
