"""Office documents in tests: translated without a model, and compared by another parser."""

import io
import zipfile
from collections.abc import Callable, Iterator

from lxml import etree

from jumok_serve.tasks.word_alignment import words
from jumok_serve.text.files.document import Text, needed_memory
from jumok_serve.text.markup.parser import Block, parse
from jumok_serve.text.markup.placing import write_block
from tests.support.files import read_file

RUNS = frozenset("r rPr t proofErr lastRenderedPageBreak softHyphen noBreakHyphen ruby rubyBase rubyPr rt soft-page-break".split())  # noqa: SIM905
"""Elements of runs, which are joined and divided."""


def translated(
    data: bytes, name: str, translate: Callable[[str], str] = str.upper, order: Callable[[int], int] = int
) -> tuple[bytes, int]:
    """Translate a file word by word, each aligned with its own; returns the file, and the number of its texts."""
    needed_memory(data, name, "")
    document = read_file(data, name)
    writer, out, count = document.writer(), bytearray(), 0
    for piece in document.pieces():
        if not isinstance(piece, Text):
            out += writer.add(piece)
            continue
        count += 1
        markup = document.format.markup
        assert markup is not None
        parsed = parse(piece.content, markup, document.format.rules)
        out += writer.add(piece.write(parsed.written(lambda block: _aligned(block, translate))))
    return bytes(out + writer.finish()), count


def _aligned(block: Block, translate: Callable[[str], str]) -> str:
    """Write a block whose words are translated, in their order."""
    parts, pairs, done, length = list[str](), list[tuple[tuple[int, int], tuple[int, int]]](), 0, 0
    for first, after in words(block.text):
        kept, word = block.text[done:first], translate(block.text[first:after])
        parts += kept, word
        length += len(kept)
        pairs.append(((length, length + len(word)), (first, after)))
        length, done = length + len(word), after
    target = "".join(parts) + block.text[done:]
    return write_block(block, [(0, len(block.text))], ("", ""), [target], [pairs])


def unchanged(data: bytes, name: str) -> bytes:
    """Write a file with its texts as they are."""
    document = read_file(data, name)
    writer, out = document.writer(), bytearray()
    for piece in document.pieces():
        out += writer.add(piece.write(piece.content) if isinstance(piece, Text) else piece)
    return bytes(out + writer.finish())


def members(data: bytes) -> dict[str, bytes]:
    """Return the entries of an archive, which another reader has checked."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def skeleton(xml: bytes) -> tuple[list[tuple[str, tuple[tuple[str, str], ...]]], str]:
    """Return all elements but those of runs, in their order, and all characters but white space."""
    root = etree.fromstring(xml)
    found = list(_elements(root))
    characters = "".join("".join(root.itertext(etree.Element)).split()).casefold()
    return found, characters


def _elements(root: etree._Element) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    for element in root.iter(etree.Element):
        name = etree.QName(element).localname
        above = [etree.QName(one).localname for one in element.iterancestors()]
        if name == "span" and not len(element) and not (element.text or " ").strip():
            continue  # white space looks like its neighbours
        if name not in RUNS and not ("rPr" in above and above[above.index("rPr") + 1] == "r"):
            yield name, tuple(sorted(element.attrib.items()))


def assert_only_texts_differ(before: bytes, after: bytes) -> None:
    """Check that two archives have the same entries, and those that differ the same elements and letters."""
    old, new = members(before), members(after)
    assert list(old) == list(new)
    for name, content in old.items():
        if new[name] != content:
            wanted, got = skeleton(content), skeleton(new[name])
            assert got == wanted, name
