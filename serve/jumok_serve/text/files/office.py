"""Office documents: paragraphs of DOCX, PPTX, XLSX, ODT, ODS and ODP are translated; all else stays."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import unescape

from jumok_proto.markup import MarkupRules
from jumok_serve.text import archive
from jumok_serve.text.archive import Archive, Entry
from jumok_serve.text.files.document import (
    MAX_READ,
    MAX_SHOWN,
    PARTS_PER_STEP,
    FileFormat,
    Parts,
    Piece,
    Pieces,
    Text,
    read_of_xml,
    unchanged,
    unread,
)
from jumok_serve.text.markup.runs import BINDING, Element, Vocabulary, has_words
from jumok_serve.text.markup.scanner import Kind, Token, attributes, read_xml

_OOXML, _STRICT = "http://schemas.openxmlformats.org", "http://purl.oclc.org/ooxml"
_MICROSOFT, _ODF = "http://schemas.microsoft.com/office", "urn:oasis:names:tc:opendocument:xmlns"
_SPACES: Final = {
    "w": "/wordprocessingml{}/main",
    "p": "/presentationml{}/main",
    "a": "/drawingml{}/main",
    "x": "/spreadsheetml{}/main",
    "c": "/drawingml{}/chart",
    "dgm": "/drawingml{}/diagram",
    "xdr": "/drawingml{}/spreadsheetDrawing",
}
NAMESPACES: Final = {
    **{_OOXML + path.format("/2006"): name for name, path in _SPACES.items()},
    **{_STRICT + path.format(""): name for name, path in _SPACES.items()},
    f"{_MICROSOFT}/drawing/2008/diagram": "dsp",
    f"{_MICROSOFT}/powerpoint/2018/8/main": "p188",
    f"{_MICROSOFT}/spreadsheetml/2018/threadedcomments": "tc",
    **{f"{_ODF}:{name}:1.0": name for name in ("office", "text", "table", "style", "meta")},
    f"{_ODF}:drawing:1.0": "draw",
    f"{_ODF}:container": "ocf",
    "http://www.w3.org/1999/xhtml": "html",
    "http://www.daisy.org/z3986/2005/ncx/": "ncx",
    "http://www.idpf.org/2007/opf": "opf",
    f"{_OOXML}/package/2006/metadata/core-properties": "cp",
    "http://purl.org/dc/elements/1.1/": "dc",
}
"""Short names of namespaces, by which elements are known here, whatever prefix a file gives them."""
_DECLARED: Final = re.compile(r"\sxmlns(?::([^\s=]+))?\s*+=\s*+(?:\"([^\"]*)\"|'([^']*)')")


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


WORD: Final = Vocabulary(
    paragraphs=_set("w:p"),
    run="w:r",
    characters="w:t",
    properties="w:rPr",
    ignored=_set("w:lang w:noProof"),
    groups=_set("w:hyperlink w:ins w:moveTo w:smartTag w:customXml w:sdt w:sdtContent w:fldSimple w:dir w:bdo"),
    folded=_set("w:sdtPr w:sdtEndPr w:smartTagPr w:customXmlPr w:fldData"),
    open=_set("w:ruby w:rubyBase"),
    dropped=_set("w:proofErr w:lastRenderedPageBreak w:softHyphen w:rubyPr w:rt"),
    breaks=_set("w:br w:cr w:tab w:ptab"),
    written={"w:noBreakHyphen": "\u2011"},
    preserve=True,
)
DRAWING: Final = Vocabulary(
    paragraphs=_set("a:p"),
    run="a:r",
    characters="a:t",
    properties="a:rPr",
    breaks=_set("a:br"),
    shown=("a:fld",),
    line_ends=True,
)
SHEET: Final = Vocabulary(
    paragraphs=_set("x:si x:is x:text"),
    run="x:r",
    characters="x:t",
    properties="x:rPr",
    preserve=True,
    line_ends=True,
)
OPEN: Final = Vocabulary(
    paragraphs=_set("text:p text:h"),
    groups=_set("text:span text:a text:meta"),
    looks=_set("text:span"),
    open=_set("text:ruby text:ruby-base"),
    dropped=_set("text:ruby-text text:soft-page-break"),
    breaks=_set("text:line-break text:tab"),
    shown=("text:",),
    kept=_set("text:tracked-changes table:table-cell table:covered-table-cell"),
    within=_set("office:annotation draw:text-box"),
)
OPEN_STYLES: Final = replace(
    OPEN,
    within=_set(" ".join(f"style:{part}{page}" for part in ("header", "footer") for page in ("", "-left", "-first"))),
    only_within=True,
)
PLAIN: Final = Vocabulary(paragraphs=_set("p:text tc:text ncx:text dc:title"))
"""Characters without runs."""
PROPERTIES: Final = Vocabulary(_set("dc:title dc:subject dc:description cp:keywords cp:category meta:keyword"))
"""What documents and books say about themselves."""

_DRAWN: Final = dict.fromkeys(("c:chartSpace", "dgm:dataModel", "dsp:drawing", "xdr:wsDr", "p188:cmLst"), DRAWING)
ROOTS: Final = {
    "docx": dict.fromkeys(_set("w:document w:hdr w:ftr w:footnotes w:endnotes w:comments"), WORD) | _DRAWN,
    "pptx": {"p:sld": DRAWING, "p:notes": DRAWING, "p:cmLst": PLAIN} | _DRAWN,
    "xlsx": dict.fromkeys(_set("x:sst x:worksheet x:comments"), SHEET) | {"tc:ThreadedComments": PLAIN} | _DRAWN,
} | {kind: {"office:document-content": OPEN, "office:document-styles": OPEN_STYLES} for kind in ("odt", "ods", "odp")}
"""Elements around all of an entry that has texts, by format."""
_OF_PROPERTIES: Final = dict.fromkeys(("cp:coreProperties", "office:document-meta"), PROPERTIES)
_MAIN: Final = {"w:document": "docx", "p:presentation": "pptx", "x:workbook": "xlsx", "ocf:container": "epub"}
_MEDIA_TYPES: Final = {
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.oasis.opendocument.spreadsheet": "ods",
    "application/vnd.oasis.opendocument.presentation": "odp",
    "application/epub+zip": "epub",
}
_SIGNED: Final = re.compile(r"_xmlsignatures/|META-INF/(?:document)?signatures\.xml\Z")
MAX_SHEETS: Final = 2**28
"""Uncompressed bytes of all sheets of a workbook, which are searched for characters of their own."""
_INLINE: Final = b"inlineStr"


class _Names:
    """Short names of elements, by the namespaces that are declared around them."""

    def __init__(self) -> None:
        self._scopes: list[tuple[dict[str, str], dict[str, str]]] = [({}, {})]  # by prefix, and by what is written

    def of(self, token: Token) -> str:
        """Return the short name of the next tag."""
        spaces, known = self._scopes[-1]
        if token.kind is not Kind.END:
            if "xmlns" in token.written:
                declared = {prefix: one or other for prefix, one, other in _DECLARED.findall(token.written)}
                spaces, known = spaces | {prefix: NAMESPACES.get(uri, "") for prefix, uri in declared.items()}, {}
            self._scopes.append((spaces, known))
        if token.name not in known:
            prefix, _, local = token.name.rpartition(":")
            known[token.name] = f"{spaces.get(prefix, '')}:{local}"
        if token.kind is not Kind.START and len(self._scopes) > 1:
            self._scopes.pop()
        return known[token.name]


def xml_pieces(words: Vocabulary, content: str, staying: frozenset[str] = frozenset()) -> Iterator[Piece]:
    """Yield the pieces of an entry of XML; the line of a text is the number of its paragraph.

    Args:
        staying: characters of paragraphs that stay.
    """
    return read_of_xml(content, _paragraphs(words, content, staying), "save the file again in its program")


def _paragraphs(words: Vocabulary, content: str, staying: frozenset[str]) -> Iterator[Piece]:
    """Yield the paragraphs of an entry, and all between them; only the tokens of one are in memory."""
    names, between, depth, count = _Names(), list[str](), 0, 0
    translated = [not words.only_within]  # of the elements around a token
    tokens, short = list[Token](), list[str]()  # of a paragraph
    for token in read_xml(content):
        name = names.of(token) if token.name else ""
        count += not depth and token.kind is not Kind.END and name in words.paragraphs
        if depth or (token.kind is Kind.START and name in words.paragraphs):
            depth += (token.kind is Kind.START) - (token.kind is Kind.END)
            tokens.append(token)
            short.append(name)
            if not depth:
                yield "".join(between)
                between.clear()
                yield _paragraph(words, tokens, short, count, staying if translated[-1] else None)
                tokens, short = [], []
            continue
        _look_at(words, token, name, translated)
        between.append(token.written)
        if len(between) == PARTS_PER_STEP:
            yield "".join(between)
            between.clear()
    yield "".join(between)


def _look_at(words: Vocabulary, token: Token, name: str, translated: list[bool]) -> None:
    """Note if paragraphs are translated, in the element that begins or ends."""
    if token.kind is Kind.START:
        stays = name in words.kept and not _has_characters(token)
        translated.append(name in words.within or (translated[-1] and not stays))
    elif token.kind is Kind.END and len(translated) > 1:
        translated.pop()
    if name == BINDING and len(translated) > 2:
        translated[-2:] = False, False  # the control around its properties


_CHARACTERS: Final = frozenset({Kind.TEXT, Kind.CDATA})


def _has_characters(token: Token) -> bool:
    """True for the cell of a table that shows characters, and no number or result."""
    found = {key.rpartition(":")[2]: value for key, value in attributes(token.written)}
    return token.name.endswith("cell") and found.get("value-type", "string") == "string" and "formula" not in found


def _paragraph(
    words: Vocabulary, tokens: list[Token], names: list[str], number: int, staying: frozenset[str] | None
) -> Piece:
    """Return a paragraph with those within it, each as often as its content differs; without `staying` it stays."""
    written = "".join([token.written for token in tokens])
    if staying is None or not any(token.kind in _CHARACTERS and has_words(token.written) for token in tokens):
        return written
    if len(written) > MAX_READ:
        return unread(written, written, number)
    paragraph = Element(words, tokens, names).paragraph()
    contents, waiting = dict[str, None](), [paragraph]
    while waiting:
        one = waiting.pop()
        waiting += reversed(one.nested)
        if one.content:
            contents[one.content] = None
    if not contents or (staying and unescape(paragraph.characters()) in staying):
        return written
    parts = list(contents)
    content = parts[0] if len(parts) == 1 else "".join(f"<p>{part}</p>" for part in parts)

    def write(translation: str) -> str:
        translated = [translation] if len(parts) == 1 else translation[3:-4].split("</p><p>")
        return paragraph.write(dict(zip(parts, translated, strict=True)))

    return Text(content, written, number, unchanged(content, written, write))


def _entries(kind: str, content: Archive, properties: bool = True) -> Iterator[tuple[Entry, Pieces]]:
    """Yield the entries of a document that have texts, with the function of their pieces."""
    roots = checked_roots(kind, content)
    vocabularies = ROOTS[kind] | (_OF_PROPERTIES if properties else {})
    staying = frozenset(_column_names(content, roots))
    searched = 0
    for entry in content.entries:
        root = roots.get(entry.filename, "")
        if root not in vocabularies:
            continue
        if root == "x:worksheet":
            searched += entry.file_size
            if searched > MAX_SHEETS:
                archive.refuse(f"its sheets have more than {MAX_SHEETS} bytes: split the file")
            if not _has_inline(content, entry):
                continue
        yield entry, partial(xml_pieces, vocabularies[root], staying=staying)


def checked_roots(kind: str, content: Archive) -> dict[str, str]:
    """Return the outermost element of each entry of XML by its name.

    Raises:
        InvalidArgumentError: another kind of document, or one that cannot be translated.
    """
    by_name = {entry.filename: entry for entry in content.entries}
    if signed := next((name for name in by_name if _SIGNED.match(name)), ""):
        archive.refuse(
            f"it is signed ({signed[:MAX_SHOWN]}), and a translation breaks signatures: remove them in its program"
        )
    manifest = by_name.get("META-INF/manifest.xml")
    if manifest is not None and any(b"encryption-data" in part for part in content.inflated(manifest)):
        archive.refuse("it is protected by a password: remove the password in its program")
    roots = {name: _root(content.head(entry)) for name, entry in by_name.items() if name.lower().endswith(_XML)}
    media = content.head(by_name["mimetype"]).decode("ascii", "replace") if "mimetype" in by_name else ""
    found = _MEDIA_TYPES.get(media.strip().removesuffix("-template"), "")
    found = found or next((_MAIN[root] for root in roots.values() if root in _MAIN), "")
    if found != kind:
        is_other = f"it is a document of the format {found!r}, not {kind!r}: give the format {found!r}"
        archive.refuse(is_other if found else f"it is no document of the format {kind!r}: give the format of the file")
    return roots


_XML: Final = (".xml", ".xhtml", ".html", ".htm", ".ncx", ".opf")
_FIRST_TAG: Final = re.compile(r"<([^\s<>!?/]++)[^<>]*+")


def _root(head: bytes) -> str:
    """Return the short name of the outermost element of an entry's beginning."""
    encoding = "utf-16" if head[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8"
    found = _FIRST_TAG.search(head.decode(encoding, "ignore"))
    return "" if found is None else _Names().of(Token(Kind.START, found[0], found[1]))


def _column_names(content: Archive, roots: dict[str, str]) -> Iterator[str]:
    """Yield the names of columns of tables and pivot tables, which their head cells must have too."""
    for entry in content.entries:
        if roots.get(entry.filename) in {"x:table", "x:pivotCacheDefinition"}:
            table = b"".join(content.inflated(entry)).decode("utf-8", "replace")
            for found in re.finditer(r"<(?:\w+:)?(?:tableColumn|cacheField)\s[^<>]*?\sname=\"([^\"]*)\"", table):
                yield unescape(found[1], {"&quot;": '"', "&apos;": "'", "_x000a_": "\n", "_x000d_": "\r"})


def _has_inline(content: Archive, entry: Entry) -> bool:
    """True if a sheet has characters of its own."""
    parts = content.inflated(entry, MAX_SHEETS)
    return any(_INLINE in one[-len(_INLINE) :] + other for one, other in pairwise((b"", *parts)))


_RULES: Final = MarkupRules(non_splitting_tags=("r", "g", "m", "x"), splitting_tags=("p", "br"))
NO_PARTS: Final = Parts(name="parts", marks="", size=0, most=0)


FORMATS: Final = {
    kind: FileFormat(xml_pieces, "xml", _RULES, NO_PARTS, copies=2, entries=partial(_entries, kind)) for kind in ROOTS
}
