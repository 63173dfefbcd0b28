"""Markdown: texts are translated with their marks, and blocks stay as they are."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.service.handlers.file_service import write_texts
from jumok_serve.text.files.document import MAX_READ
from jumok_serve.text.markup.scanner import Kind, scan
from tests.support.files import THOROUGH, made, rewritten, texts
from tests.support.growth import assert_linear
from tests.support.markdown_trees import tree, with_all_words_changed

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
def test_translated_files_have_the_tree_of_the_file(content: str) -> None:
    written = rewritten(content, "markdown", with_all_words_changed)
    assert tree(written) == tree(content)
    assert len(texts(written, "markdown")) == len(texts(content, "markdown"))


@pytest.mark.parametrize("line", ["<!-- c -->a dog", "# a dog", "- a dog", "> a dog", "<div> a dog"])
def test_what_is_behind_a_definition_is_a_paragraph_if_it_is_indented(line: str) -> None:
    content = f"[1]: a\n\t{line}\n"
    written = rewritten(content, "markdown", with_all_words_changed)
    assert written != content
    assert tree(written) == tree(content)


@pytest.mark.parametrize("word", ["~~x~~", "**x**", "[x](y)", "_x_"])
@pytest.mark.parametrize("end", ["\t", " \t "])
def test_white_space_at_the_end_of_a_heading_is_kept(word: str, end: str) -> None:
    content = f"# {word}{end}\n"
    assert rewritten(content, "markdown", with_all_words_changed) == content.replace("x", "말")


def test_labels_without_a_definition_are_kept() -> None:
    (text,) = texts("See [the docs][1] and [more][ref].\n", "markdown")
    assert [one.written for one in scan(text.content, html=True) if one.kind is Kind.TEXT][1::2] == ["[1]", "[ref]"]


def test_the_model_reads_code_as_it_is_written() -> None:
    (text,) = texts("Use `https://a.org/b {{ c }}`", "markdown")
    assert text.content == 'Use <m1 translate="no">https://a.org/b {{ c }}</m1>'


def test_texts_of_a_page() -> None:
    assert [(text.content, text.line) for text in texts(PAGE, "markdown")] == [
        ("A <m1>brown</m1> dog", 4),
        ('Two women are <m3>talking</m3> of <m7 translate="no">code</m7>.<br m9/>A new line.', 6),
        ("One item goes on", 10),
        ('Two <m1 translate="no">items</m1>', 12),
        ("a paragraph of an item", 14),
        ("A quote", 16),
        ("A head", 24),
        ("a cell", 26),
        ("a | b", 26),
        ("no text", 29),
        ("Title", 32),
        ('<m0/> and <m2 translate="no">https://a.org</m2><br i0/>a picture', 37),
    ]
    written = rewritten(PAGE, "markdown", lambda text: text.replace("a", "o"))
    assert '\nTwo women ore [tolking](https://a.org "title") of `code`.  \nA new line.\n' in written
    assert "\n| o cell | o \\| b |\n" in written
    assert "# A **brown** dog #\n" in written


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        # Marks, and what is text beside them.
        ("2 * 3 * four", "2 * 3 * 말"),
        ("snake_case_name and _em_", "말_말_말 말 _말_"),
        ("**a *b* c**", "**말 *말* 말**"),
        (r"***\**a** b", r"\*\*_\**말*_ 말"),
        ("AT&T &nbsp; <x", "말&말 &nbsp; <말"),
        (r"a \* &lt;b> &copy; &amp; \_c", r"말 \* &lt;말> &copy; &amp; \_말"),
        ("a `b c` ``d`e``", "말 `b c` ``d`e``"),
        ("a <br> b <kbd>Ctrl</kbd> <i>c</i>", "말 <br> 말 <kbd>Ctrl</kbd> <i>말</i>"),
        ("a <!-- b --> c", "말 <!-- b --> 말"),
        # Links and pictures.
        ("[a](<b c> 'd') [e](f(g) \"h\") [i](j (k))", "[말](<b c> 'd') [말](f(g) \"h\") [말](j (k))"),
        ("[`a[0]`](b) [a [b] c](d)", "[`a[0]`](b) [말 [말] 말](d)"),
        ("[![a](b)](c) ![d *e*](f)", "[![말](b)](c) ![d *e*](f)"),
        ("<https://a.org> <a@b.org> https://a.org/b_c_d.", "<https://a.org> <a@b.org> https://a.org/b_c_d."),
        ("see [a][b], [b], [b][] and ![b]\n\n[b]: c 'd'", "말 [말][b], [말][b], [말][b] 말 ![말][b]\n\n[b]: c 'd'"),
        ("a[^1]\n\n[^1]: note\n    more", "말[^1]\n\n[^1]: 말 말"),
        ("see [[a page]] and [[b|shown]] ![[c.png]]", "말 [[a page]] 말 [[b|말]] ![[c.png]]"),
        # What the parser does not know.
        ('a :smile: {{ b_c }} {% d *e* f* %} {{< g "h" >}}', '말 :smile: {{ b_c }} {% d *e* f* %} {{< g "h" >}}'),
        (
            "- a https://b.org/c {{ d }}\n- [x] \\* {{ a }} :b:\n",
            "- 말 https://b.org/c {{ d }}\n- [x] \\* {{ a }} :b:\n",
        ),
        ("see ![a {{ b }}](c) ![https://a.org/b](c)", "말 ![a {{ b }}](c) ![https://a.org/b](c)"),
        ("see [a](b){target=_blank} ![c](d){.e}", "말 [말](b){target=_blank} ![말](d){.e}"),
        ("# A {#a .b}\n\nB\n===", "# 말 {#a .b}\n\n말\n==="),
        ("# a\n{: .b }\n\nc\n{:.d}", "# 말\n{: .b }\n\n말\n{:.d}"),
        ("::: note A\nb\n:::\n", "::: note A\n말\n:::\n"),
        ('!!! note "A"\n\n    b\n    c\n\n    - d\n', '!!! note "A"\n\n    말 말\n\n    - 말\n'),
        ('??? "A"\n    a\n\n???+ "B"\n    - a\n', '??? "A"\n    말\n\n???+ "B"\n    - 말\n'),
        ('??? tip\n    a\n\n=== "B"\n\n    c\n', '??? tip\n    말\n\n=== "B"\n\n    말\n'),
        ("> [!TIP]\n> a\n> b\n", "> [!TIP]\n> 말 말\n"),
        ("> [!info]- A\n> b\n", "> [!info]- 말\n> 말\n"),
        ("term\n: means\n: more\n  and more\n", "말\n: 말\n: 말 말 말\n"),
        ("costs $5 or A$6, and $x_1$", "말 $5 말 말$6, 말 $x_1$"),
        ("a\n$$\nb\n$$\nc", "말\n$$\nb\n$$\n말"),
        ("import A from 'b';\n\na\n", "import A from 'b';\n\n말\n"),
        ("a\n\n*[AB]: A b\n*[c]: *d*\n", "말\n\n*[AB]: A b\n*[c]: *d*\n"),
        ("[TOC]\n\na\n", "[TOC]\n\n말\n"),
        ('{{< tab "a" >}}\nb\n{{% /tab %}}\n{% if c %}\nd\n', '{{< tab "a" >}}\n말\n{{% /tab %}}\n{% if c %}\n말\n'),
        # Blocks.
        ("---\na: b\n---\nc\n", "---\na: b\n---\n말\n"),
        ("+++\na = 1\n+++\nc\n", "+++\na = 1\n+++\n말\n"),
        ("---\n\na\n\n---\n", "---\n\n말\n\n---\n"),
        ("2. ```sh\n   a\n   ```\n3. b\n", "2. ```sh\n   a\n   ```\n3. 말\n"),
        ("- a\n\n      code\n\n- [x] b\n  c\n", "- 말\n\n      code\n\n- [x] 말 말\n"),
        ("> a\n> b\nc\n> - d\n", "> 말 말 말\n> - 말\n"),
        ("> a  \n> b\\\n> c\r\n", "> 말  \n> 말\\\n> 말\r\n"),
        ("|a|b|\n|-|-|\n|`c\\|d`|e \\| f|\n", "|말|말|\n|-|-|\n|`c\\|d`|말 \\| 말|\n"),
        ("<p align=center>\n  <b>a</b> c\n</p>\n", "<p align=center>\n  <b>말</b> 말\n</p>\n"),
        ("<details><summary>a</summary>\n\nb\n\n</details>", "<details><summary>말</summary>\n\n말\n\n</details>"),
        ("<!--\na\n\nb -->\nc\n", "<!--\na\n\nb -->\n말\n"),
        ("> <p>\n> a\n> </p>\n", "> <p>\n> a\n> </p>\n"),
    ],
)
def test_what_changes_if_all_words_do(written: str, expected: str) -> None:
    assert rewritten(written, "markdown", with_all_words_changed) == expected


@pytest.mark.parametrize(
    ("translation", "written"),
    [
        ("- a", "\\- a"),
        ("1. a", "1\\. a"),
        ("1.5 a", "1.5 a"),
        ("# a", "\\# a"),
        ("> a", "\\> a"),
        ("-a", "-a"),
        ("==", "=="),
        ("``` a", "\\`\\`\\` a"),
        ("::: a", "\\::: a"),
        ("!!! a", "\\!!! a"),
        (": a", "\\: a"),
        ("[!TIP] a", "\\[!TIP\\] a"),
        ("[a]: b", "\\[a\\]: b"),
        ("2 * 3, snake_case, `, [a] and a &lt; b", "2 * 3, snake_case, `, [a] and a < b"),
        ("a *b* c_d_e", "a \\*b\\* c_d_e"),
        ("&lt;b> &amp;amp; AT&amp;T", "\\<b> \\&amp; AT&T"),
        ("import a from 'b'", r"&#105;mport a from \'b\'"),
        ("a\\", "a\\"),
        ("&nbsp;a", "&nbsp;a"),
    ],
)
def test_only_what_would_be_a_mark_is_escaped(translation: str, written: str) -> None:
    assert rewritten("word\n", "markdown", lambda _: translation) == f"{written}\n"


@pytest.mark.parametrize(
    ("source", "translation", "written"),
    [
        ('**"a"** b', '<m0>"말"</m0>을 b', '**"말"**&#51012; b'),
        ("**a** b", "<m0>말</m0>을 b", "**말**을 b"),
        ("_a_ b", "<m0>말</m0>을 b", "*말*을 b"),
        ("a *(b)*", "말<m1>(말)</m1>", "&#47568;*(말)*"),
        ("**a** *b*", "<m0>말</m0><m4>말</m4>", "**말***말*"),
        ("**a** **b**", "<m0>말</m0><m4>말</m4>", "**말**__말__"),
        ("**a *b* c**", "<m0><m2>말</m2> (말)</m0>은", "**_말_ (말)**&#51008;"),
        ("*a* b", "<m0> a </m0>b", "*a* b"),
        ("a [b](c)", "a!<m1>b</m1>", "a\\![b](c)"),
        ("| *a* b |\n|-|", "<m0>x | y</m0> \\", "| *x \\| y* \\ |\n|-|"),
        ("# a", "C #", "# C \\#"),
        ("# a", "a {#b}", "# &#97; \\{\\#b\\}"),
        ("- [ ] a", "[x] a", "- [ ] [x] a"),
        ("- a", "[x] a", "- \\[x\\] a"),
        ("> a  \n> b", "b<br m1/>- a", "> b  \n> \\- a"),
        ("a `b` c", 'c <m1 translate="no">b</m1> a', "c `b` a"),
        ("![a *b*](c) d", "d <m0/>", "d ![a *b*](c)"),
        ("![a](b) c", "c <m0/><br i0/>]x[", "c ![\\]x\\[](b)"),
        ("1\\. a", "a www.b-c.org.", "a www.b-c.org."),
        ("1\\. a", "2. a", "2\\. a"),
        ("a https://b.org/c", '<m1 translate="no">https://b.org/c</m1>을 *', "<https://b.org/c>을 *"),
        ("a https://b.org/c", '<m1 translate="no">https://b.org/c</m1>. a', "https://b.org/c. a"),
    ],
)
def test_marks_are_read_as_marks_beside_other_words(source: str, translation: str, written: str) -> None:
    assert rewritten(f"{source}\n", "markdown", lambda _: translation) == f"{written}\n"


def test_marks_without_words_are_reported() -> None:
    (text,) = texts("a *b* c\n\n", "markdown")
    with pytest.raises(InvalidArgumentError, match=r"^file: line 1: its marks cannot be kept around the words"):
        text.write("a <m1></m1> c")
    found = write_texts([(text, "a <m1></m1> c"), (text, "<m1> </m1> &amp;."), (text, None), (text, "x <m1>y</m1>")])
    assert [str(one)[:24] for one in found[:2]] == ["file: line 1: its marks ", "file: the translation ha"]
    assert found[2:] == ["a *b* c", "x *y*"]
    (text,) = texts("<b>\nword</b>\n", "markdown")
    assert text.write("<b> Wort</b>") == "<b>\nWort</b>"
    with pytest.raises(InvalidArgumentError, match="the tag <b> cannot stay at the beginning"):
        text.write("Wort <b></b>")


WORDS = (
    *(
        "단어를",
        "“말”",
        "(괄호)",
        "words",
        "a_b",
        "*",
        "_",
        "`",
        "[x]",
        "a*b",
        "<",
        "&",
        "!",
        "#",
        "1.",
        "-",
        "x:",
        "\\",
    ),
    *("~", "$5", "|", "这是", "。", "--", "=", ">", "https://a.b/c_d", "C#", "{x}", ":::", "[^1]", "word!", "&amp;"),
)
SOURCES = (
    *(
        "**“a”** b",
        "a **b**c *d*e __f__ _g_",
        "*a* **b** ~~c~~ [d](e) ![f](g)",
        "| a **b** | `c` |\n|-|-|\n| *d* e | f |",
    ),
    *(
        "- [ ] a *b* c",
        "> **a**  \n> *b* c",
        "a *b **c** d* e",
        "# a *b* #",
        "a *b*\n=",
        "[a][b] [b] [b][] ![b]\n\n[b]: c",
    ),
    *("*(*a*)*", "**a *b* c**", "a[^1] **b**\n\n[^1]: c *d*"),
)


def test_any_words_keep_the_tree() -> None:
    source = random.Random(1)

    def model(text: str) -> str:
        """Put other words between the elements."""
        written = list[str]()
        for token in scan(text, html=True):
            words = source.choice(("", " ")).join(source.choices(WORDS, k=source.randrange(1, 4)))
            words = words.replace("&", "&amp;").replace("<", "&lt;")
            spaces = [" " if token.written[place] == " " else "" for place in (0, -1)]
            written.append(token.written if token.kind is not Kind.TEXT else f"{spaces[0]}{words}{spaces[1]}")
        return "".join(written)

    def kinds(document: str) -> list[str]:
        return [one for one in tree(document) if "{" in one and "Foot" not in one]

    for number in range(10_000 if THOROUGH else 300):
        content = SOURCES[number % len(SOURCES)]
        assert kinds(rewritten(content, "markdown", model)) == kinds(content)


@pytest.mark.parametrize(
    "unit", ["_a__", "**a*", "[_a", "~~a", "<!--", "`a", "[a](", "![", '(a "', "&#", "<a", "{{", ":a"]
)
def test_time_grows_in_proportion_to_a_text(unit: str) -> None:
    assert_linear(lambda length: (unit * length)[:length], lambda content: texts(content, "markdown"))


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
    assert text.content.startswith("Look: <m1/> a dog.")
    assert rewritten(content, "markdown", lambda text: text.replace("dog", "cat")) == content.replace("dog", "cat")


@pytest.mark.parametrize(
    ("unit", "size"),
    [("a* *", 2**19), ("a ", 2**21), ("a`b`", 2**19), ("*a* ", 99_996), ("<b>a</b>", 2**19)],
    ids=["marks", "words", "code", "short", "html"],
)
def test_a_text_far_too_long_stays(unit: str, size: int) -> None:
    """Its length is that of its HTML."""
    content = unit * (size // len(unit))
    (text,) = texts(content, "markdown")
    assert len(text.content) > MAX_READ
    assert rewritten(content, "markdown", lambda text: f"{text}!").strip() == content.strip()


@pytest.mark.parametrize("mark", ["> ", "- ", "1. ", ">"])
def test_marks_of_lists_and_quotations_are_bounded(mark: str) -> None:
    line = f"{mark * 1000}a\n"
    assert texts(line, "markdown")
    with pytest.raises(InvalidArgumentError, match=r"^file: line 2[45]\d: the file has more than 250000 marks"):
        texts(line * 251, "markdown")
