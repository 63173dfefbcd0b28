"""PO files: empty and fuzzy translations are made, plural forms too; all else stays."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.text.files.document import MAX_READ
from jumok_serve.text.files.po import po_pieces
from tests.support.files import made, rewritten, texts
from tests.support.growth import calls_made
from tests.support.memory import memory_of

HEADER = (
    'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
    '"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n'
)
FILE = (
    HEADER
    + """
# a comment
#. extracted
#: file.c:1
#, c-format
msgid "Two women\\n"
msgstr ""

#, fuzzy, c-format
#| msgid "A cat"
msgctxt "menu"
msgid ""
"A \\"dog\\"\\n"
"runs."
msgstr "Eine Katze"

msgid "One file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

msgid "done"
msgstr "fertig"

#~ msgid "old"
#~ msgstr ""
"""
)

STRINGS = st.text(st.sampled_from('abc ÄÖ한"\\\n\t%d<>&\u2028'), max_size=12)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


@st.composite
def po_files(draw: st.DrawFn, *, translated: bool) -> str:
    """Files whose translations are the texts, or missing."""
    end = draw(st.sampled_from(["\n", "\r\n"]))
    entries = [HEADER.replace("\n", end)]
    for number in range(draw(st.integers(0, 5))):
        source = draw(STRINGS.filter(bool))
        lines = draw(st.lists(st.sampled_from(["# a", "#: b.c:1", "#, c-format", '#| msgid "old"'])))
        if translated:
            lines.append("#, fuzzy")
        if draw(st.booleans()):
            lines.append(f"msgctxt {quoted(str(number))}")
        lines.append(f"msgid {quoted(source)}")
        value = quoted(source) if translated else '""'
        if draw(st.booleans()):
            plural = draw(STRINGS.filter(bool))
            lines += [f"msgid_plural {quoted(plural)}", f"msgstr[0] {value}"]
            lines.append(f"msgstr[1] {quoted(plural) if translated else value}")
        elif translated and draw(st.booleans()):
            lines += ['msgstr ""', value]
        else:
            lines.append(f"msgstr {value}")
        entries.append(end.join(lines) + end)
    return end.join(entries)


@given(po_files(translated=True))
@made
def test_nothing_changes_without_a_change(content: str) -> None:
    assert rewritten(content, "po") == content


@given(po_files(translated=False))
@made
def test_a_translated_file_has_the_structure_of_the_file(content: str) -> None:
    written = rewritten(content, "po", lambda text: f'{text} "wort"\n\\zwei')
    sources = re.findall(r"^(?!msgstr|\").*$", content, re.MULTILINE)
    assert re.findall(r"^(?!msgstr|\").*$", written, re.MULTILINE) == sources
    assert texts(written, "po") == []  # all is translated
    assert written.count("msgstr") == content.count("msgstr")


def test_empty_and_fuzzy_translations_are_made() -> None:
    written = rewritten(FILE, "po", lambda text: text.upper())
    assert [(text.content, text.line) for text in texts(FILE, "po")] == [
        ("Two women", 11),
        ('A "dog"<p i="0"/>runs.', 19),
        ("One file", 23),
        ("%d files", 24),
    ]
    assert 'msgid "Two women\\n"\nmsgstr "TWO WOMEN\\n"\n' in written
    assert 'msgstr ""\n"A \\"DOG\\"\\n"\n"RUNS."\n' in written
    assert 'msgstr[0] "ONE FILE"\nmsgstr[1] "%D FILES"\n' in written
    assert written.endswith('msgstr "fertig"\n\n#~ msgid "old"\n#~ msgstr ""\n')
    assert "#, fuzzy, c-format\n" in written


def test_one_plural_form_is_that_of_many() -> None:
    content = FILE.replace("nplurals=2", "nplurals=1").replace('msgstr[1] ""\n', "")
    assert texts(content, "po")[-1].content == "%d files"


def test_texts_without_letters_are_copied() -> None:
    assert rewritten('msgid "%1: ...\\n"\nmsgstr ""\n', "po", str.upper) == 'msgid "%1: ...\\n"\nmsgstr "%1: ...\\n"\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (FILE.replace('msgid "done"', "done"), "line 26: a PO file has no such line: 'done'; mend it"),
        (FILE.replace('msgid "done"\n', ""), "line 26: a msgstr needs a msgid before it"),
        (FILE.replace('"fertig"', '"fertig'), "line 27: a PO file has no such line"),
        (
            f'msgid ""\nmsgstr "nplurals={"7" * 5_000}"\n',
            "line 2: nplurals=7{60}... is no number of plural forms: mend",
        ),
        ('msgid "a"\n\nmsgid "b"\nmsgstr ""\n', "line 3: the entry has msgid twice: mend it, as msgfmt"),
        ('msgctxt "a"\nmsgctxt "b"\nmsgid "a"\n', "line 2: the entry has msgctxt twice"),
        ('msgid "a"\nmsgid_plural "a"\n# b\nmsgid_plural "a"\n', "line 4: the entry has msgid_plural twice"),
        ('msgid "a"\nmsgstr ""\nmsgstr "b"\n', "line 3: the entry has msgstr twice"),
        (f'{HEADER}msgstr ""\n', "line 5: the entry has msgstr twice"),
        ('msgid "a"\nmsgstr[0] "a"\nmsgstr[1] ""\nmsgstr[1] ""\n', r"line 4: the entry has msgstr\[1\] twice"),
        (
            'msgid "a"\nmsgid_plural "b"\n' + "".join(f'msgstr[{number}] "c"\n' for number in range(17)),
            r"line 19: an entry has at most 16 plural forms: remove msgstr\[16\]",
        ),
        (FILE.replace("UTF-8", "ISO-8859-1"), "line 2: the charset ISO-8859-1 is not UTF-8: convert .* msgconv"),
    ],
)
def test_a_bad_file_names_the_line(content: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        rewritten(content, "po")


@pytest.mark.parametrize("string", [r"a \" dog", r"a dog\\", r"a \\\" dog", r"a\n\\n dog", r"\"a"])
def test_strings_with_escapes(string: str) -> None:
    written = rewritten(f'msgid "{string}"\nmsgstr ""\n', "po")
    assert re.sub(r'(?m)^""\n|"\n"', "", written.partition("msgstr ")[2]) == f'"{string}"\n'


@pytest.mark.parametrize("string", ['a " dog', "a dog\\", r'a \\" dog', '"', "a" + 3 * "\\"])
def test_strings_that_end_too_early_or_never(string: str) -> None:
    with pytest.raises(InvalidArgumentError, match="line 1: a PO file has no such line"):
        texts(f'msgid "{string}"\nmsgstr ""\n', "po")


@pytest.mark.parametrize(
    ("string", "content"),
    [
        (r"\101" * 80_000, "A" * 80_000),
        (r"\n" * 140_000, None),
        ("a" + r"\n" * (MAX_READ - 2) + "b", 'a<p i="0"/>b'),
        (r"\x1F642z" * 40_000, "\U0001f642z" * 40_000),
        (r"%\n" * 80_000, None),
    ],
    ids=["octal", "ends of lines", "longest", "wide", "no letters"],
)
def test_the_length_of_a_text_is_that_of_its_characters(string: str, content: str | None) -> None:
    """Without letters it is copied."""
    file = f'msgid "{string}"\nmsgstr ""\n'
    assert [text.content for text in texts(file, "po")] == ([] if content is None else [content])
    if content is None:
        assert rewritten(file, "po").count(r"\n") == 2 * string.count(r"\n")


@pytest.mark.parametrize(
    "string",
    ["ab " * 110_000, r"\101" * (MAX_READ + 1), r"\n" * (MAX_READ + 1)],
    ids=["plain", "octal", "ends of lines"],
)
@pytest.mark.parametrize(("fuzzy", "value"), [("", ""), ("#, fuzzy\n", r"old\n")])
def test_a_text_far_too_long_stays_as_it_is(string: str, fuzzy: str, value: str) -> None:
    file = f'{fuzzy}msgid "{string}"\nmsgstr "{value}"\n'
    (text,) = texts(file, "po")
    assert len(text.content) > MAX_READ
    assert rewritten(file, "po", lambda text: f"{text}!") == file


@pytest.mark.parametrize("letter", ["a", "\\n", "1"])
def test_all_plural_forms_share_the_work_and_the_memory_of_their_source(letter: str) -> None:
    def file(forms: int) -> str:
        sources = f'msgid "{letter * 50_000}1"\nmsgid_plural "{letter * 60_000}"\n'
        return sources + "".join(f'msgstr[{number}] ""\n' for number in range(forms))

    def peak(forms: int) -> int:
        content = file(forms)
        assert len(list(po_pieces(content))) == 3 * forms + 3
        return memory_of(lambda: list(po_pieces(content)))[1]

    texts(file(2), "po")  # caches
    assert peak(16) < peak(2) + 20_000
    assert calls_made(lambda: texts(file(16), "po")) < calls_made(lambda: texts(file(2), "po")) + 1_000


def test_forms_of_different_line_ends_are_copied_as_they_are() -> None:
    content = '#, fuzzy\r\nmsgid "1\\n"\r\n"2"\r\nmsgid_plural "3"\r\nmsgstr[0] ""\r\n"4"\r\nmsgstr[1] "3"\r\n'
    assert rewritten(content, "po") == content.replace('""\r\n"4"', '""\r\n"1\\n"\r\n"2"')
