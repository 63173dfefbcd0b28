"""Files that are made to take time or memory, or that readers of tags understand in different ways."""

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.text.files.document import FileDocument
from tests.support.files import read_file, rewritten, texts
from tests.support.growth import assert_linear
from tests.support.memory import memory_of

CUE = "00:00:01,000 --> 00:00:02,000"


def read(content: str, name: str) -> None:
    """Read a file to its end, or to the line for which it is refused."""
    try:
        read_file(content.encode(), "", name)
    except InvalidArgumentError:
        assert name not in {"text", "markdown", "html"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text", lambda size: " " * size + "a"),
        ("markdown", lambda size: "# a" + " " * size + "x\n"),
        ("markdown", lambda size: "a|b\n|-" + " " * size + "x|\n"),
        ("markdown", lambda size: "a\n- -" + " " * size + "x\n"),
        ("markdown", lambda size: "a\n***" + " " * size + "x\n"),
        ("markdown", lambda size: "a|b\n" + "|-" * (size // 2) + "x\n"),
        ("markdown", lambda size: ">" * size + " a\n"),
        ("markdown", lambda size: "- " * size + "a\n"),
        ("markdown", lambda size: "---\n" + "a: b\n" * (size // 5)),
        ("markdown", lambda size: "{{ " * (size // 3)),
        ("markdown", lambda size: "http://!" * (size // 8) + "."),
        ("markdown", lambda size: "![" * (size // 4) + "](a)" * (size // 8)),
        ("markdown", lambda size: "[a]: b\n\n" + "[a] " * (size // 4)),
        ("markdown", lambda size: "*a **b " * (size // 14) + "c** d* " * (size // 14)),
        ("markdown", lambda size: "<div>\n" + "<b>a\n" * (size // 5)),
        ("markdown", lambda size: "> # " + " #" * (size // 2) + "x\n"),
        ("html", lambda size: "<script>" + "</script " * (size // 9)),
        ("html", lambda size: "a<title>" + "</title/" * (size // 8) + "<p>"),
        *(
            ("html", lambda size, part=part: part * (size // len(part)))
            for part in ("<p>one <b>two</b></p>\n", "<b>", "<code>a</code> b ", "<", "</p>", "<div translate=no>")
        ),
        ("po", lambda size: '#, fuzzy\nmsgid "a"\nmsgstr "' + " " * size + 'x"\n'),
        ("po", lambda size: 'msgid "' + "\\n" * (size // 2) + '"\nmsgstr ""\n'),
        ("po", lambda size: 'msgid "' + "a" * size + "\n"),
        *(
            ("po", lambda size, part=part: f'#, c-format\nmsgid "{part * (size // len(part))}a"\nmsgstr ""\n')
            for part in (
                "<b>a</b>",
                "<b>",
                "<a '",
                "<!--",
                "B<a>",
                "B<a ",
                "%s ",
                "%",
                "{",
                "{}",
                "&a",
                "_",
                " ",
                "\\n",
            )
        ),
        ("srt", lambda size: CUE + " " * size + "x\na\n"),
        ("srt", lambda size: CUE + "\na<script>" + "</script " * (size // 9)),
        ("vtt", lambda size: "WEBVTT\n\n00:01.000 --> 00:02.000" + " " * size + "\x0b\na\n"),
        *(
            ("srt", lambda size, part=part: f"{CUE}\na{part * (size // len(part))}b\n")
            for part in (
                "<",
                "<b>",
                "</b>",
                "{\\p1}",
                "{\\p",
                "{\\i1}",
                "\\N",
                "\\h",
                "- ",
                "\u266a",
                "<rt>",
                "A: ",
                "]\n",
            )
        ),
        ("srt", lambda size: f"{CUE}\n{'<i>' * (size // 8)}x{'</b>' * (size // 8)}{'</i>' * (size // 8)}"),
        ("srt", lambda size: f"{CUE}\n{' -' * (size // 4)}x{'</b>' * (size // 8)}"),
        ("srt", lambda size: f"{CUE}\n" + "<i>a</i>\n" * (size // 9) + "b"),
        ("srt", lambda size: f"{CUE}\na\n" + "1" * size + "\n00:00:01,0" + "-" * size + "x\n"),
        ("ass", lambda size: "[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,,,0,0,0,," + "{\\" * (size // 2) + "a\n"),
        ("ass", lambda size: "[Events]\nFormat: " + "," * size + "\n"),
        ("xliff", lambda size: f"<xliff><trans-unit>{' ' * size}x<source>a</source></trans-unit></xliff>"),
        (
            "xliff",
            lambda size: f"<xliff><segment><source>a</source><target{' ' * size}state='new' /></segment></xliff>",
        ),
        ("json", lambda size: "[" * size),
        ("json", lambda size: '["' + "\\n" * (size // 2) + "x"),
        ("json", lambda size: "[" + " " * size + "x"),
        ("json", lambda size: "1" * size),
        ("json", lambda size: '["' + "a <" * (size // 3) + '"]'),
        ("json", lambda size: '["{' + "a " * (size // 2) + '"]'),
        ("json", lambda size: '["' + "{a," * (size // 3) + '"]'),
        ("json", lambda size: '["' + "$t(" * (size // 3) + '"]'),
        ("json", lambda size: "{" + '"a_one":"","a_other":"",' * (size // 24) + '"":""}'),
        ("json", lambda size: "[" + '"a_b",' * (size // 6) + '"' + "a" * min(size, 2000) + '"]'),
        ("android", lambda size: f"<resources><string>{' ' * size}x{chr(92)}n</string></resources>"),
        ("android", lambda size: f"<resources><string>x{'&lt;b ' * (size // 6)}</string></resources>"),
        ("android", lambda size: f"<resources><string>x{(chr(92) + 'n ') * (size // 3)}x</string></resources>"),
        ("android", lambda size: f"<resources>{'<string>a</string>' * (size // 18)}</resources>"),
        ("android", lambda size: f"<resources>{'<x>' * min(size // 4, 16_000)}"),
        ("qt", lambda size: f"<TS>{'<c><message/></c>' * (size // 17)}</TS>"),
        ("resx", lambda size: f"<root>{'<data><value>a</value></data>' * (size // 29)}</root>"),
        ("properties", lambda size: "a" * size),
        ("properties", lambda size: "a=" + "'{" * (size // 2)),
        ("properties", lambda size: "a=" + "\\\n" * (size // 2)),
        ("properties", lambda size: " " * size + "a"),
        ("properties", lambda size: " \n" * (size // 2) + "a"),
        ("properties", lambda size: "a=b\\" * (size // 4)),
        ("strings", lambda size: "/*" * (size // 2)),
        ("strings", lambda size: '"a"="' + "\\n" * (size // 2)),
        ("strings", lambda size: " " * size + "a"),
        ("strings", lambda size: "/**/" * (size // 4)),
        ("yaml", lambda size: "[" * size),
        ("yaml", lambda size: "- " * size),
        ("yaml", lambda size: "&a " * size),
        ("yaml", lambda size: "a: " + "b " * (size // 2)),
        ("yaml", lambda size: "- a\n" * (size // 4)),
        ("yaml", lambda size: "a: |\n" + " b\n" * (size // 3)),
        ("yaml", lambda size: "? " * size),
    ],
)
def test_time_grows_in_proportion_to_a_file(name: str, content: Callable[[int], str]) -> None:
    assert_linear(content, lambda written: read(written, name))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("po", 'msgid "' + "a" * 200_000 + '"\nmsgstr ""\n'),
        ("po", 'msgid "' + "\\n" * 100_000 + '"\nmsgstr ""\n'),
        ("markdown", ">" * 50_000 + " a\n"),
        ("markdown", "a|b\n" + "|-" * 100_000 + "\n"),
        ("markdown", "a" + ">" * 200_000 + "*"),
        ("markdown", "a :b: " * 20_000),
        ("srt", f"{CUE}\n" + "{\\}" * 100_000),
        ("srt", f"{CUE}\n" + "<>" * 100_000 + " -"),
    ],
)
def test_a_long_line_takes_little_memory(name: str, content: str) -> None:
    data = content.encode()
    read("", name)  # imports and caches
    assert memory_of(lambda: read_file(data, "", name))[1] < 32 * len(data)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("xliff", f"<xliff><trans-unit><source>a{'<x/>' * 20_000}</source></trans-unit></xliff>"),
        ("html", f"<p>a{'<b></b>' * 10_000}"),
        ("po", 'msgid "a"\nmsgstr ""\n\n' * 2_000),
        ("markdown", "a\n\n" * 5_000),
        ("srt", f"{CUE}\na\n\n" * 2_000),
        ("text", "a\n" * 5_000),
        ("json", f"[{'1,' * 20_000}1]"),
        ("arb", f"[{'1,' * 20_000}1]"),
        ("android", f"<resources>{'<x/>' * 20_000}</resources>"),
        ("properties", "a=b\n" * 5_000),
        ("strings", '"a";' * 10_000),
        ("yaml", "- 1\n" * 20_000),
    ],
)
def test_reading_stops_where_the_file_is_not_needed(name: str, content: str) -> None:
    def steps(most: int) -> int:
        """Count the steps of reading a file that is needed in some steps only."""
        done = itertools.count(1)
        return sum(1 for _ in FileDocument.read(bytearray(content.encode()), "", name, lambda: next(done) > most))

    assert steps(10**9) > 6
    assert steps(3) <= 4


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text", "1" * 2_000_000),
        ("markdown", "1" * 2_000_000),
        ("markdown", '[a](b "' * 40_000),
        ("markdown", "<a:" * 60_000),
        ("srt", f"{CUE}\n{'1' * 2_000_000}"),
        ("xliff", "<xliff>" + "<x/>" * 20_000 + "1" * 500_000 + "</xliff>"),
        ("json", f'["{"1" * 2_000_000}"]'),
        ("strings", f'"{"1" * 2_000_000}"'),
        ("properties", "1" * 2_000_000),
    ],
)
def test_other_threads_run_while_a_long_text_is_read(name: str, content: str) -> None:
    """Count the times at which a thread may give up Python's lock: its calls and the ends of its loops."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> "Callable[..., Any]":
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        read(content, name)
    finally:
        sys.settrace(before)
    assert count > len(content) / 2**14


def test_a_long_tag_with_a_bracket_in_an_attribute() -> None:
    attribute = "x" * 5000 + "/>"
    unit = f'<trans-unit note="{attribute}"><source>a dog</source></trans-unit>'
    content = f'<xliff><trans-unit note="{attribute}"/><trans-unit note="{attribute}"/>{unit}</xliff>'
    assert [text.content for text in texts(content, "xliff")] == ["a dog"]
    written = rewritten(content, "xliff", str.upper)
    assert written == content.replace("</source>", "</source><target>A DOG</target>")


def test_tags_in_a_declaration_are_no_elements() -> None:
    content = '<!DOCTYPE x [<!NOTATION n SYSTEM "]></source></trans-unit>">]><xliff><trans-unit/></xliff>'
    assert rewritten(content, "xliff", str.upper) == content


def test_units_within_units_are_written_once() -> None:
    inner = "<trans-unit><source>a cat</source></trans-unit>"
    content = f"<xliff><trans-unit>{inner}<source>a dog</source></trans-unit></xliff>"
    written = rewritten(content, "xliff", str.upper)
    assert written == content.replace("a dog</source>", "a dog</source><target>A DOG</target>")
