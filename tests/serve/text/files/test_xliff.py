"""XLIFF: empty and new targets are made, in versions 1.2 and 2; all else stays."""

import re

import lxml.etree
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jumok_proto.errors import InvalidArgumentError
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
    assert '<target state="needs-review-translation">\n        xA dog.\n      </target>\n      <alt-trans><source>A cat.' in written
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
