"""HTML: blocks are texts, with their inline tags; all else stays, in time proportional to the file."""

import random
from contextlib import nullcontext

import html5lib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jumok_serve.text.files.document import Text
from jumok_serve.text.markup.parser import parse
from jumok_serve.text.markup.scanner import scan
from jumok_serve.text.markup.structure import mend
from tests.serve.text.markup.test_made_documents import documents, translated
from tests.support.files import made, read_file, rewritten, texts
from tests.support.refusals import refused

PAGE = """<!DOCTYPE html>
<html><head><title>Two dogs</title><style>p { a: b }</style></head>
<body><p>A <b>brown</b> dog <code>runs</code>.<br>Here &amp; there.</p>
<pre>code</pre><script>if (a < b) {}</script>
<div translate=no><p>No</p></div>
<ul><li> One <li>Two <i>women</ul></i>
<!-- a comment --><p>12</p>
</body></html>
"""
PARTS = (
    *("<p>", "</p>", "<b>", "</b>", "<i>", "</i>", "<br>", "<img src='a>b'>", "<li>", "<code>", "</code>", ">", "<ul>"),
    *("<b class=notranslate>", "<i translate=yes>", "x<sup>2</sup>", "<sub>", "</sub>"),
    *("one", " ", "two.", "&amp;", "&", "<", "</", "<!-- c -->", "<script>", "</script>", "\n", "<div translate=no>"),
)


@given(st.lists(st.sampled_from(PARTS), max_size=30).map("".join))
@made
def test_nothing_changes_without_a_change(content: str) -> None:
    assert rewritten(content, "html") == content


@given(st.lists(st.sampled_from(PARTS), max_size=30).map("".join))
@made
def test_texts_have_no_blocks_and_no_tag_without_a_partner(content: str) -> None:
    for text in texts(content, "html"):
        parsed = parse(text.content, "html")
        assert parsed.written(lambda block: block.text) or parsed.blocks
        assert len([block for block in parsed.blocks if block.text]) <= 1 or "translate" in text.content
        assert "".join(token.written for token in mend(list(scan(text.content, html=True)))) == text.content


def test_texts_of_a_page() -> None:
    assert [(text.content, text.line) for text in texts(PAGE, "html")] == [
        ("Two dogs", 2),
        ("A <b>brown</b> dog <code>runs</code>.", 3),
        ("Here &amp; there.", 3),
        ("One", 6),
        ("Two", 6),
        ("women", 6),
    ]


PAGES = {
    "unclosed": "<!DOCTYPE html><title>A dog</title><p>One<p>Two <b>three<ul><li>Four<li>Five</ul><dl><dt>A<dd>B</dl>",
    "crossed": "<p><b>One <i>two</b> three</i> four</p>",
    "scripts": '<script type="text/template"><p>No {{a}}</p></script><p>Yes <script>var a="</p>";</script> two</p>',
    "conditional": "<!--[if lt IE 9]><p>Old</p><![endif]--><![if !IE]><p>New <i>one</i></p><![endif]>",
    "ruby": "<p><ruby>One<rp>(</rp><rt>a</rt><rp>)</rp>two<rp>(</rp><rt>b</rt><rp>)</rp></ruby> is a word</p>",
    "breaks": "<p>super<wbr>cali&shy;fragi <b>x&nbsp;!</b>&nbsp;? <i>&laquo;&nbsp;oui</i><br><u>a<br>b</u></p>",
    "custom": (
        "<my-app><my-head>A title</my-head><p>Text <my-icon a=b></my-icon> more</p>"
        "<x-row><x-cell>One</x-cell><x-cell>Two</x-cell></x-row></my-app>"
    ),
    "drawing": "<p>Text <svg><title>No</title><text x=1>No</text><path d=M0></svg> after</p>",
    "formula": "<p>Let <math><mi>x</mi><mo>=</mo><mn>1</mn></math> be one</p>",
    "frames": "<title>F</title><frameset cols=1,2><frame src=a><noframes>None</noframes></frameset>",
    "table": "<table><caption>A</caption><thead><tr><th>B<th>C<tbody><tr><td>One two<td><a href=x>Three</a></table>",
    "form": (
        '<form><label>A <input name=n placeholder="No"></label><select><option>One<option selected>Two</select>'
        "<textarea>No</textarea><button>Send <i class=i></i></button></form>"
    ),
    "attributes": '<p data-a=\'{"b":"<i>"}\' c="a>b">One <a href="javascript:a(\'<b>\')" onclick="x>1">two</a> '
    '<img alt="a > b" src=x></p>',
    "media": "<p>A <picture><source srcset=a><img src=b></picture> B <video><source src=v>No video</video></p>",
    "entities": "<p>R&D &copy 2020 &amp;amp; &notit; &#8364; &#x20AC; A&B; 5 &lt; 6 < 7</p>",
    "letter": "<center><font>Ann <b>B</b>,<br><br>Your <a href='x?a=1&b=2'>#1</a> is <u>ready</u></font></center>",
    "encyclopedia": (
        '<p>The <b>dog</b> (<i>Canis</i><sup id="a"><a href="#b"><span>&#91;</span>1<span>&#93;</span></a></sup>) an '
        '<a href="/c">animal</a>.<sup>[<i><a href="d"><span title="e">citation needed</span></a></i>]</sup> Two</p>'
    ),
    "lists": "<ol start=3><li><p>One</p><li>Two<ol><li>Three</ol>four</ol><details><summary><b>b</b>",
    "directions": "<P dir=rtl>\u05e9\u05dc\u05d5\u05dd <BDI>User</BDI> <bdo dir=ltr>abc</bdo><BR>Ctrl+<kbd>C</kbd>.",
    "raw": "<p>One<pre>code <b>bold</b></pre>two <xmp><p>raw</xmp> three <iframe>No</iframe> <plaintext>all <p>rest",
}


def elements(text: str) -> list[tuple[str, str]]:
    """All elements of a page with their attributes, and comments, as a browser reads them."""
    page = html5lib.parse(text, namespaceHTMLElements=False)
    return sorted(
        (str(one.tag), str(sorted(one.attrib.items()) or (callable(one.tag) and one.text))) for one in page.iter()
    )


@given(documents("html"), st.integers(0, 10**6))
@made
def test_made_pages_keep_their_elements(content: str, seed: int) -> None:
    page, chosen = f"<!DOCTYPE html><title>A dog</title><body>{content}", random.Random(seed)
    assert rewritten(page, "html") == page

    def translate(text: str) -> str:
        return parse(text, "html").written(lambda block: translated(block, chosen, all_words=True))

    assert elements(rewritten(page, "html", translate)) == elements(page)


@pytest.mark.parametrize("name", PAGES)
def test_a_browser_reads_the_same_elements_from_a_translated_page(name: str) -> None:
    page = PAGES[name]
    assert rewritten(page, "html") == page
    for seed in range(10):
        chosen = random.Random(seed)

        def translate(text: str, chosen: random.Random = chosen) -> str:
            return parse(text, "html").written(lambda block: translated(block, chosen, all_words=True))

        assert elements(rewritten(page, "html", translate)) == elements(page)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ('<head>\n<meta charset="ISO-8859-1">', "line 2: convert it from ISO-8859-1 to UTF-8"),
        (
            "<META http-equiv=Content-Type content='text/html; charset=us-ascii'>",
            "line 1: convert it from us-ascii to UTF-8",
        ),
        ('<meta charset="utf-8"><meta name=a content="charset=latin1">', ""),
        ('<?xml version="1.0"?><html><meta charset="latin1"/>', ""),
        ("<meta http-equiv=Content-Type content='text/html; charset = UTF8'>", ""),
    ],
)
def test_pages_of_another_charset_are_refused(page: str, message: str) -> None:
    with refused("file", message) if message else nullcontext():
        assert rewritten(page, "html") == page


def test_texts_of_custom_elements_are_apart() -> None:
    assert [text.content for text in texts(PAGES["custom"], "html")][-2:] == ["One", "Two"]
    inline = "<p>See <my-a>one</my-a></p><p><my-a>Two</my-a> is <my-b></my-b><my-b></my-b> here</p>"
    assert [text.content.startswith("<my-a>Two</my-a> is") for text in texts(inline, "html")] == [False, True]


@pytest.mark.slow
def test_a_page_of_five_megabytes() -> None:
    content = f"<p>{'A man with a brown dog is standing in front of a house. ' * 6}<b>Two</b> women.</p>\n" * 14_000
    assert len(content) > 5_000_000
    document = read_file(content.encode(), "page.html", "")
    assert document.count == 14_000
    assert "".join(piece.written if isinstance(piece, Text) else str(piece) for piece in document.pieces()) == content
