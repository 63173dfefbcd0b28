"""XLIFF: empty and new targets are made, in versions 1.2 and 2; all else stays."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lxml.etree
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.text.files.document import Text
from jumok_serve.text.files.xliff import xliff_pieces
from jumok_serve.text.markup.parser import parse
from tests.support.files import made, rewritten, texts

V1 = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file original="a.html" source-language="en" target-language="de" datatype="html"><body>
    <trans-unit id="1">
      <source>Two <g id="1">women</g> &amp; a dog.</source>
    </trans-unit>
    <trans-unit id="2">
      <source>
        A dog.
      </source>
      <target state="new"/>
      <alt-trans><source>A cat.</source><target>Eine Katze.</target></alt-trans>
    </trans-unit>
    <trans-unit id="3"><source>done</source><target>fertig</target></trans-unit>
    <trans-unit id="4" translate="no"><source>code</source></trans-unit>
    <trans-unit id="5"><source>again</source><target state="needs-translation">alt</target></trans-unit>
    <trans-unit id="6"><source>1 - 2</source></trans-unit>
    <group translate="no"><trans-unit id="7"><source>no</source></trans-unit></group>
  </body></file>
</xliff>
"""
V2 = """<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de"><file id="f">
<unit id="1"><notes><note>A note.</note></notes>
<segment id="s"><source>A <pc id="1">dog</pc> <ph id="2"/>runs.</source></segment>
<ignorable><source> </source></ignorable>
<segment state="final"><source>Done.</source><target>Fertig.</target></segment>
<segment state="initial"><source>Again.</source><target>Alt.</target></segment></unit>
<unit id="2" translate="no"><segment><source>No.</source></segment></unit>
</file></xliff>
"""

WORDS = st.lists(
    st.sampled_from(
        ["a", "dog ", "&amp;", "&#xE4;", "<g id='1'>b</g>", "<x id='2'/>", "<![CDATA[a<b]]>", " ", "<!-- c -->"]
    )
).map("".join)


@st.composite
def xliff_files(draw: st.DrawFn, *, targets: bool) -> str:
    """Files with targets that are their sources, or without."""
    units, end = [], draw(st.sampled_from(["\n", "\r\n", ""]))
    two = draw(st.booleans())
    for number in range(draw(st.integers(0, 5))):
        source = draw(WORDS)
        target = f"{end}<target state='new'>{source}</target>" if targets and not two else ""
        if targets and two:
            target = f"{end}<target>{source}</target>"
        note = draw(st.sampled_from(["", "<note>n</note>"]))
        if two:
            segment = f"<segment state='initial'>{end}<source>{source}</source>{target}</segment>"
            units.append(f"<unit id='{number}'>{note}{segment}</unit>")
        else:
            units.append(f"<trans-unit id='{number}'>{end}<source>{source}</source>{target}{note}</trans-unit>")
    inside = end.join(units)
    return f"<xliff version='{'2.0' if two else '1.2'}'>{end}<file id='a'>{end}{inside}{end}</file></xliff>{end}"


@given(xliff_files(targets=True))
@made
def test_nothing_changes_without_a_change(content: str) -> None:
    assert rewritten(content, "xliff") == content


@given(xliff_files(targets=False))
@made
def test_a_translated_file_has_the_structure_of_the_file(content: str) -> None:
    written = rewritten(content, "xliff")
    before, after = (lxml.etree.fromstring(each.encode()) for each in (content, written))
    targets = after.findall(".//target")
    assert len(targets) == len(texts(content, "xliff"))
    for target in targets:
        parent = target.getparent()
        assert parent is not None
        source = parent.find("source")
        assert [each.tag for each in source] == [each.tag for each in target]
        assert "".join(source.itertext()) == "".join(target.itertext())
        parent.remove(target)
    for each in after.iter("segment"):
        if each.get("state") == "translated":
            each.set("state", "initial")
    assert [(each.tag, dict(each.attrib)) for each in after.iter()] == [
        (each.tag, dict(each.attrib)) for each in before.iter()
    ]


def without_new(content: str) -> str:
    """A file without new targets."""
    return re.sub(r"<target state[^>]*(?:/>|>[^<]*</target>)", "", content)


def test_texts_of_version_1() -> None:
    assert [(text.content, text.line) for text in texts(V1, "xliff")] == [
        ('Two <g id="1">women</g> &amp; a dog.', 5),
        ("A dog.", 8),
        ("again", 16),
    ]
    written = rewritten(V1, "xliff", lambda text: f"x{text}")
    assert '</source>\n      <target>xTwo <g id="1">women</g> &amp; a dog.</target>\n    </trans-unit>' in written
    assert (
        '<target state="needs-review-translation">\n        xA dog.\n      </target>\n      <alt-trans><source>A cat.'
        in written
    )
    assert '<target state="needs-review-translation">xagain</target>' in written
    assert without_new(re.sub(r"\n *<target>xTwo.*</target>", "", written)) == without_new(V1)


def test_texts_of_version_2() -> None:
    assert [text.content for text in texts(V2, "xliff")] == ['A <pc id="1">dog</pc> <ph id="2"/>runs.', "Again."]
    written = rewritten(V2, "xliff", lambda text: f"x{text}")
    assert '</source><target>xA <pc id="1">dog</pc> <ph id="2"/>runs.</target></segment>' in written
    assert "<target>xAgain.</target></segment></unit>" in written


def test_prefixed_names() -> None:
    content = "<x:xliff xmlns:x='u'><x:trans-unit><x:source>a</x:source></x:trans-unit></x:xliff>"
    assert "</x:source><x:target>A</x:target></x:trans-unit>" in rewritten(content, "xliff", str.upper)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (V1.replace("</source>\n    </t", "</sourc>\n    </t"), "line 5: .* XML: mismatched tag; mend it"),
        ("<html><body>a</body></html>", "line 1: the outermost element must be xliff, got html"),
        ("", "line 1: .*no element found|line 1: the outermost element must be xliff, got none"),
        (
            V1.replace('encoding="UTF-8"', 'encoding="ISO-8859-1"'),
            "line 1: the encoding ISO-8859-1 is not UTF-8",
        ),
        (f"<xliff>{'<a>' * 10_000}", "XML: "),
        (V1.replace('xliff version="1.2"', 'xliff version="3.0"'), "line 1: the version '3.0' of XLIFF is unknown"),
    ],
)
def test_a_bad_file_names_the_line(content: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        rewritten(content, "xliff")


def test_entities_are_not_expanded() -> None:
    unit = "<xliff><trans-unit><source>A &b;</source></trans-unit></xliff>"
    assert [text.content for text in texts(f'<!DOCTYPE xliff PUBLIC "a" "b">{unit}', "xliff")] == ["A &b;"]
    with pytest.raises(InvalidArgumentError, match=r"^file: line 2: it declares the entity 'a' \(<!ENTITY\); remove"):
        texts(f'<!DOCTYPE l [\n<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>{unit}', "xliff")


def unit(inside: str, attributes: str = "") -> str:
    return f'<xliff version="1.2"><trans-unit id="1"{attributes}>{inside}</trans-unit></xliff>'


def segment(inside: str, attributes: str = "") -> str:
    return f'<xliff version="2.1"><unit id="1"><segment{attributes}>{inside}</segment></unit></xliff>'


FIRST, SECOND = '<mrk mtype="seg" mid="0">', '<mrk mtype="seg" mid="1">'
SEGMENTS = f'<source>A. B.</source><seg-source>{FIRST}A.</mrk> {SECOND}B <g id="1">c</g>.</mrk></seg-source>'
MADE = f'{FIRST}xA.</mrk> {SECOND}xB <g id="1">c</g>.</mrk>'


def marked(content: str) -> str:
    """Another text in each segment."""
    return re.sub("<xs[^>]*>", r"\g<0>x", content) if "<xs" in content else f"x{content}"


@pytest.mark.parametrize(
    ("content", "target"),
    [
        (unit("<source>A</source><target/>"), "<target>xA</target>"),
        (unit("<source>A</source><target />"), "<target>xA</target>"),
        (unit("<source>A</source><target> </target>"), "<target>xA</target>"),
        (unit('<source>A<x id="1"/></source><target><x id="1"/></target>'), '<target>xA<x id="1"/></target>'),
        (unit("<source>A<ph>c</ph></source><target><ph>c</ph></target>"), "<target>xA<ph>c</ph></target>"),
        (
            unit('<source>A</source><target state="new">B</target>'),
            '<target state="needs-review-translation">xA</target>',
        ),
        (
            unit("<source>A</source><target state='needs-translation'/>"),
            "<target state='needs-review-translation'>xA</target>",
        ),
        (
            unit('<source>A</source><target xml:lang="de" state="translated"/>'),
            '<target xml:lang="de" state="translated">xA</target>',
        ),
        (unit("<source>A</source><!-- c --><note>n</note>"), "</source><target>xA</target><!-- c --><note>"),
        (unit("<source>A<!-- c --> b</source>"), "<target>xA<!-- c --> b</target>"),
        (unit("<source><![CDATA[A <b>]]></source>"), "<target>x<![CDATA[A <b>]]></target>"),
        (unit(SEGMENTS), f"<target>{MADE}</target>"),
        (unit(f"{SEGMENTS}<target/>"), f"<target>{MADE}</target>"),
        (unit(f"{SEGMENTS}<target>{FIRST}</mrk> {SECOND}</mrk></target>"), f"<target>{MADE}</target>"),
        (
            unit(f"{SEGMENTS}<target>{FIRST[:-1]}/> {SECOND[:-1]} /></target>"),
            f"<target>{MADE}</target>",
        ),
        (
            unit(f"{SEGMENTS}<target>{SECOND}</mrk>-{FIRST}</mrk></target>"),
            f'<target>{SECOND}xB <g id="1">c</g>.</mrk>-{FIRST}xA.</mrk>',
        ),
        (
            unit(f"{SEGMENTS}<target>{FIRST}Mensch</mrk> {SECOND}</mrk></target>"),
            f'<target>{FIRST}Mensch</mrk> {SECOND}xB <g id="1">c</g>.</mrk>',
        ),
        (
            unit(f'{SEGMENTS}<target state="new">{FIRST}A.</mrk> {SECOND}B.</mrk></target>'),
            f'<target state="needs-review-translation">{MADE}',
        ),
        (segment("<source>A</source>"), '<segment state="translated"><source>A</source><target>xA</target></segment>'),
        (segment("<source>A</source><target/>", ' id="s"'), '<segment id="s" state="translated">'),
        (
            segment("<source>A</source><target>B</target>", ' state="initial" subState="a:b"'),
            '<segment state="translated"><source>A</source><target>xA<',
        ),
        (
            segment("<source>A</source><target>B</target>", " subState='a:b' state='initial'"),
            "<segment state='translated'><source>A</source><target>xA<",
        ),
        (segment("<source>A</source>", ' canResegment="no"'), '<segment canResegment="no" state="translated">'),
    ],
)
def test_targets_that_are_made(content: str, target: str) -> None:
    written = rewritten(content, "xliff", marked)
    assert target in written
    lxml.etree.fromstring(written.encode())
    (text,) = texts(content, "xliff")
    assert content.count(text.written) == 1  # without a translation the file stays


@pytest.mark.parametrize(
    "content",
    [
        unit("<source>A</source><target>B</target>"),
        unit('<source>A</source><target state="translated">B</target>'),
        unit('<source>A</source><target state="new">B</target>', ' approved="yes"'),
        unit("<source>A</source><target/>", ' approved="yes"'),
        unit('<source>A</source><target state="final"/>'),
        unit('<source>A</source><target state="signed-off"><x id="1"/></target>'),
        unit('<source><x id="1"/></source>'),
        unit("<source>A</source>", ' translate="no"'),
        unit(f"{SEGMENTS}<target>{FIRST}a</mrk> {SECOND}b</mrk></target>"),
        unit(f'{SEGMENTS}<target>{FIRST}a</mrk> <mrk mtype="seg" mid="7"/></target>'),
        segment("<source>A</source><target>B</target>"),
        segment("<source>A</source><target>B</target>", ' state="reviewed"'),
        segment("<source>A</source>", ' state="final"'),
        '<xliff version="2.0"><unit id="1"><ignorable><source>A</source></ignorable></unit></xliff>',
        '<xliff version="2.2"><unit id="1" translate="no"><segment><source>A</source></segment></unit></xliff>',
        '<xliff version="2.1"><unit id="1"><m:matches xmlns:m="m"><m:match><source>A</source><target/></m:match>'
        "</m:matches></unit></xliff>",
        unit("<alt-trans><source>A</source><target/></alt-trans>"),
        '<xliff version="1.2"><bin-unit><bin-source>A</bin-source></bin-unit></xliff>',
    ],
)
def test_units_that_stay(content: str) -> None:
    assert texts(content, "xliff") == []
    assert rewritten(content, "xliff") == content


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ('a <mrk mtype="protected">b c</mrk>', 'a <xh i="0" translate="no">b c</xh>'),
        ('a <mrk translate="no" id="m">b</mrk>', 'a <xh i="0" translate="no">b</xh>'),
        ('a <bpt id="1">&lt;b></bpt>b<ept id="1">&lt;/b></ept>', 'a <xc i="0">b</xc>'),
        ('a <bx id="1" rid="7"/>b<ex id="2" rid="7"/>', 'a <xc i="0">b</xc>'),
        ('a <sc id="1"/>b<ec startRef="1"/>', 'a <xc i="0">b</xc>'),
        ('a <sm id="1" type="comment"/>b<em startRef="1"/>', 'a <xc i="0">b</xc>'),
        ('a <sc id="1"/>b<sc id="2"/>c<ec startRef="2"/><ec startRef="1"/>', 'a <xc i="0">b<xc i="1">c</xc></xc>'),
        ('<pc id="3">a <sc id="1"/>b</pc><ec startRef="1"/>', '<pc id="3">a <sc id="1"/>b</pc><ec startRef="1"/>'),
        ('a <ec id="1" isolated="yes"/>b', 'a <ec id="1" isolated="yes"/>b'),
        ('a <ph id="1" subFlows="2">x</ph>', 'a <ph id="1" subFlows="2">x</ph>'),
        ("a  b\n c", "a  b\n c"),
    ],
)
def test_codes(source: str, content: str) -> None:
    """Codes in pairs are one element, so that they stay in order."""
    file = unit(f"<source>{source}</source>")
    (text,) = texts(file, "xliff")
    assert text.content == content
    parse(text.content, "xml")
    assert f"<target>x{source}</target>" in rewritten(file, "xliff", marked)


@pytest.mark.parametrize("place", ["source", "trans-unit", "file", "group"])
def test_white_space_that_is_preserved(place: str) -> None:
    source = " a  b\n\tc "
    file = (
        '<xliff version="1.2"><file><group><trans-unit><source>'
        + source
        + "</source></trans-unit></group></file></xliff>"
    ).replace(f"<{place}", f'<{place} xml:space="preserve"')
    (text,) = texts(file, "xliff")
    assert text.content == ' a<xw i="0"/>b<xw i="1"/>c '
    assert "<target> A  B\n\tC </target>" in rewritten(
        file, "xliff", lambda text: re.sub("[abc]", lambda one: one[0].upper(), text)
    )
    inner = (
        file.replace("<source", '<source xml:space="default"')
        if place != "source"
        else file.replace("preserve", "default")
    )
    assert [one.content for one in texts(inner, "xliff")] == ["a  b\n\tc"]


def test_codes_with_prefixes() -> None:
    codes = '<s:g id="1">b</s:g> <s:ph id="2">c</s:ph> <s:x id="3"/> <s:mrk mtype="protected">d</s:mrk>'
    inside = f"<s:source>a {codes}</s:source>"
    content = f"<s:xliff xmlns:s='u' version='1.2'><s:trans-unit>{inside}</s:trans-unit></s:xliff>"
    (text,) = texts(content, "xliff")
    assert text.content == 'a <xc i="0">b</xc> <xc i="1"/> <xc i="2"/> <xh i="3" translate="no">d</xh>'
    target = inside.replace("s:source", "s:target").replace(">a", ">xa")
    assert f"{inside}{target}</s:trans-unit>" in rewritten(content, "xliff", marked)


def into(content: str, language: str, source: str = "") -> str:
    pieces: Iterator[str | Text] = xliff_pieces(content, language, source)
    return "".join(piece if isinstance(piece, str) else piece.write(f"x{piece.content}") for piece in pieces)


@pytest.mark.parametrize(
    ("content", "language", "written"),
    [
        ('<xliff version="2.0" srcLang="en">', "de", '<xliff version="2.0" srcLang="en" trgLang="de">'),
        (
            '<xliff version="2.0" srcLang="en" trgLang="">',
            "deu_Latn",
            '<xliff version="2.0" srcLang="en" trgLang="de">',
        ),
        (
            '<xliff version="2.0" srcLang="en" trgLang="de-AT">',
            "de",
            '<xliff version="2.0" srcLang="en" trgLang="de-AT">',
        ),
        ('<xliff version="2.0" srcLang="en">', "", '<xliff version="2.0" srcLang="en">'),
        (
            '<xliff version="1.2"><file source-language="en-US">',
            "ko",
            '<file source-language="en-US" target-language="ko">',
        ),
        (
            '<xliff version="1.2"><file target-language="ko" source-language="en">',
            "kor_Hang",
            '<file target-language="ko" source-language="en">',
        ),
    ],
)
def test_the_target_language_is_declared(content: str, language: str, written: str) -> None:
    end = "</file></xliff>" if "<file" in content else "</xliff>"
    assert written in into(content + end, language, "eng_Latn")


def test_lines_after_a_declared_language() -> None:
    content = (
        unit("\n<source>A</source>")
        .replace("<trans", '<file source-language="en"\n><trans')
        .replace("</xliff", "</file></xliff")
    )
    (text,) = (one for one in xliff_pieces(content, "de") if isinstance(one, Text))
    assert text.line == 3
    assert 'source-language="en"\n target-language="de">' in into(content, "de")


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (
            ("fr", "en"),
            "line 3: the file's target-language is 'de', but the request's target language is 'fr': change one",
        ),
        (
            ("de", "ko"),
            "line 3: the file's source-language is 'en', but the request's source language is 'ko': change one",
        ),
    ],
)
def test_other_languages_are_refused(languages: tuple[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        into(V1, *languages)
    assert into(V1, "de-CH", "en-GB") == into(V1, "")


def test_another_library_reads_what_is_written(tmp_path: Path, translate_toolkit: Path) -> None:
    """The toolkit is a tool of its own: it reads the files in another process."""
    target = f"<target>{FIRST}</mrk> {SECOND}</mrk></target>"
    segmented = re.sub(r"(?s)<body>.*</body>", f"<body><trans-unit>{SEGMENTS}{target}</trans-unit></body>", V1)
    for name, content in {"a": V1, "b": segmented}.items():
        (tmp_path / f"{name}.xlf").write_text(rewritten(content, "xliff", marked), encoding="utf-8")
    program = (
        "import json, sys\nfrom translate.storage.xliff import xlifffile\nprint(json.dumps([[(str(unit.target), "
        "unit.istranslated()) for unit in xlifffile.parsefile(path).units] for path in sys.argv[1:]]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.xlf"), str(tmp_path / "b.xlf")]
    environment = {"PYTHONPATH": str(translate_toolkit)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    targets = ["xTwo women & a dog.", "xA dog.", "fertig", "None", "xagain", "None", "None"]
    assert [" ".join(target.split()) for target, _ in first] == targets
    assert [target for target, _ in second] == ["xA. xB c."]


@pytest.fixture(scope="session")
def translate_toolkit() -> Path:
    """Folder of the toolkit, which pip installs once beside other things that tests make."""
    folder = Path(os.environ.get("JUMOK_TEST_CACHE") or tempfile.gettempdir()) / "translate-toolkit-3.20.4"
    if not folder.exists():
        made = folder.with_name(f"{folder.name}.{os.getpid()}")
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
            str(made),
        ]
        if subprocess.run([*install, "translate-toolkit==3.20.4"], check=False).returncode:
            pytest.skip("pip cannot install translate-toolkit here")
        made.rename(folder)
    return folder
