"""Strings of catalogues: their HTML, and strings that are no language."""

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jumok_serve.tasks.word_alignment import Pair, words
from jumok_serve.text.markup.parser import Block, parse
from jumok_serve.text.markup.placing import write_block
from jumok_serve.text.markup.strings import RULES, Markup, hole, is_code, mark, tag
from tests.support.files import made

CODE = (
    "%1$s|{{count}}|{0} / {1}|%s: %lld|%Y-%m-%d %H:%M|%05d|%{name}|${x}|%(n)d|#fff|https://a.b|a_b|com.a.b|img/a.png"
    "|#|1.0.2-beta|12px|@string/x|@android:string/ok|a@b.de|2024-01-01T00:00:00Z|#{x}|{{ user.name }}|btn_save_2|%d%%"
)
LANGUAGE = (
    "OK|Save|A dog|Save 50% a|covid-19|e-mail|3D|%d dogs|{n} dogs|{ a dog {0}|Wi-Fi|C#|and/or|iPhone|10 km|한국어|%d개"
    "|Yes/No|1st|2x faster|Note: x|4K|{a}b|e.g.|A/B|U.S.|https://a.b/에서|100% a"
)


@pytest.mark.parametrize("text", CODE.split("|"))
def test_strings_that_are_no_language(text: str) -> None:
    assert is_code(text)


@pytest.mark.parametrize("text", LANGUAGE.split("|"))
def test_strings_that_are_language(text: str) -> None:
    assert not is_code(text)


@pytest.mark.parametrize(
    "part", ["${x}", "a_", "%", "%0", "{", "{a,", "a.", "1.", "/a", "@a/", "%05d", "#", "$", "a@b."]
)
def test_long_strings_take_little_time(part: str) -> None:
    text = (part * 500)[:499]
    began = time.thread_time()
    for end in ("!\u3042", "", " x"):
        is_code(text + end)
        is_code("data:" + part * 100_000 + end)
    assert time.thread_time() - began < 2


TAGS = ["<b>", "</b>", "<i>", "<br/>", "<1>", "</1>", "<2/>", '<a href="x">', "</a>", "<Enter>", "<!-- c -->", "<p>"]
PARTS = st.sampled_from(["a", "dog ", "&amp;", "&", " ", "\n", "\t", "<", ">", "{x}", "$t(y)", "\xa0", "&lt;", *TAGS])


@given(st.lists(PARTS, max_size=10).map("".join), st.booleans())
@example("<br/><a\n", False)
@example("<b>a</b> <c\n <d>", False)
@made
def test_a_string_comes_back_from_its_html(text: str, holes: bool) -> None:
    markup = Markup(text, re.compile(r"\$t\(\w\)") if holes else None)
    assert markup.written(markup.content) == text
    document = parse(markup.content, "html", RULES)
    written = markup.written(document.written(lambda block: block.escape(block.text)))
    assert "jmk-" not in written
    with_tags = markup.written(parse(markup.content, "html", RULES).written(_with_spans))
    assert [with_tags.count(one) for one in TAGS] == [text.count(one) for one in TAGS]
    assert with_tags.count("$t(y)") == text.count("$t(y)")


def _with_spans(block: Block) -> str:
    """Write a block with its own text and all tags, as if it was translated by itself."""
    places = words(block.text)
    aligned = [[Pair(one, one) for one in places]]
    return write_block(block, [(0, len(block.text))], ["", ""], [block.text], aligned)


def test_parts_of_ours() -> None:
    assert mark('<"') == '<jmk-m x="&lt;&quot;"/>'
    assert hole("<g>%s</g>", "%s") == '<jmk-h x="&lt;g&gt;%s&lt;/g&gt;" translate="no">%s</jmk-h>'
    assert tag("&lt;b>", "", "b") + tag("&lt;/b>", "/", "b") == '<jmk-b x="&amp;lt;b&gt;"></jmk-b x="&amp;lt;/b&gt;">'
    assert Markup("<a<1>").written(Markup("<a<1>").content) == "<a<1>"
    assert Markup("").written("a" + hole("<g>%s</g>", "%s") + mark("<i>") + "b") == "a<g>%s</g><i>b"
