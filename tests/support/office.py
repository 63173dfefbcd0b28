"""Office documents in tests: translated without a model, and compared by another parser."""

import io
import zipfile
from collections.abc import Iterator, Mapping

from lxml import etree

from jumok_serve.tasks.word_alignment import Pair, words
from jumok_serve.text.files.document import Text, needed_memory
from jumok_serve.text.markup.parser import Block, parse
from jumok_serve.text.markup.placing import write_block
from tests.support.files import read_file

RUNS = frozenset(
    ("r", "rPr", "t", "proofErr", "lastRenderedPageBreak", "softHyphen", "noBreakHyphen", "ruby", "rubyBase", "rubyPr")
) | {"rt", "soft-page-break", "ruby-base", "ruby-text"}
"""Elements of runs, which are joined and divided."""


def translated(data: bytes, name: str, *, backwards: bool = False, properties: bool = False) -> tuple[bytes, int]:
    """Translate a file word by word, each aligned with its own; returns the file, and the number of its texts.

    Args:
        backwards: True to reverse the order of the words.
        properties: True to translate the properties too.
    """
    needed_memory(data, name, "")
    document = read_file(data, name, properties=properties)
    writer, out, count = document.writer(), bytearray(), 0
    for piece in document.pieces():
        if not isinstance(piece, Text):
            out += writer.add(piece)
            continue
        count += 1
        markup = document.format.markup
        assert markup is not None
        parsed = parse(piece.content, markup, document.format.rules)
        out += writer.add(piece.write(parsed.written(lambda block: _aligned(block, backwards=backwards))))
    return bytes(out + writer.finish()), count


def _aligned(block: Block, *, backwards: bool) -> str:
    """Write a block whose words are translated."""
    if backwards:
        return _reversed(block)
    parts, pairs, done, length = list[str](), list[Pair](), 0, 0
    for first, after in words(block.text):
        kept, word = block.text[done:first], block.text[first:after].upper()
        parts += kept, word
        length += len(kept)
        pairs.append(Pair((length, length + len(word)), (first, after)))
        length, done = length + len(word), after
    target = "".join(parts) + block.text[done:]
    return write_block(block, [(0, len(block.text))], ("", ""), [target], [pairs])


def _reversed(block: Block) -> str:
    pairs, target = list[Pair](), ""
    for first, after in reversed(list(words(block.text))):
        target += " " if target else ""
        pairs.append(Pair((len(target), len(target) + after - first), (first, after)))
        target += block.text[first:after]
    return write_block(block, [(0, len(block.text))], ("", ""), [target], [pairs])


def members(data: bytes) -> dict[str, bytes]:
    """Return the entries of an archive, which another reader has checked."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def skeleton(xml: bytes) -> tuple[list[tuple[str, tuple[tuple[str, str], ...]]], str]:
    """Return all elements but those of runs, in their order, and all characters but white space."""
    root = etree.fromstring(xml)
    found = list(_elements(root))
    for reading in [one for one in root.iter(etree.Element) if etree.QName(one).localname in {"rt", "ruby-text"}]:
        reading.text = None
        for one in reading.iter(etree.Element):
            one.text = None
    characters = "".join("".join(root.itertext(etree.Element)).split()).replace("\u2011", "").casefold()
    return found, characters


def _elements(root: etree._Element) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    for element in root.iter(etree.Element):
        name = etree.QName(element).localname
        above = [etree.QName(one).localname for one in element.iterancestors()]
        inside = {etree.QName(one).localname for one in element.iterchildren(etree.Element)}
        if name == "span" and inside <= RUNS and "".join(element.itertext()).isspace():
            continue  # white space looks like its neighbours
        if name not in RUNS and not ("rPr" in above and above[above.index("rPr") + 1] == "r"):
            yield name, tuple(sorted(element.attrib.items()))


def assert_only_texts_differ(before: bytes, after: bytes, *, in_order: bool = True) -> None:
    """Check that two archives have the same entries, and those that differ the same elements and letters."""
    old, new = members(before), members(after)
    assert list(old) == list(new)
    for name, content in old.items():
        if new[name] != content:
            (elements, letters), (got, got_letters) = skeleton(content), skeleton(new[name])
            if in_order:
                assert (got, got_letters) == (elements, letters), name
            else:
                assert (sorted(got), sorted(got_letters)) == (sorted(elements), sorted(letters)), name


def archive_of(entries: Mapping[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return an archive; its entry ``mimetype`` comes first, and is not compressed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_STORED if name == "mimetype" else method)
    return out.getvalue()


_OOXML = "http://schemas.openxmlformats.org"
SPACES = {
    "w": f"{_OOXML}/wordprocessingml/2006/main",
    "p": f"{_OOXML}/presentationml/2006/main",
    "a": f"{_OOXML}/drawingml/2006/main",
    "c": f"{_OOXML}/drawingml/2006/chart",
    "mc": f"{_OOXML}/markup-compatibility/2006",
    "m": f"{_OOXML}/officeDocument/2006/math",
    "r": f"{_OOXML}/officeDocument/2006/relationships",
    "v": "urn:schemas-microsoft-com:vml",
    "wps": "http://schemas.microsoft.com/office/word/2010/wordprocessingShape",
    **{name: f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0" for name in ("office", "text", "table", "style")},
    "draw": "urn:oasis:names:tc:opendocument:xmlns:drawing:1.0",
    "xlink": "http://www.w3.org/1999/xlink",
}
_DECLARED = "".join(f' xmlns:{name}="{uri}"' for name, uri in SPACES.items())
SHEET = f'xmlns="{_OOXML}/spreadsheetml/2006/main"'
ODF_TYPES = {
    "odt": "application/vnd.oasis.opendocument.text",
    "ods": "application/vnd.oasis.opendocument.spreadsheet",
    "odp": "application/vnd.oasis.opendocument.presentation",
}
PICTURE = bytes(range(256)) * 8


def part(root: str, inside: str) -> str:
    """Return an entry of XML; its outermost element has a prefix."""
    return f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n<{root}{_DECLARED}>{inside}</{root}>'


def document(kind: str, inside: str) -> bytes:
    """Return a small file of a kind with texts as they stand in its main entry."""
    other: dict[str, str | bytes] = {"media/image1.png": PICTURE, "word/vbaProject.bin": b"\xd0\xcf macro"}
    match kind:
        case "docx":
            entries = {"[Content_Types].xml": "<Types/>", "word/document.xml": part("w:document", inside)}
        case "pptx":
            entries = {
                "ppt/presentation.xml": part("p:presentation", ""),
                "ppt/slides/slide1.xml": part("p:sld", inside),
            }
        case "xlsx":
            entries = {
                "xl/workbook.xml": f"<workbook {SHEET}/>",
                "xl/sharedStrings.xml": f"<sst {SHEET}>{inside}</sst>",
            }
        case "epub":
            entries = {
                "mimetype": "application/epub+zip",
                "OEBPS/a.xhtml": f'<html xmlns="http://www.w3.org/1999/xhtml"><body>{inside}</body></html>',
            }
        case _:
            entries = {"mimetype": ODF_TYPES[kind], "content.xml": part("office:document-content", inside)}
    return archive_of({**entries, **other})
