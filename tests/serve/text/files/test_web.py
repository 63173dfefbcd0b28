"""HTML: blocks are texts, with their inline tags; all else stays, in time proportional to the file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jumok_serve.text.files.document import Text
from jumok_serve.text.markup.parser import parse
from tests.support.files import made, read_file, rewritten, texts

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


def test_texts_of_a_page() -> None:
    assert [(text.content, text.line) for text in texts(PAGE, "html")] == [
        ("Two dogs", 2),
        ("A <b>brown</b> dog <code>runs</code>.", 3),
        ("Here &amp; there.", 3),
        ("One", 6),
        ("Two", 6),
        ("women", 6),
    ]


@pytest.mark.slow
def test_a_page_of_five_megabytes() -> None:
    content = f"<p>{'A man with a brown dog is standing in front of a house. ' * 6}<b>Two</b> women.</p>\n" * 14_000
    assert len(content) > 5_000_000
    document = read_file(content.encode(), "page.html", "")
    assert document.count == 14_000
    assert "".join(piece.written if isinstance(piece, Text) else str(piece) for piece in document.pieces()) == content
