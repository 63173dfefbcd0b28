"""Parsing of HTML and XML: every character kept, blocks and spans found, hostile input in linear time."""

import re
import time
from xml.parsers import expat

import lxml.html
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jumok_proto.errors import InvalidArgumentError
from jumok_proto.markup import MarkupKind, MarkupRules
from jumok_serve.tasks.stand_ins import StandIns
from jumok_serve.text.markup.parser import Block, Document, Span, parse
from jumok_serve.text.markup.scanner import MAX_DEPTH, MAX_XML_TAG, scan
from jumok_serve.text.placeholders import PlaceholderReader
from jumok_serve.translator import Translator
from tests.support.growth import calls_made, lines_run
from tests.support.hang import HANG_S


def shown(block: Block) -> str:
    """Write a block as text with its tags at their places."""
    found: list[str] = []

    def add(spans: list[Span], start: int, end: int) -> None:
        for span in spans:
            found.append(block.text[start : span.start])
            found.append(span.opening)
            add(span.children, span.start, span.end)
            found.append(span.closing)
            start = span.end
        found.append(block.text[start:end])

    add(block.spans, 0, len(block.text))
    return "".join(found)


def blocks(document: Document) -> list[str]:
    return [shown(block) for block in document.blocks]


def test_a_piece_is_escaped_in_one_call() -> None:
    def calls(entities: int) -> int:
        (block,) = parse("word " + "".join(f"&#{500 + number};" for number in range(entities)), "html").blocks
        return calls_made(lambda: block.escape("a & \u01f4")) + lines_run(lambda: block.escape("a & \u01f4"))

    assert calls(2000) == calls(2)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<p>One <b>big</b> cat.</p><p>Two</p>", ["One <b>big</b> cat.", "Two"]),
        ("<ul><li>One<li>Two</ul>three", ["One", "Two", "three"]),
        ("one<br>two<hr/>three", ["one", "two", "three"]),
        ("<td>  one \n two  </td>", ["one two"]),
        # Elements around blocks are structure.
        ("<a href='x'><div>One</div> two</a>", ["One", "two"]),
        # Not translated: comments, scripts, code; short code is read with its sentence.
        ("<script>if (a<b) x('</p>')</script>One<!-- <b> two -->", ["One<!-- <b> two -->"]),
        ("Call <code>f(x)</code> now", ["Call <code>f(x)</code> now"]),
        ("<pre>one\n two</pre>three<style>b {}</style>", ["three"]),
        (KEPT := 'One <span translate="no">Two</span> <i TRANSLATE=no>x</i> three', [KEPT]),
        ("<p translate=no>One <b>two</b></p>three", ["three"]),
        ('<b title="translate=no">One</b>', ['<b title="translate=no">One</b>']),
        *((text, [text]) for text in ("One <code><b></code>", "One <code></b><i></code> <b>two</b>")),
        ("<svg><path><g></svg>One", ["<svg><path><g></svg>One"]),
        ("<b>One <u class=notranslate><i></u> two</i></b>", ["<b>One <u class=notranslate><i></u> two</i></b>"]),
        # Attributes as they are written, with any character.
        ("<a b='<i>' c=\"</a>\" d=x>y</a>", ["<a b='<i>' c=\"</a>\" d=x>y</a>"]),
        # Unclosed and crossed tags are mended; each tag stays once.
        ("<b>one <i>two</b> three</i>", ["<b>one <i>two</i></b> three"]),
        ("<b>one <i>two", ["<b>one <i>two</i></b>"]),
        ("one</b> two", ["one</b> two"]),
        ("1 < 2 & <3", ["1 < 2 & <3"]),
        ("<!--one", ["<!--one"]),
        # Google's class, and parts that are translated inside of others.
        (KEPT := 'One <span class="a notranslate">Two</span> three', [KEPT]),
        ("<div translate=no><p>One</p><p translate=yes>Two</p></div> three", ["Two", "three"]),
        ('<p translate="no">One <b translate="yes">two <i>a</i></b> three</p>', ["two <i>a</i>"]),
        ("One <b translate=no>m<sup>2</sup> <i translate=yes>two</i></b> three", ["One", "two", "three"]),
        ("<code translate=yes>one</code>", ["<code translate=yes>one</code>"]),
        (
            '<b class="notranslated" title="notranslate">One</b>',
            ['<b class="notranslated" title="notranslate">One</b>'],
        ),
        # Space before the last element.
        *((text, [text]) for text in ("One <img src=x>", "One <b>two <img></b>", "One <i><img></i>", "One <img> ")),
        ("<b>One<br>two</b> three", ["One", "two", "three"]),
        ("a <![if !IE]>b<![endif]> c", ["a <![if !IE]>b<![endif]> c"]),
    ],
)
def test_html_is_blocks_of_text_with_tags(text: str, wanted: list[str]) -> None:
    assert blocks(parse(text, "html")) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("H<sub>2</sub>O is wet", "H2O is wet"),
        (
            "10 m<sup>2</sup>, C<sub>6</sub>H<sub>12</sub>O<sub>6</sub> and CO<sub>2</sub>\ub294",
            "10 m2, C6H12O6 and CO2\ub294",
        ),
        ("<sup>14</sup>C or <sup>1</sup>University", "14C or University"),
        ("A word<sup>1</sup>, an end.<sup>[<a href=x>2</a>]</sup>", "A word, an end."),
        ("A <b>dog</b><sup>1</sup><sup>,2</sup> runs<sup>TM</sup>", "A dog runs"),
        ("In 2019<sup>1</sup> it is<sup>2</sup>.", "In 2019 it is."),
        ("a h<sub>1</sub> <sup>b</sup> c", "a h1 b c"),
        ("One <p translate=no>m<sup>2</sup></p>", "One"),
        ("<ruby>one<rp>(</rp><rt>wan</rt><rp>)</rp></ruby> two", "one two"),
    ],
)
def test_the_model_reads_formulas_as_they_are_and_no_notes(
    text: str, wanted: str, monkeypatch: pytest.MonkeyPatch, translator: Translator
) -> None:
    reader = PlaceholderReader(None, StandIns(translator.tokenizer, lambda text: [1]))
    monkeypatch.setattr(reader.stand_ins, "reads", lambda text: True)
    assert [block.text for block in parse(text, "html", reader=reader).blocks] == [wanted]
    assert blocks(parse(text, "html"))[0] in text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<doc><p>One <b>two</b>.</p><p>Three</p></doc>", ["One <b>two</b>.", "Three"]),
        ("One <x/> two", ["One <x/> two"]),
        ("<r><![CDATA[One <b> & two]]></r>", ["One <b> & two"]),
        ('<?xml version="1.0"?><!DOCTYPE r [<!ELEMENT r ANY>]><r>One<?go on?></r>', ["One<?go on?>"]),
        ("<r>A &own; b</r>", ["A &own; b"]),
    ],
)
def test_xml_is_blocks_where_elements_have_no_text_beside_them(text: str, wanted: list[str]) -> None:
    assert blocks(parse(text, "xml")) == wanted


def test_rules_change_elements() -> None:
    rules = MarkupRules(ignore_tags=("Em",), non_splitting_tags=("li",), splitting_tags=("x",))
    text = "<ul>a<li>b</li></ul> c <x>d</x> e <em>f</em>"
    assert blocks(parse(text, "html", rules)) == ["a<li>b</li>", "c", "d", "e <em>f</em>"]
    assert parse("e <em>f <b>g</b></em>", "html", rules).blocks[0].text == "e"
    assert blocks(parse("<r>a <b>c</b></r>", "xml", MarkupRules(splitting_tags=("b",)))) == ["a", "c"]


def test_entities_are_characters_and_come_back() -> None:
    (block,) = parse("A&nbsp;&copy; &amp; &lt;b&gt; &#8364; <i>&quot;x&quot;</i>", "html").blocks
    assert block.text == 'A\xa0© & <b> € "x"'
    assert block.escape(block.text) == "A&nbsp;&copy; &amp; &lt;b&gt; &#8364; &quot;x&quot;"
    assert block.escape("a < b") == "a &lt; b"


def test_no_entity_is_expanded_and_nothing_loaded() -> None:
    (block,) = parse('<!DOCTYPE l SYSTEM "file:///etc/passwd"><l>A &b; &x; z</l>', "xml").blocks
    assert block.text == "A z"
    assert [span.opening.strip() for span in block.spans] == ["&b;", "&x;"]


CHAIN = "".join(f"<!ENTITY a{number} '&a{number + 1};'>" for number in range(60_000))
ATTRIBUTES = [f"a{number} CDATA #IMPLIED" for number in range(50_000)]


@pytest.mark.parametrize(
    ("doctype", "declared", "line"),
    [
        ('l [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]', r"the entity 'a' \(<!ENTITY\)", 1),
        ('l [<!ENTITY x SYSTEM "file:///etc/passwd">]', "the entity 'x'", 1),
        ("l [\n<!ENTITY\n % p \"<!ENTITY a 'b'>\">\n %p;\n]", "the entity 'p'", 2),
        ('l [<!-- ]> --><?p ]> ?><!ELEMENT l ANY>\n\n<!ATTLIST l a CDATA "b">]', r"attributes of 'l' \(<!ATTLIST\)", 3),
        ('l [<!-- b --><!ENTITY a "b"><!-- c -->]', "the entity 'a'", 1),
        ('l [<?b?><!ENTITY a "b"><?c?>]', "the entity 'a'", 1),
        ("l [<!NOTATION n SYSTEM 'b'><!ENTITY a 'b'><!NOTATION n SYSTEM 'c'>]", "the entity 'a'", 1),
        ('l SYSTEM "a>b[" [<!ENTITY a "b">]', "the entity 'a'", 1),
        ("l PUBLIC '>' '\">' [<!NOTATION n PUBLIC '>'><!ENTITY a 'b'>]", "the entity 'a'", 1),
        (f"l [{CHAIN}]", "the entity 'a0'", 1),
        (f'l [<!ENTITY a "{"b" * 3_000_000}">]', "the entity 'a'", 1),
        (f'l [<!--{"-" * 300_000}--><!ENTITY a "b">]', "the entity 'a'", 1),
        (f"l [<!ATTLIST l {' '.join(ATTRIBUTES)}>]", "attributes of 'l'", 1),
    ],
)
@pytest.mark.parametrize("before", ["", "<?xml version='1.0'?><!-- <!DOCTYPE a> -->"])
def test_declared_entities_and_attributes_are_refused_by_name(
    before: str, doctype: str, declared: str, line: int
) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"the text declares .*{declared}.* in line {line}; remove"):
        parse(f"{before}<!DOCTYPE {doctype}><l a='&a0;'>A &a; z</l>", "xml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!DOCTYPE l [%p;]><l>a</l>", "no declaration as '<!DOCTYPE'"),
        ("<!DOCTYPE l [<![INCLUDE[<!ELEMENT l ANY>]]>]><l>a</l>", "no declaration as '<!DOCTYPE'"),
        ("<l><!ENTITY a 'b'>a</l>", "no declaration as '<!ENTITY '"),
        ("<l><!DOCTYPE l>a</l>", "not well-formed XML"),
        ("<l>" * (MAX_DEPTH + 1) + "a", f"has more than {MAX_DEPTH} elements within each other in line 1; nest fewer"),
        ("\n<l a='" + "b" * MAX_XML_TAG + "'>a</l>", f"a tag of more than {MAX_XML_TAG} characters in line 2"),
        ("<l a='" * 200_000, f"a tag of more than {MAX_XML_TAG} characters"),
        ("<l>a<", "not well-formed XML"),
        ("<l>a<l <l <l", "not well-formed XML"),
        ("<l>a<!-- b", "not well-formed XML: unclosed token"),
        ("<l>a<![CDATA[ b", "not well-formed XML"),
        *(
            (text, "not well-formed XML: .* in line 1")
            for text in ("<a>", "<a></b>", "<a b=c/>", "a & b", "<a b='<'/>", "</a>", "\x02")
        ),
    ],
)
def test_what_the_parser_does_not_take_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse(text, "xml")


def test_the_parser_sees_no_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = bytearray()
    make = expat.ParserCreate

    class Parser:
        def __init__(self, encoding: str) -> None:
            self._parser = make(encoding)

        def Parse(self, part: bytes, final: bool) -> None:
            seen.extend(part)
            self._parser.Parse(part, final)

        def UseForeignDTD(self, use: bool) -> None:
            self._parser.UseForeignDTD(use)

    monkeypatch.setattr(expat, "ParserCreate", Parser)
    for declaration in ("<!ENTITY a 'b'>", "<!ATTLIST l a CDATA 'b'>", "%a;", "<![IGNORE[]]>"):
        with pytest.raises(InvalidArgumentError):
            parse(f"<!DOCTYPE l [<!ELEMENT l ANY>{declaration}]><l/>", "xml")
    assert b"<!" not in seen
    parse("<!DOCTYPE l [<!ELEMENT l ANY>]><l>a &b;</l>", "xml")
    assert seen.endswith(b"<!DOCTYPE l [<!ELEMENT l ANY>]><l>a &b;</l>")


def test_deep_and_wide_elements_are_parsed() -> None:
    deep = "<l>" * MAX_DEPTH + "a" + "</l>" * MAX_DEPTH
    assert "a" in parse(deep, "xml").written(shown)
    attributes = " ".join(f"a{number}='b'" for number in range(20_000))
    wide = f"<l {attributes}>a</l>"
    assert parse(wide, "xml").written(shown) == wide


def test_tags_without_an_end_are_read_again_a_bounded_number_of_times() -> None:
    text = "<a c='>' x x x x " * 10_000
    assert "".join(token.written for token in scan(text, html=True)) == text
    tag = "<b d='>'>"
    assert [token.written for token in scan(tag, html=True)] == [tag]
    assert [token.written for token in scan(text + tag, html=True)][-2:] == ["<b d='>", "'>"]


def test_ignored_content_of_long_entities_is_kept() -> None:
    text = f"one <code>&#{'1' * 5_000};</code> two"
    assert blocks(parse(text, "html")) == [text]


FRAGMENTS = (
    *("<p>", "</p>", "<b>", "</b>", "<i>", "</i>", "<br>", "<img src='a>b'>", "<li>", "<code>", "</code>", ">"),
    *("one", " ", "two three.", "&amp;", "&nbsp;", "&", "<", "</", "<!-- c -->", "<!--", "<script>", "</script>", "'"),
    *('"', '<a b="', "\n", "<x/>", "<?p?>", "<![CDATA[", "]]>", "<span translate=no>", "</span>", "=", "/"),
    *("<sup>", "</sup>", "m<sup>2</sup>", "<i translate=yes>", "<b class=notranslate>", "<rt>", "</rt>"),
)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
@settings(max_examples=150, deadline=None)
@example("<one<p>")
def test_any_html_is_parsed_and_nothing_is_lost(text: str) -> None:
    assert "".join(token.written for token in scan(text, html=True)) == text
    document = parse(text, "html")
    written = document.written(shown)
    # Only white space and the place of end tags may differ. A name as in `<one<p>` is in the end tag too.
    named = re.findall("<one[^ \n/>]*", text)
    for fragment in ("one", "three", "<img", "<br>", "<x/>", "<p>", "<b>", "<li>"):
        assert written.count(fragment) - text.count(fragment) <= sum(f"{name}>".count(fragment) for name in named)
        assert written.count(fragment) >= text.count(fragment)


@given(st.recursive(st.sampled_from(["one", "two &amp; three"]), lambda inner: st.lists(inner, max_size=4)))
@settings(max_examples=60, deadline=None)
def test_well_formed_html_has_the_tree_that_lxml_reads(tree: object) -> None:
    names = ["b", "i", "span", "em"]

    def write(node: object, depth: int) -> str:
        if isinstance(node, list):
            return "".join(f"<{names[depth % 4]}>{write(one, depth + 1)}</{names[depth % 4]}> " for one in node)
        return str(node)

    text = f"<div>{write(tree, 0)}</div>"
    written = parse(text, "html").written(lambda block: block.escape("") + shown(block).replace("& ", "&amp; "))
    mine, others = lxml.html.fragment_fromstring(written), lxml.html.fragment_fromstring(text)
    assert [element.tag for element in mine.iter()] == [element.tag for element in others.iter()]
    assert mine.text_content().split() == others.text_content().split()


HOSTILE = {
    "nested": "<b>x " * 10_000 + "</b>" * 10_000,
    "nested around one word": "<b>" * 10_000 + "x" + "</b>" * 10_000,
    "formulas": "H<sub>2</sub>" * 20_000,
    "scripts in scripts": "x" + "<sup>" * 20_000 + "1" + "</sup>" * 20_000,
    "parts translated and not": "<p translate=no>a<p translate=yes>b" * 5_000 + "</p>" * 10_000,
    "nested blocks": "<div>" * 10_000 + "x" + "</div>" * 10_000,
    "crossed": "<b>a<i>b</b>c</i>" * 10_000,
    "unclosed": "<p><b>x" * 10_000,
    "unclosed tag": "<a " * 40_000,
    "unclosed values": "<a b=\"'>" * 30_000,
    "values with tags": "<a c='>' x x x x " * 10_000,
    "comments": "<!--" * 20_000,
    "scripts": "<script>" * 20_000,
    "ampersands": "&" * 40_000,
    "less than": "<" * 40_000,
    "ends": "</b>" * 20_000,
    "white space": " \n" * 40_000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["html", "xml"])
def test_hostile_markup_is_parsed_or_refused(name: str, kind: MarkupKind) -> None:
    started = time.thread_time()
    try:
        parse(HOSTILE[name], kind)
    except InvalidArgumentError:
        assert kind == "xml"
    assert time.thread_time() - started < HANG_S


@pytest.mark.parametrize(
    "text",
    [
        f'<a b="{"x" * 5000}/>">one</a>',
        f'<p a="{"x" * 5000}>"/><b>one</b>',
        '<!DOCTYPE x SYSTEM "]></a><b>[" [<!NOTATION n SYSTEM "]></a><b>">]><x>one</x>',
    ],
)
def test_tags_within_quotation_marks_are_no_tags(text: str) -> None:
    document = parse(text, "xml")
    assert document.written(shown) == text
    assert "one" in blocks(document)[-1]


def test_parts_that_are_translated_inside_of_others_in_xml() -> None:
    text = "<r translate='no'>One <a><![CDATA[two]]></a><b translate='yes'>three <![CDATA[four]]></b></r>"
    assert blocks(parse(text, "xml")) == ["three", "four"]
    assert parse(text, "xml").written(shown) == text
