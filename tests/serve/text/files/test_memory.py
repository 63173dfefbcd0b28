"""Memory of files: it stays below the bound by which files wait, and files of too many parts are refused."""

import codecs
import re

import pytest

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.text.files.document import (
    KEPT_BYTES,
    MAX_KEPT,
    READ_BYTES,
    Text,
    known_formats,
    needed_memory,
)
from tests.support.files import read_file
from tests.support.memory import memory_of

CUE = "00:00:01,000 --> 00:00:02,000\n"
ASS = "[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,,,0,0,0,,"
WIDE = "\U0001f642"
"""A character for which Python takes four bytes for each character of a text."""
MAX_CHARACTERS = ServiceLimits().max_characters
CATALOGUE = '{"sourceLanguage": "en", "strings": {%s}}'
ATTRIBUTES = " ".join(f"a{number}=''" for number in range(2500))


def first(value: object) -> str:
    """Name a case by the beginning of its file."""
    return str(value)[:20]


def unit(inside: str) -> str:
    return f"<xliff><trans-unit><source>{inside}</source></trans-unit></xliff>"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("html", "<b></b>" * 2000),
        ("html", "<b>a</b>" * 2000),
        ("html", "<b>" * 4000),
        ("html", "<p>a" * 4000),
        ("html", "".join(f"<a{number}>" for number in range(4000))),
        ("html", f"<pre>{'<b></b>' * 2000}</pre>"),
        ("html", WIDE + "a" * 200_000),
        ("xliff", unit("<x/>" * 4000)),
        ("xliff", unit("<g>" * 2000 + "</g>" * 2000)),
        ("xliff", unit("".join(f"<a{number}></a{number}>" for number in range(2000)))),
        ("xliff", unit("a").replace("<xliff>", f"<xliff {ATTRIBUTES}>")),
        ("xliff", f"<xliff>{'<trans-unit><source>a</source></trans-unit>' * 1500}</xliff>"),
        ("xliff", unit(WIDE + "a" * 100_000)),
        ("po", 'msgid ""\n' + '"a"\n' * 4000 + 'msgstr ""\n'),
        ("po", 'msgid "a"\nmsgstr ""\n\n' * 6000),
        ("po", f'msgid "{WIDE}{"a" * 100_000}"\nmsgstr ""\n'),
        ("markdown", "*a*\n\n" * 400),
        ("markdown", "[a](b)\n\n" * 400),
        ("markdown", f"{'|a' * 4000}|\n{'|-' * 4000}|\n"),
        ("markdown", "a\n\n" * 4000),
        ("markdown", "&lt;a\n\n" * 400),
        ("markdown", ":a: b\n\n" * 400),
        ("markdown", "- " * 2000 + "a\n"),
        ("srt", f"{CUE}a{'<b>' * 4000}"),
        ("srt", CUE + "- a\n" * 4000),
        ("srt", f"{CUE}a\n\n" * 2000),
        ("srt", f"{CUE}a" + "<b>a</b>" * 4000),
        ("srt", f"{CUE}a" + "{\\i1}" * 4000),
        ("srt", f"{CUE}a" + "a\\N" * 4000),
        ("srt", "\r" * 8000),
        ("vtt", "WEBVTT\n\nNOTE " + "a\n" * 4000),
        ("vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\na" + "<rt>a</rt>" * 4000),
        ("ass", f"{ASS}a" + "{\\i1}a{\\i0}" * 2000),
        ("ass", f"{ASS}a\n" * 2000),
        ("text", " " * 200_000 + "a\n"),
        ("text", "\n" * 200_000),
        ("json", "[" * 4000 + "]" * 4000),
        ("json", "[" + '"a",' * 3000 + "1]"),
        ("json", "{" + '"a_one":"","a_other":"a",' * 700 + '"":""}'),
        ("json", "{" + ",".join(f'"{number}_one":"","{number}_other":"a"' for number in range(700)) + "}"),
        ("json", "[" + f'"{"<b></b>" * 100}a",' * 40 + "1]"),
        ("json", f'["{"&lt;" * 4000}a"]'),
        ("json", f'["{WIDE}{"a" * 100_000}"]'),
        ("arb", "{" + ",".join(f'"{number}":"a"' for number in range(1500)) + "}"),
        ("chrome", '{"a":{' + '"message":"a",' * 1500 + '"b":1}}'),
        ("xcstrings", CATALOGUE % ",".join(f'"a{number}":{{}}' for number in range(1000))),
        ("xcstrings", CATALOGUE % ('"a":{"b":{"c":{}}},' + '"b":[' + "{}," * 4000 + "1]")),
        ("android", f"<resources>{'<string>a</string>' * 3000}</resources>"),
        ("android", f"<resources><string>a{'&lt;b>' * 3000}</string></resources>"),
        ("android", f"<resources><string>a{chr(92)}n{(chr(92) + 'u0041 ') * 3000}</string></resources>"),
        ("android", f"<resources><plurals>{'<item>a</item>' * 3000}</plurals></resources>"),
        ("resx", f"<root>{'<data><value>a</value></data>' * 2000}</root>"),
        (
            "qt",
            "<TS><c>" + '<message><source>a</source><translation type="unfinished"/></message>' * 1000 + "</c></TS>",
        ),
        ("properties", "a=b\n" * 6000),
        ("properties", "a=b" + "\\n" * 6000 + "\n"),
        ("properties", "\n" * 20_000),
        ("strings", '"a"="b";\n' * 4000),
        ("strings", f'"a"="b{chr(92)}n{(chr(92) + "n") * 6000}";'),
        ("yaml", "- a\n" * 6000),
        ("yaml", "[" * 190 + "]" * 190),
        ("yaml", "a: 'b" + "\n" * 6000 + "'"),
        ("yaml", "".join(f"k{number}:\n  one: a\n  other: b\n" for number in range(700))),
    ],
    ids=first,
)
def test_memory_of_a_file_is_below_its_bound(name: str, content: str) -> None:
    bound = needed_memory(content.encode(), "", name) - KEPT_BYTES - READ_BYTES
    assert peak_of(content, name) < bound + 2**17


def peak_of(content: str, name: str) -> int:
    """Most bytes while a file's pieces are made and written, with its characters, and a list of the pieces."""

    def run() -> None:
        whole = (content + " ")[:-1]
        for piece in known_formats()[name].into("ru").pieces(whole):
            if isinstance(piece, Text) and len(piece.content) <= MAX_CHARACTERS:
                piece.write(piece.written)

    return memory_of(run)[1]


ESCAPES = "ab\\n" * 400_000
OCTALS = "\\777" * 400_000


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("html", f"<p>{WIDE}{'ab ' * 400_000}</p>"),
        ("xliff", unit(f"{WIDE}{'ab ' * 400_000}")),
        ("po", f'#, {"ab," * 400_000}fuzzy\nmsgid "a"\nmsgstr "b"\n'),
        ("po", f'msgid "{ESCAPES}"\nmsgstr ""\n'),
        ("po", f'msgid "a"\nmsgstr "{ESCAPES}"\n'),
        ("po", f'msgid "{OCTALS}"\nmsgstr ""\n'),
        ("po", f'msgid "{OCTALS[:1_040_000]}"\nmsgstr ""\n'),
        ("markdown", "*a* " * 24_999),
        ("po", f'msgid "{WIDE}{"ab " * 400_000}"\nmsgstr ""\n'),
        ("markdown", "ab " * 400_000),
        ("markdown", f"{WIDE}{'ab ' * 400_000}"),
        ("srt", f"{CUE}{'ab ' * 400_000}"),
        ("srt", f"{CUE}{WIDE}{'ab ' * 400_000}"),
        ("vtt", f"WEBVTT\n\n00:01.000 --> 00:02.000\n{'ab ' * 400_000}"),
        ("ass", f"{ASS}{'ab ' * 400_000}"),
        ("json", f'["{"ab " * 400_000}"]'),
        ("json", f'["{ESCAPES}"]'),
        ("json", f'["{WIDE}{"ab " * 400_000}"]'),
        ("json", f'["{"<b></b>" * 30_000}a"]'),
        ("json", "{" + f'"{ESCAPES}": "a"' + "}"),
        ("xcstrings", CATALOGUE % f'"{ESCAPES}": {{}}'),
        ("android", f"<resources><string>{ESCAPES}</string></resources>"),
        ("resx", f"<root><data><value>{WIDE}{'ab ' * 400_000}</value></data></root>"),
        ("properties", f"a={ESCAPES}"),
        ("properties", f"{ESCAPES}"),
        ("strings", f'"a"="{ESCAPES}";'),
        ("yaml", f"a: {'ab ' * 400_000}"),
        ("yaml", f'a: "{ESCAPES}"'),
        ("yaml", f"a: '{WIDE}{'ab ' * 400_000}'"),
        ("text", f" {'ab ' * 400_000}\n"),
        ("text", f" {WIDE}{'ab ' * 400_000}\n"),
    ],
    ids=first,
)
def test_memory_of_a_text_far_too_long_to_be_translated(name: str, content: str) -> None:
    assert peak_of(content, name) < needed_memory(content.encode(), "", name) - KEPT_BYTES
    texts = [piece for piece in known_formats()[name].into("ru").pieces(content) if isinstance(piece, Text)]
    assert [piece.content for piece in texts if len(piece.content) <= MAX_CHARACTERS] in ([], ["a"])


@pytest.mark.parametrize(
    "content",
    ["*a" * 4000, "[a](b) " * 2000, "&lt;" * 4000 + "a", "a [" * 9000, "<b>a</b>" * 2000, f"<p>{'<b>a</b>' * 9000}"],
    ids=first,
)
def test_memory_of_a_text_of_many_marks(content: str) -> None:
    assert peak_of(content, "markdown") < needed_memory(content.encode(), "", "markdown") - KEPT_BYTES


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_bytes_of_a_file_are_freed_once_they_are_read(encoding: str) -> None:
    data = bytearray(f"A dog.\n{'a' * 200_000}".encode(encoding))
    document = read_file(data, "", "text")
    assert data == b""
    assert document.content == ""
    texts = [piece.content for piece in document.pieces() if isinstance(piece, Text)]
    assert texts == ["A dog.", "a" * 200_000]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("markdown", f"{'|a' * 2200}|\n{'|-' * 2200}|\n{'|a' * 2200}|\n"),
        ("markdown", "a\n\n" * 4500),
        ("po", 'msgid "a"\nmsgstr ""\n\n' * 1900),
        ("srt", CUE + "- a\n" * 3000),
        ("xliff", f"<xliff>{'<trans-unit><source>a</source></trans-unit>' * 4900}</xliff>"),
        ("json", "[" + '"a",' * 4200 + '"a"]'),
        ("android", f"<resources>{'<string>a</string>' * 1600}</resources>"),
        ("properties", "a=b\n" * 2800),
        ("strings", '"a"="b";' * 2800),
        ("yaml", "- a\n" * 4200),
        ("text", "a\n" * 2400),
    ],
    ids=first,
)
def test_memory_of_kept_pieces(name: str, content: str) -> None:
    data = content.encode()
    assert len(read_file(data, "", name).few or ()) > 0.8 * MAX_KEPT
    assert memory_of(lambda: read_file(data, "", name))[0] < KEPT_BYTES


def test_memory_of_kept_texts_with_marks() -> None:
    data = b"A *dog* with a [link](https://a.org), `code` and **more**.\n\n" * 4000
    assert len(read_file(data, "", "markdown").few or ()) > 0.7 * MAX_KEPT
    assert memory_of(lambda: read_file(data, "", "markdown"))[0] < needed_memory(data, "", "markdown") - READ_BYTES


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("text", "\n"),
        ("html", "<b>"),
        ("html", "&lt;"),
        ("xliff", "<x/>"),
        ("xliff", " a=''"),
        ("xliff", "&lt;"),
        ("po", "\n"),
        ("markdown", "*a"),
        ("markdown", "|a"),
        ("srt", "\n"),
        ("vtt", "<i>"),
        ("ass", "{}"),
        ("ass", "\\N"),
        ("json", '"'),
        ("json", "["),
        ("android", "<b>"),
        ("properties", "\n"),
        ("strings", '"'),
        ("yaml", "["),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_a_file_of_too_many_parts_is_refused(name: str, part: str, encoding: str) -> None:
    parts = known_formats()[name].parts
    mark = codecs.BOM_UTF16_LE if encoding == "utf-16-le" else b""
    most = mark + (part * parts.most).encode(encoding)
    needed_memory(most, "", name)
    message = (
        f"file: has {parts.most + 1} {parts.name}, at most {parts.most} are allowed in this format: split the file"
    )
    with pytest.raises(InvalidArgumentError, match=f"^{re.escape(message)}$"):
        needed_memory(most + part.encode(encoding), "", name)


PARAGRAPH = (
    '<p class="text" id="p1">A page of <b>ordinary</b> density has some <a href="/wiki/Word?a=1&amp;b=2">links</a> in '
    "each paragraph, and much text around them.</p>\n"
)
UNIT = (
    '<trans-unit id="par_id3147"><source>Click <g id="1" ctype="x-ahelp">Insert <g id="2">Table</g></g>, and choose '
    "the number of rows.</source></trans-unit>\n"
)
ENTRY = '#: src/main.c:120\nmsgid "The file could not be opened."\nmsgstr ""\n\n'
LIST = "- An item with a [link](https://example.com/page) and `code`, in **bold** type, and some words of text.\n"
LINES = f"12\n{CUE}A line that <i>actors</i> say,\nand another line.\n\n"


@pytest.mark.parametrize(
    ("name", "content", "size"),
    [
        ("html", PARAGRAPH, 5_000_000),
        ("html", f"<tr><td>{'word ' * 6}</td></tr>\n", 2_500_000),
        ("xliff", UNIT, 5_000_000),
        ("po", ENTRY, 8_000_000),
        ("markdown", LIST, 5_000_000),
        ("srt", LINES, 5_000_000),
        ("text", "A line of words.\n", 8_000_000),
        ("json", '  "message_key": "The file could not be opened.",\n', 6_000_000),
        ("android", '    <string name="message_key">The file could not be opened.</string>\n', 6_000_000),
        ("properties", "message.key=The file could not be opened.\n", 6_000_000),
        ("strings", '"message.key" = "The file could not be opened.";\n', 6_000_000),
        ("yaml", "  message_key: The file could not be opened.\n", 6_000_000),
    ],
    ids=first,
)
def test_large_files_of_ordinary_density_are_accepted(name: str, content: str, size: int) -> None:
    assert needed_memory((content * (size // len(content))).encode(), "", name) < 210 * 2**20
