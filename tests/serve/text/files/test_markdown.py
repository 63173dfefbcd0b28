"""Markdown: texts are translated with their marks, and blocks stay as they are."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jumok_serve.text.files.document import MAX_READ
from jumok_serve.text.files.markdown import Inline
from tests.support.files import made, rewritten, texts
from tests.support.growth import assert_linear

PAGE = """---
title: Two dogs
---
# A **brown** dog #

Two women
are [talking](https://a.org "title") of `code`.  
A new line.

- One item
  goes on
- [x] Two `items`

    a paragraph of an item

> A quote

```sh
no text
```

    no text

| A head | 12 |
| --- | :-: |
| a cell | a \\| b |

<div>
no text
</div>

Title
=====

***
[1]: https://a.org
![a picture](b.png) and <https://a.org>
"""
PARTS = (
    *("a dog", "**two** women", "*a", "b*", "_c_ d_e", "`code`", "[a](b)", "![a](b)", "<b>", "&amp;", "&", "*", "***"),
    *("# ", "- ", "1. ", "> ", "```", "    ", "| a | b |", "| --- | --- |", "<div>", "---", "===", "[1]: a", "\t"),
    *("", "\\*", " ", "  ", "\\", "~~x~~", "<!-- c -->", "12", "<", "__a__", "[a][b]"),
)
LINES = st.lists(st.sampled_from(PARTS), max_size=4).map("".join)
FILES = st.builds(lambda lines, end: end.join(lines), st.lists(LINES, max_size=8), st.sampled_from(["\n", "\r\n"]))


@given(FILES)
@made
def test_nothing_changes_without_a_change(content: str) -> None:
    assert rewritten(content, "markdown") == content


@given(FILES)
@made
def test_translated_texts_are_as_many_and_have_the_same_marks(content: str) -> None:
    found = texts(content, "markdown")
    written = rewritten(content, "markdown", lambda text: re.sub(r"(?<![<&/\w])[a-z]+(?![^<]*>)(?!\w*;)", "wort", text))
    again = texts(written, "markdown")
    assert len(again) == len(found)
    assert [re.findall(r"<[^>]*>", text.content) for text in again] == [
        re.findall(r"<[^>]*>", text.content) for text in found
    ]


def test_texts_of_a_page() -> None:
    assert [(text.content, text.line) for text in texts(PAGE, "markdown")] == [
        ("A <m0>brown</m0> dog", 4),
        ('Two women are <m0>talking</m0> of <m1 translate="no">code</m1>.', 6),
        ("A new line.", 8),
        ("One item goes on", 10),
        ('Two <m0 translate="no">items</m0>', 12),
        ("a paragraph of an item", 14),
        ("A quote", 16),
        ("A head", 24),
        ("a cell", 26),
        ("a | b", 26),
        ("Title", 32),
        ("<m0/> and <m1/>", 37),
    ]
    written = rewritten(PAGE, "markdown", lambda text: text.replace("a", "o"))
    assert '\nTwo women ore [tolking](https://a.org "title") of `code`.  \nA new line.\n' in written
    assert "\n| o cell | o \\| b |\n" in written
    assert "# A **brown** dog #\n" in written


@pytest.mark.parametrize(
    ("written", "markup"),
    [
        ("2 * 3 * 4", "2 * 3 * 4"),
        ("snake_case_name and _em_", "snake_case_name and <m0>em</m0>"),
        ("**a *b* c**", "<m1>a <m0>b</m0> c</m1>"),
        ("a [b *c* d](e) f", "a <m1>b <m0>c</m0> d</m1> f"),
        ("AT&T &nbsp; <x", "AT&amp;T &nbsp; &lt;x"),
        (r"a \&amp; \&#65; b", "a &amp;amp; &amp;#65; b"),
        ("``a`b``", "``a`b``"),
        ("*not closed", "*not closed"),
        ("a <br> b", "a <m0/> b"),
    ],
)
def test_inline_marks(written: str, markup: str) -> None:
    inline = Inline(written)
    assert inline.markup == markup
    assert re.sub(r"\\([*<`])", r"\1", inline.write(markup)) == written


@pytest.mark.parametrize("content", ["| a | b |\na dog\n| --- | --- |", "a | b\ndog\n| --- | --- |\n"])
def test_paragraphs_before_dashes_do_not_become_tables(content: str) -> None:
    found = texts(content, "markdown")
    again = texts(rewritten(content, "markdown", str.upper), "markdown")
    assert [text.content.upper() for text in found] == [text.content for text in again]


def test_translations_begin_no_block() -> None:
    for text, expected in (("- a", "\\- a"), ("1. a", "1\\. a"), ("# a", "\\# a"), ("1.5 a", "1.5 a"), ("-a", "-a")):
        assert rewritten("word\n", "markdown", {"word": text}.__getitem__) == f"{expected}\n"
    assert rewritten("| a |\n| - |\n", "markdown", lambda _: "b | c") == "| b \\| c |\n| - |\n"


@pytest.mark.parametrize("unit", ["_a__", "**a*", "[_a", "~~a", "<!--", "`a", "[a](", "![", '(a "', "&#", "<a"])
def test_time_grows_in_proportion_to_a_text(unit: str) -> None:
    assert_linear(lambda length: (unit * length)[:length], Inline)


def test_a_comment_ends_at_its_first_end() -> None:
    assert Inline("a <!-- b <!-- c --> d --> e").text == "a  d --> e"
    assert Inline("a <!--> b <!-- c").text == "a <!--> b <!-- c"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Look: ![x](data:image/png;base64,", ") a dog."),
        ('Look: <img src="', '"> a dog.'),
        ("Look: <!-- ", " --> a dog."),
    ],
)
def test_a_text_with_a_large_picture_is_translated(before: str, after: str) -> None:
    content = f"{before}{'iVBORw0K' * (3 * 2**16)}{after}\n"
    (text,) = texts(content, "markdown")
    assert text.content == "Look: <m0/> a dog."
    assert rewritten(content, "markdown", lambda text: text.replace("dog", "cat")) == content.replace("dog", "cat")


@pytest.mark.parametrize(
    ("unit", "size"),
    [("a* *", 2**21), ("a ", 2**21), ("a`b`", 2**21), ("*a* ", 99_996)],
    ids=["marks", "words", "code", "short"],
)
def test_a_text_far_too_long_stays(unit: str, size: int) -> None:
    """Its length is that of its HTML."""
    content = unit * (size // len(unit))
    (text,) = texts(content, "markdown")
    assert len(text.content) > MAX_READ
    assert rewritten(content, "markdown", lambda text: f"{text}!").strip() == content.strip()


@pytest.mark.parametrize(
    ("line", "text", "written"),
    [
        ("**Bold** x", "<m0>Bold</m0> x", "**BOLD** X"),
        ("-5 degrees", "-5 degrees", "-5 DEGREES"),
        ("12 apples", "12 apples", "12 APPLES"),
        ("#hashtag", "#hashtag", "#HASHTAG"),
        ("> - 12 apples", "12 apples", "> - 12 APPLES"),
        ("- [y] apples", "[y] apples", "- \\[Y\\] APPLES"),
        ("1234567890. a", "1234567890. a", "1234567890. A"),
        ("--x", "--x", "--X"),
    ],
)
def test_first_characters_that_are_no_marks_are_kept(line: str, text: str, written: str) -> None:
    assert [one.content for one in texts(line, "markdown")] == [text]
    upper = rewritten(line, "markdown", lambda found: re.sub(r"[a-z]+(?![^<]*>)", lambda word: word[0].upper(), found))
    assert upper == written


@pytest.mark.parametrize("line", ["|-", "-|-", "| :-: | --- |  \r", "> |-|", "-|", "-| -"])
def test_lines_below_the_head_of_a_table(line: str) -> None:
    content = f"a | b\n{line}\nc | d\n"
    assert rewritten(content, "markdown", str.upper) == f"A | B\n{line}\nC | D\n"


@pytest.mark.parametrize("line", ["x||", "x-||", "|-|-x", "|-x|-", "-|x", "|-:-|x", "|:x"])
def test_lines_that_make_no_table(line: str) -> None:
    assert any("x" in text.content for text in texts(f"a | b\n{line}\n", "markdown"))
