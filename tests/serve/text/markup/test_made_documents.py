"""Made HTML and XML: the parsed translation has the structure of the parsed document."""

import random
import re
from collections import Counter
from collections.abc import Callable

import lxml.etree
import lxml.html
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jumok_proto.markup import MarkupKind
from jumok_serve.tasks.word_alignment import words
from jumok_serve.text.markup.parser import Block, parse
from jumok_serve.text.markup.placing import Word, transfer, write_spans
from tests.support.files import made

INLINE = ("b", "i", "span title='a &gt; b'", "em", 'a href="x?a=1&amp;b=2"')
BLOCKS = ("p", "div", 'li class="c"', "section", "td")
BLOCK_NAMES = {"doc", *(tag.split()[0] for tag in BLOCKS)}
TEXTS = ("one", "two three.", "&amp;", "&lt;x&gt;", "한국어", "12,", "R&amp;D", "größer")
ALONE = {
    "html": (
        *('<img src="a.png">', "<!-- c -->", '<input name="x">', "<code>f(x)</code>", '<b translate="no">Name</b>'),
        *(
            "word<sup>1</sup>",
            "H<sub>2</sub>O",
            "<sup>14</sup>C",
            '<b class="x notranslate">Name</b>',
            "<u>a <wbr></u>",
        ),
        '<i translate="no">a <b translate="yes">dog</b></i>',
        "<ruby>one<rp>(</rp><rt>wan</rt><rp>)</rp></ruby>",
    ),
    "xml": ('<img src="a.png"/>', "<!-- c -->", "<?go on?>", "<x/>", "<![CDATA[a < b]]>"),
}


@st.composite
def inline(draw: st.DrawFn, kind: MarkupKind, depth: int = 0) -> str:
    """Make words with elements, nested up to four deep."""
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        shape = draw(st.integers(0, 5))
        if shape == 0:
            parts.append(draw(st.sampled_from(ALONE[kind])))
        elif shape == 1 and depth < 4:
            tag = draw(st.sampled_from(INLINE[:-1] if depth else INLINE))  # HTML has no link inside of a link
            parts.append(f"<{tag}>{draw(inline(kind, depth + 1))}</{tag.split()[0]}>")
        else:
            parts.append(draw(st.sampled_from(TEXTS)))
    return draw(st.sampled_from(["", " ", "\n"])).join(parts)


@st.composite
def documents(draw: st.DrawFn, kind: MarkupKind, depth: int = 0) -> str:
    """Make elements that have elements or words inside."""
    tag = "doc" if depth == 0 else draw(st.sampled_from(BLOCKS))
    if depth and draw(st.booleans()):
        inside = f"{draw(st.sampled_from(TEXTS))} {draw(inline(kind))}"
    else:
        between = draw(st.sampled_from(["", "\n  ", "<!-- d -->"]))
        inside = between.join(draw(st.lists(documents(kind, depth + 1), max_size=0 if depth == 3 else 3)))
    return f"<{tag}>{inside}</{tag.split()[0]}>"


def translated(block: Block, chosen: random.Random, *, all_words: bool = False) -> str:
    """Write a block with some of its words, or all of them, in another order, and others of its own."""
    source = words(block.text)
    order = [*range(len(source))]
    chosen.shuffle(order)
    order = order[: chosen.randint(1, len(order))] if order and chosen.random() < 0.3 and not all_words else order
    aligned = [Word(start, end, 0) for start, end in (source[index] for index in order)]
    aligned += [Word(0, 0, 0)] * chosen.randint(0, 2)
    chosen.shuffle(aligned)
    parts = [f"w{number}" if chosen.random() < 0.8 else "<&>w" for number in range(len(aligned))]
    ends = [sum(map(len, parts[: number + 1])) + number for number in range(len(parts))]
    places = [(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
    found = transfer(block.spans, block.text, aligned, [(0, len(block.text))])
    return write_spans(block.spans, found, " ".join(parts), places, block.escape)


def nodes(root: "lxml.etree._Element") -> tuple[Counter[tuple[str, ...]], list[str]]:
    """All elements, comments and instructions with those around them, and the names of blocks in their order."""
    paths: Counter[tuple[str, ...]] = Counter()
    for one in root.iter():
        paths[tuple(map(_shown, (one, *one.iterancestors())))] += 1
    return paths, [one.tag for one in root.iter() if one.tag in BLOCK_NAMES]


def _shown(node: "lxml.etree._Element") -> str:
    return f"{node.tag} {sorted(node.attrib.items())}" if isinstance(node.tag, str) else str(node)


@pytest.mark.parametrize(
    ("kind", "read"),
    [("xml", lambda text: lxml.etree.fromstring(text.encode())), ("html", lxml.html.fragment_fromstring)],
)
@given(data=st.data(), seed=st.integers(0, 10**6))
@made
def test_a_translated_document_has_the_structure_of_the_document(
    kind: MarkupKind, read: Callable[[str], "lxml.etree._Element"], data: st.DataObject, seed: int
) -> None:
    text, chosen = data.draw(documents(kind)), random.Random(seed)
    document = parse(text, kind)
    written = document.written(lambda block: translated(block, chosen))
    assert nodes(read(written)) == nodes(read(text))
    assert kind == "xml" or len(parse(written, kind).blocks) == len(document.blocks)


SCRIPTS = (*("H<sub>2</sub>O", "m<sup>2</sup>", "C<sub>6</sub>H<sub>12</sub>O<sub>6</sub>", "<sup>14</sup>C", "10"),)
NOTES = (
    "word<sup>1</sup>",
    "end.<sup>[<a>2</a>]</sup>",
    "it<sup>*</sup><sup>,3</sup>",
    "<i>dogs</i><sup>TM</sup>",
    "a",
)


@given(st.lists(st.sampled_from((*SCRIPTS, *NOTES)), min_size=1, max_size=6).map(" ".join), st.integers(0, 10**6))
@made
def test_scripts_stay_glued_to_what_they_belong_to(text: str, seed: int) -> None:
    written = parse(text, "html").written(lambda block: translated(block, random.Random(seed), all_words=True))
    for formula in SCRIPTS[:-1]:
        assert len(re.findall(rf"(?<!\w){formula}(?!\w)", written)) == len(re.findall(rf"(?<!\w){formula}", text))
    if not any(formula in text for formula in SCRIPTS[:-1]):  # which are marks here, and no words
        assert len(re.findall(r"\s<sup>", written)) == 0
    assert len(re.findall(r"<sup>", written)) == len(re.findall(r"<sup>", text))
