"""PO files: empty and fuzzy translations are made, plural forms too; all else stays."""

import re
import subprocess
from pathlib import Path

import polib
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
        (FILE.replace("UTF-8", "US-ASCII"), "line 2: the charset US-ASCII is not UTF-8: convert .* msgconv"),
        (
            f"# ä\n{FILE.replace('UTF-8', 'CP1252')}",
            "line 3: the charset CP1252 .*: the file is UTF-8, so write charset=",
        ),
        (FILE.replace("(n != 1)", "n !! 1"), "line 2: plural=n !! 1 is no expression: mend it"),
        (FILE.replace("(n != 1)", "n % 0"), "line 2: plural=n % 0 is no expression: mend it"),
        ('msgid "a"\n#~ msgid "b"\n#~ msgstr ""\n', "line 2: the entry before this line has no msgstr"),
        ('msgid "a"\n', "line 2: the entry before this line has no msgstr"),
        ('msgid "a"\nmsgstr "b" c\n', "line 2: a PO file has no such line"),
        ('msgid\nmsgstr ""\n', "line 1: a PO file has no such line"),
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


def checked(content: str, folder: Path) -> str:
    """What msgfmt says about a file, but for fields of the header."""
    path = folder / "a.po"
    path.write_text(content, encoding="utf-8", newline="")
    done = subprocess.run(["msgfmt", "--check", "-o", "/dev/null", path], capture_output=True, text=True, check=False)
    return "".join(line for line in done.stderr.splitlines(keepends=True) if "header field" not in line)


HUMAN = 'msgid "cat"\nmsgstr "Katze"\n'
FUZZY = '#, fuzzy\nmsgid "old"\nmsgstr "alt"\n'


@pytest.mark.parametrize(
    ("before", "made"),
    [
        (FUZZY, {"old"}),
        ('#, fuzzy\n#~ msgid "old"\n#~ msgstr "alt"\n', set()),
        ('#, fuzzy\n#~| msgid "older"\n#~ msgid "old"\n#~ msgstr "alt"\n\n', set()),
        ('#, fuzzy, c-format\n#~ msgctxt "a"\n#~ msgid ""\n#~ "old"\n#~ msgid_plural "b"\n#~ msgstr[0] "alt"\n', set()),
        ('# a comment\n#, fuzzy\n\n#~ msgid "old"\n#~ msgstr "alt"\n# another\n', set()),
        ('#~ msgid "old"\n#~ msgstr "alt"\n#, c-format\n', set()),
        ('#~ msgid "old"\n#~ msgstr "alt"\n\n\n#, fuzzy\n', {"cat"}),
        ("#, fuzzy\n\n", {"cat"}),
        ('  #, no-wrap, fuzzy\n#| msgid "old"\n', {"cat"}),
        ("# fuzzy\n#. fuzzy\n#: fuzzy\n", set()),
        (f'{FUZZY}#~ msgid "b"\n#~ msgstr "c"\n', {"old"}),
        (f"{FUZZY}# a\n", {"old"}),
        (f'{FUZZY}\n{HUMAN}\n#, fuzzy\n#~ msgid "b"\n#~ msgstr "c"\n'.replace("cat", "cow"), {"old"}),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_human_translation_is_never_replaced(before: str, made: set[str], end: str) -> None:
    """Entries that polib takes for fuzzy are made again, and no others."""
    content = f"{HEADER}\n{before}{HUMAN}".replace("\n", end)
    fuzzy = {entry.msgid for entry in polib.pofile(content) if entry.fuzzy and not entry.obsolete}
    assert {text.content for text in texts(content, "po")} == made == fuzzy
    written = rewritten(content, "po", lambda _: "NEU")
    assert written.count("NEU") == len(made)
    assert ("Katze" in written) == ("cat" not in made)
    for before_line, line in zip(content.split(end), written.split(end), strict=True):
        assert line == before_line or line == 'msgstr "NEU"'


def test_flags_inside_of_an_entry_do_not_count() -> None:
    content = f'{HEADER}\nmsgid "cat"\n#, fuzzy\nmsgstr "Katze"\n'
    assert rewritten(content, "po", lambda _: "NEU") == content


@pytest.mark.parametrize(
    "entry",
    ['msgid "a" "b"\nmsgstr\n""\n', 'msgid"ab"\nmsgstr""\n', '\tmsgid  "a"\n\t "b" \nmsgstr "" ""\n'],
)
def test_strings_on_one_line_or_the_next(entry: str, tmp_path: Path) -> None:
    assert [text.content for text in texts(HEADER + entry, "po")] == ["ab"]
    written = rewritten(HEADER + entry, "po", lambda _: "NEU")
    assert checked(written, tmp_path) == ""
    normal = subprocess.run(["msgcat", "-"], input=written, capture_output=True, text=True, check=True).stdout
    assert [one.msgstr for one in polib.pofile(normal)] == ["NEU"]


PLURAL = 'msgid "%d file"\nmsgid_plural "%d files"\n'
ALONE = 'msgid "One file"\nmsgid_plural "%d files"\n'


@pytest.mark.parametrize(
    ("rule", "entry", "sources"),
    [
        ("nplurals=1; plural=0;", f'{PLURAL}msgstr[0] ""\n', "p"),
        ("nplurals=1; plural=0;", f'{PLURAL}msgstr[0] ""\nmsgstr[1] ""\n', "p"),
        ("nplurals=2; plural=(n != 1);", f'{PLURAL}msgstr[0] ""\nmsgstr[1] ""\n', "sp"),
        ("nplurals=2; plural=n > 1;", f'{PLURAL}msgstr[0] ""\nmsgstr[1] ""\n', "sp"),
        ("nplurals=2; plural=n > 1;", f'{ALONE}msgstr[0] ""\nmsgstr[1] ""\n', "pp"),
        ("nplurals=2; plural=n != 1;", f'{ALONE}msgstr[0] ""\nmsgstr[1] ""\n', "sp"),
        (
            "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);",
            f'{PLURAL}msgstr[0] ""\nmsgstr[1] ""\n',
            "spp",
        ),
        (
            "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);",
            f'{PLURAL}msgstr[0] ""\n',
            "pspp",
        ),
        (
            "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5;",
            f'{ALONE}msgstr[0] ""\nmsgstr[1] ""',
            "pspppp",
        ),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_plural_forms_are_those_of_the_header(rule: str, entry: str, sources: str, end: str, tmp_path: Path) -> None:
    header = HEADER.replace("nplurals=2; plural=(n != 1);", rule)
    content = f"{header}\n#, c-format\n{entry}".replace("\n", end)
    written = rewritten(content, "po", lambda text: f"{text}!")
    assert checked(written, tmp_path) == ""
    (made,) = polib.pofile(written)
    singular = made.msgid
    assert [made.msgstr_plural[form] for form in range(len(sources))] == [
        f"{singular if one == 's' else '%d files'}!" for one in sources
    ]
    assert len(made.msgstr_plural) == len(sources)


def test_missing_forms_follow_human_ones_and_stay_empty_without_a_translation() -> None:
    header = HEADER.replace("nplurals=2", "nplurals=3")
    content = f'{header}\n{PLURAL}msgstr[0] "eine"\nmsgstr[1] ""\n\n# end\n'
    written = rewritten(content, "po", lambda _: "NEU")
    assert written == content.replace('msgstr[1] ""\n', 'msgstr[1] "NEU"\nmsgstr[2] "NEU"\n')
    assert "".join(piece if isinstance(piece, str) else piece.written for piece in po_pieces(content)) == content


@pytest.mark.parametrize(("language", "sources"), [("ko", "pp"), ("de", "sp"), ("", "sp"), ("jpn_Jpan", "pp")])
def test_without_plural_forms_in_the_header_the_language_decides(language: str, sources: str) -> None:
    content = f'msgid ""\nmsgstr "Language: \\n"\n\n{PLURAL}msgstr[0] ""\nmsgstr[1] ""\n'
    found = [piece.content for piece in po_pieces(content, language) if not isinstance(piece, str)]
    assert found == ["%d file" if one == "s" else "%d files" for one in sources]


def entry_of(source: str, flags: str = "", header: str = HEADER) -> str:
    return f'{header}\n{f"#, {flags}" if flags else "# none"}\nmsgid {quoted(source)}\nmsgstr ""\n'


@pytest.mark.parametrize(
    ("flag", "source", "content", "translation", "written"),
    [
        ("c-format", "%s of %d", None, '<x i="1">a</x> von <x i="0">b</x>', "%2$d von %1$s"),
        ("c-format", "%s of %d", None, '<x i="0">a</x> von <x i="1">b</x>', "%s von %d"),
        ("c-format", "%*d of %s", None, '<x i="1">a</x> von <x i="0">b</x>', "%*d von %s"),
        ("c-format", "%<PRIuMAX> of %s", None, '<x i="1"/> von <x i="0"/>', "%2$s von %1$<PRIuMAX>"),
        ("c-format", "a {%u}: %s", None, 'A <x i="1">a</x>: <x i="0">b</x>', "A %2$s: {%1$u}"),
        ("perl-format, perl-brace-format", "${%d} of %s", None, '<x i="1"/> von <x i="0"/>', "%2$s von ${%1$d}"),
        ("php-format", "%s of %s", None, '<x i="1">a</x> von <x i="0">b</x>', "%2$s von %1$s"),
        ("python-format", "%s of %d", None, '<x i="1">a</x> von <x i="0">b</x>', "%s von %d"),
        ("python-format", "%(a)s of %(b)s", None, '<x i="1">a</x> von <x i="0">b</x>', "%(b)s von %(a)s"),
        ("python-brace-format", "{} of {:>4}", None, '<x i="1">a</x> von <x i="0">b</x>', "{1:>4} von {0}"),
        ("python-brace-format", "{a} of {b}", None, '<x i="1"/> von <x i="0"/> {', "{b} von {a} {{"),
        ("c-format", "%d percent", None, '<x i="0">%d</x> % d', "%d %% d"),
        ("c-format", "a %% b %s", None, '<x i="1">.</x> a <x i="0">.</x>', "%s a %%"),
        ("qt-format", "%1 of %2", None, '<x i="1"/> von <x i="0"/>', "%2 von %1"),
        ("no-c-format", "5 % d", "5 % d", "5 % e", "5 % e"),
        ("", "Click <b>here</b>", 'Click <g i="0">here</g>', 'Hier <g i="0">klicken</g>', "Hier <b>klicken</b>"),
        ("", '<a href="%s">x</a> y', '<g i="0">x</g> y', 'y <g i="0">x</g>', 'y <a href="%s">x</a>'),
        ("", "a < b and c > d", "a &lt; b and c &gt; d", "A &lt; B > C", "A < B > C"),
        ("", "Usage: foo <name>", "Usage: foo &lt;name&gt;", "Aufruf: foo &lt;Name>", "Aufruf: foo <Name>"),
        ("", "See <file>", "See &lt;file&gt;", "Siehe &lt;Datei>", "Siehe <Datei>"),
        ("", "One<br>two", 'One<p i="0"/>two', 'Eins<p i="0"/>zwei', "Eins<br>zwei"),
        ("", "<p>One", '<p i="0"/>One', '<p i="0"/>Eins', "<p>Eins"),
        ("", "</b> one", '<g i="0"/> one', '<g i="0"/> eins', "</b> eins"),
        (
            "",
            '<guilabel>File</guilabel>, <emphasis role="strong">now</emphasis>',
            '<g i="0">File</g>, <g i="1">now</g>',
            '<g i="1">jetzt</g>, <g i="0">Datei</g>',
            '<emphasis role="strong">jetzt</emphasis>, <guilabel>Datei</guilabel>',
        ),
        (
            "",
            "See <filename>/etc/a</filename>.",
            'See <x i="0" translate="no">/etc/a</x>.',
            'Siehe <x i="0" translate="no">.</x>.',
            "Siehe <filename>/etc/a</filename>.",
        ),
        ("", '<span class="notranslate">No</span> yes', '<x i="0" translate="no">No</x> yes', '<x i="0"/> ja', None),
        ("", "<b>a</b> < b", '<g i="0">a</g> &lt; b', '<g i="0">A</g> &lt; B', "<b>A</b> < B"),
        ("c-format", "{} of %s", None, '<x i="1"/> von <x i="0"/>', "%s von {}"),
        ("", "a E<lt>bE<gt>", None, '<x i="0"/>B<x i="1"/> a', "E<lt>BE<gt> a"),
        ("", "B<a> I</b> c E<lt>d", None, '<g i="1">x</g> <x i="2"/>d <g i="0">A</g>', "I<x> E<lt>d B<A>"),
        (
            "",
            "B<a I<b=c> d> -> e",
            '<g i="0">a <g i="1">b=c</g> d</g> -&gt; e',
            '<g i="0"><g i="1">B</g></g> e',
            "B<I<B>> e",
        ),
        ("", "-n, --name=N [A]  the name", '<g i="0"/><p i="1"/>the name', '<g i="0"/><p i="1"/>x', None),
        ("", "- 한국어", "- 한국어", "- Koreanisch", "- Koreanisch"),
        ("", "Press <b>C</b>", 'Press <g i="0">C</g>', '<g i="0">C</g> drücken', "<b>C</b> drücken"),
        ("", "Tom &amp; Jerry", "Tom &amp; Jerry", "Tim &amp; Jerry", "Tim &amp; Jerry"),
        ("", "Tom & Jerry", "Tom &amp; Jerry", "Tim &amp; Jerry", "Tim & Jerry"),
        ("", "<b>Tom</b> has", '<g i="0">Tom</g> has', '<g i="0">T</g> &amp; &lt;', "<b>T</b> &amp; &lt;"),
        ("", "a&nbsp;b &kde; c", 'a\xa0b <x i="0" translate="no">kde</x> c', 'A\xa0B <x i="0"/>', "A&nbsp;B &kde;"),
        ("", "a\n  b\tc", 'a<p i="0"/>b<p i="1"/>c', 'A<p i="0"/>B<p i="1"/>C', "A\n  B\tC"),
        ("", "\n a\n", "a", " A ", "\n A\n"),
        ("", "\x1b[1ma\x1b[0m b", '<g i="0"/>a<g i="1"/> b', '<g i="0"/>A<g i="1"/> B', "\x1b[1mA\x1b[0m B"),
        ("", "&Save As...", "Save As...", "Sichern als...", "&Sichern als..."),
        ("", "Save &As...", "Save As...", "Sichern als", "Sichern &als"),
        ("", "E_xit", "Exit", "Beenden", "_Beenden"),
        ("", "_File", "File", "파일", "파일(_F)"),
        ("", "&Open…", "Open…", "열기…", "열기(&O)…"),
        ("", "~Open...", "Open...", "開く...", "開く(~O)..."),
        ("", "&Open\tCtrl+O", "Open", "Öffnen", "Ö&ffnen\tCtrl+O".replace("Ö&ffnen", "&Öffnen")),
        ("", "a &amp; _ma", "a &amp; ma", "&amp; Emma", "&amp; E_mma"),
        ("", "&m <file> {a} %s", "m &lt;file&gt; {a} %s", "&lt;file> {a} %s b", "<file> {a} %s &b"),
        ("", "R&D and AT&T", "R&amp;D and AT&amp;T", "F&amp;E", "F&E"),
        ("", "file_name is bad", "file_name is bad", "file_name nein", "file_name nein"),
        ("", "a && b", "a &amp;&amp; b", "a &amp;&amp; c", "a && c"),
        ("c-format", "a <b>\\%s", 'a <g i="0"/>\\<x i="1" translate="no">%s</x>', '<x i="1"/><g i="0"/> A', "%s<b> A"),
    ],
)
def test_messages(flag: str, source: str, content: str | None, translation: str, written: str | None) -> None:
    file = entry_of(source, flag)
    (text,) = texts(file, "po")
    assert content in {None, text.content}
    made = polib.pofile(rewritten(file, "po", lambda _: translation))[0].msgstr
    made = made.replace("\\033", "\x1b")  # polib leaves octal escapes
    assert made == (source.replace("yes", "ja").replace("the name", "x") if written is None else written)


def test_the_header_names_the_mark_of_accelerators() -> None:
    header = HEADER.replace('"Plural', '"X-Accelerator-Marker: ^\\n"\n"Plural')
    assert [text.content for text in texts(entry_of("sa^ve &as", header=header), "po")] == ["save &amp;as"]
    assert 'msgstr "^Sichern"' in rewritten(entry_of("sa^ve &as", header=header), "po", lambda _: "Sichern")


@pytest.mark.parametrize("source", ["%s: %d\n", "<b>%s</b>", "Ctrl+S", "https://example.org/a", "--", "{0}"])
def test_messages_without_language_are_copied(source: str) -> None:
    for flag in ("", "c-format"):
        file = entry_of(source, flag)
        assert texts(file, "po") == []
        assert polib.pofile(rewritten(file, "po"))[0].msgstr == source


@pytest.mark.parametrize(
    ("flag", "source", "translation", "problem"),
    [
        ("c-format", "%d files", "Dateien", "it has other tags than the text"),
        ("c-format", "%d files", '<x i="0"/> <x i="0"/>', "it has other tags than the text"),
        ("python-brace-format", "{a} b", '<x i="0"/> {c}', "it has '{{c}}' 1 times"),
        ("qt-format", "%1 files", '<x i="0"/> %2', "it has '%2' 1 times, the text 0 times"),
        ("", "<b>a</b> c", '<g i="0">a', "it has other tags than the text"),
        ("", "a", " ", "it is empty"),
        ("", "<b>a</b>" * 2_000, "b", "the text has more than 4096 tags"),
        ("c-format", "%d a " * 3_000, "b", "the text has more than 4096 tags"),
    ],
)
def test_a_translation_that_would_damage_the_file_is_refused(
    flag: str, source: str, translation: str, problem: str
) -> None:
    (text,) = texts(entry_of(source, flag), "po")
    with pytest.raises(InvalidArgumentError, match=problem):
        text.write(translation)


def test_control_characters_are_written_as_escapes(tmp_path: Path) -> None:
    source = 'a\\a\\b\\033[1m\\f\\v\\r\\\\ \\"b'
    written = rewritten(f'{HEADER}\nmsgid "{source}"\nmsgstr ""\n', "po", lambda text: f"{text}!")
    assert checked(written, tmp_path) == ""
    assert written.endswith(f'msgstr "{source}!"\n')


def swapped(text: str) -> str:
    """Another text with the same elements, the first two holes exchanged."""
    holes = re.findall(r"<x [^>]*>[^<]*</x>", text)
    if len(holes) > 1:
        first, second = holes[:2]
        text = text.replace(first, "\0").replace(second, first).replace("\0", second)
    return re.sub(r"(?<![<\w&/;\"])[a-z]+(?=[^<>]*(?:<|$))(?![^<]*</x>)", lambda word: word[0][::-1], text)


MESSAGES = st.lists(
    st.sampled_from(
        [
            "word ",
            "%s ",
            "%d",
            "%5.2f",
            "%%",
            "<b>",
            "</b>",
            "a < b ",
            "&",
            "_",
            "\n",
            "\t",
            " ",
            "&amp;",
            "<br/>",
            "ä",
            ": ",
            '<a href="%s">',
            "</a>",
            "100 ",
            "%-3d ",
            "<file>",
            "(",
            "\\",
            '"',
            "한국어 ",
        ]
    ),
    min_size=1,
    max_size=10,
).map("".join)


@given(st.lists(MESSAGES, unique=True, min_size=1, max_size=5))
@made
def test_made_messages_pass_the_check_of_gettext_and_keep_their_parts(
    tmp_path_factory: pytest.TempPathFactory, messages: list[str]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    content = f"{HEADER}\n" + "\n".join(
        f"#, c-format\nmsgid {quoted(message)}\nmsgstr {quoted(message)}\n" for message in messages
    )
    if checked(content, folder):
        return  # no message of C
    empty = re.sub(r"^(#, c-format\nmsgid .*\n)msgstr .*$", r'\1msgstr ""', content, flags=re.MULTILINE)
    written = rewritten(empty, "po", swapped)
    assert checked(written, folder) == ""
    for entry in polib.pofile(re.sub(r"%\d+\$", "%", written)):
        for part in (r"<[^<>]*>", r"&amp;", "\n", "\t", r"\\", r"%[^ ]*?[sdf%]"):
            assert sorted(re.findall(part, entry.msgid)) == sorted(re.findall(part, entry.msgstr)), entry.msgid
