"""Archives: those that are refused, hostile ones, and copies with changed entries."""

import io
import random
import struct
import zipfile
from collections.abc import Callable, Mapping

import pytest

from jumok_serve.text.archive import Archive, ArchiveCopy
from jumok_serve.text.files.document import Text, needed_memory
from tests.faults.guided.file_readers import Files
from tests.support.files import read_file
from tests.support.growth import assert_linear
from tests.support.office import SPACES, archive_of, document, members, part
from tests.support.refusals import refused

WORD = "<w:p><w:r><w:t>A dog</w:t></w:r></w:p>"
MAIN = part("w:document", WORD)


def of(entries: Mapping[str, str | bytes]) -> bytes:
    """Return a document of Word with some entries."""
    return archive_of({"word/document.xml": MAIN, **entries})


def changed(data: bytes, field: str, value: int) -> bytes:
    """Change a field of the first entry in the directory."""
    place, form = {"flags": (8, "<H"), "method": (10, "<H"), "size": (24, "<L"), "mode": (38, "<L")}[field]
    made = bytearray(data)
    struct.pack_into(form, made, made.index(b"PK\1\2") + place, value)
    if field == "mode":
        made[made.index(b"PK\1\2") + 5] = 3
    return bytes(made)


def doubled() -> bytes:
    """Return an archive with two entries of one name."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name in ("word/document.xml", "word/document.xmk"):
            made.writestr(name, MAIN)
    return out.getvalue().replace(b"document.xmk", b"document.xml")


def crowded() -> bytes:
    """Return an archive whose end says that it has 100,000 entries."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for number in range(100_000):
            made.writestr(f"{number}", "")
    return out.getvalue()


def nested(depth: int) -> str:
    return part("w:document", "<w:a>" * depth + "</w:a>" * depth)


MANIFEST = (
    '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"><manifest:file-entry>'
    "<manifest:encryption-data/></manifest:file-entry></manifest:manifest>"
)
ODT = {"mimetype": "application/vnd.oasis.opendocument.text"}
DRM = '<encryption><EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes128-cbc"/></encryption>'
OLE = bytes.fromhex("d0cf11e0a1b11ae1") + bytes(100)


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        (b"%PDF-1.7\n%\xe2\xe3", "a.pdf", "it is a PDF file: convert it to DOCX or text, and translate that"),
        (b"%PDF-1.7\n", "a.docx", "it is a PDF file"),
        (OLE, "a.doc", "it is a document of Office 97 to 2003: save it as DOCX, XLSX or PPTX"),
        (OLE + "EncryptedPackage".encode("utf-16-le"), "a.docx", "protected by a password: remove the password"),
        (b"", "a.docx", "it is no whole ZIP archive"),
        (b"A dog", "a.docx", "it is no whole ZIP archive"),
        (of({})[:-30], "a.docx", "it is no whole ZIP archive"),
        (of({})[:200], "a.docx", "it is no whole ZIP archive"),
        (of({})[5:], "a.docx", "it is no whole ZIP archive"),
        (archive_of({"a.txt": "A dog"}), "a.docx", "it is no document of the format 'docx'"),
        (document("xlsx", ""), "a.docx", "of the format 'xlsx', not 'docx': give the format 'xlsx'"),
        (document("odt", ""), "a.ods", "of the format 'odt', not 'ods'"),
        (document("epub", ""), "a.docx", "of the format 'epub', not 'docx'"),
        (changed(of({}), "flags", 1), "a.docx", "'word/document.xml' is encrypted: remove the password"),
        (changed(of({}), "method", 9), "a.docx", "compressed in an unknown way"),
        (changed(of({}), "mode", 0o120777 << 16), "a.docx", "'word/document.xml' is a link: put the file in its place"),
        (changed(of({}), "size", 2000), "a.docx", "'word/document.xml' is damaged"),
        (changed(of({}), "size", 10), "a.docx", "'word/document.xml' is damaged"),
        (
            changed(of({}), "size", 2**31),
            "a.docx",
            "has 2147483648 bytes, at most 16777216 are allowed: split the file",
        ),
        (doubled(), "a.docx", "'word/document.xml' is there twice: save the file again"),
        (crowded(), "a.docx", "it has 100000 entries, at most 10000 are allowed"),
        *(
            (of({name: ""}), "a.docx", "leads out of the archive")
            for name in ("../a", "a/../../b", "/a", "C:/a", "a/..")
        ),
        (of({"_xmlsignatures/sig1.xml": ""}), "a.docx", r"it is signed \(_xmlsignatures/sig1.xml\), and a translation"),
        (archive_of({**ODT, "META-INF/documentsignatures.xml": ""}), "a.odt", "it is signed"),
        (archive_of({**ODT, "META-INF/manifest.xml": MANIFEST}), "a.odt", "protected by a password"),
        (
            archive_of({"mimetype": "application/epub+zip", "META-INF/encryption.xml": DRM}),
            "a.epub",
            "the book is encrypted",
        ),
        (
            of({"word/document.xml": MAIN.replace("</w:p>", "")}),
            "a.docx",
            "word/document.xml: line 2: it is not well-formed XML",
        ),
        (of({"word/document.xml": "<!DOCTYPE a [<!ENTITY b 'c'>]>" + MAIN[56:]}), "a.docx", "declares the entity 'b'"),
        (
            of({"word/document.xml": MAIN.encode()[:-20] + b"\xff" + MAIN.encode()[-20:]}),
            "a.docx",
            "byte 0xff is not UTF-8",
        ),
        (of({"word/document.xml": MAIN.replace("UTF-8", "latin1")}), "a.docx", "the encoding latin1 is not UTF-8"),
        (of({"word/document.xml": nested(20_000)}), "a.docx", "more than 16384 elements within each other"),
        (
            of({"word/document.xml": part("w:document", "<w:p>" * 20 + "A</w:p>" * 20)}),
            "a.docx",
            "more than 16 paragraphs",
        ),
        (of({"word/document.xml": MAIN + " " * 5_000_000}), "a.docx", "200 times its compressed bytes"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_files_that_are_refused(data: bytes, name: str, message: str) -> None:
    with refused("file", message):
        needed_memory(data, name, "")
        read_file(data, name)


def test_entities_and_chains_of_bombs_are_not_read() -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("word/document.xml", MAIN)
        made.writestr("word/media/bomb.xml", b"\0" * 50_000_000)
    data = bomb.getvalue()
    document = read_file(data, "a.docx")  # nothing of it is texts, and it stays as it came
    assert document.count == 1
    assert needed_memory(data, "a.docx", "") < 2**25


def random_archive(source: random.Random) -> bytes:
    """Return an archive with entries as programs write them."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.comment = source.randbytes(source.choice((0, 9)))
        for number in range(source.randrange(1, 9)):
            info = zipfile.ZipInfo(f"{source.choice(('a/', 'é/', ''))}{number}", (2020, 1, 1 + number, 0, 0, 0))
            info.extra = source.choice((b"", struct.pack("<2H", 0xA220, 8) + bytes(8)))
            info.comment, info.external_attr = source.randbytes(source.choice((0, 3))), 0o644 << 16
            method = info.compress_type = source.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            content = source.randbytes(source.choice((0, 1, 100, 200_000)))
            if source.random() < 0.5:
                made.writestr(info, content, method)
            else:
                with made.open(info, "w", force_zip64=source.random() < 0.5) as entry:
                    entry.write(content)
    data = out.getvalue()
    return data if source.random() < 0.5 else unseekable(data)


def unseekable(data: bytes) -> bytes:
    """Return an archive again as programs write it that cannot go back: sizes stand after the entries."""

    class Stream(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: object) -> int:
            raise OSError

        def tell(self) -> int:
            raise OSError

    out = Stream()
    with zipfile.ZipFile(io.BytesIO(data)) as read, zipfile.ZipFile(out, "w") as made:
        made.comment = read.comment
        for info in read.infolist():
            made.writestr(info, read.read(info), info.compress_type)
    return out.getvalue()


@pytest.mark.parametrize("seed", range(40))
def test_a_copy_has_the_changes_and_all_else(seed: int) -> None:
    source = random.Random(seed)
    data = random_archive(source)
    read, wanted = Archive(data), members(data)
    assert [entry.filename for entry in read.entries] == list(wanted)
    assert {entry.filename: b"".join(read.inflated(entry)) for entry in read.entries} == wanted
    unchanged = ArchiveCopy(read)
    assert unchanged.finish() == data
    copy, out = ArchiveCopy(read), b""
    for entry in read.entries:
        if source.random() < 0.5:
            out += copy.begin(entry)
            wanted[entry.filename] = source.randbytes(source.choice((0, 10, 100_000)))
            copy.put(wanted[entry.filename])
    out += copy.finish()
    assert members(out) == wanted
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(io.BytesIO(out)) as after:
        assert before.comment == after.comment
        kept = [
            (one.filename, one.date_time, one.comment, one.external_attr, one.compress_type)
            for one in before.infolist()
        ]
        assert kept == [
            (one.filename, one.date_time, one.comment, one.external_attr, one.compress_type) for one in after.infolist()
        ]


def rest_of(count: int, inside: str) -> str:
    return part("w:document", inside * count)


BEGIN = '<w:r><w:fldChar w:fldCharType="begin"/></w:r>'
LONG = "<w:r><w:rPr><w:b w:val='{}'/></w:rPr><w:t>a</w:t></w:r>"


@pytest.mark.parametrize(
    "content",
    [
        rest_of(400, WORD),
        rest_of(1, f"<w:p>{''.join(LONG.format(number) for number in range(400))}</w:p>"),
        rest_of(1, f"<w:p>{'<w:r><w:t>a</w:t><w:tab/></w:r>' * 800}</w:p>"),
        rest_of(1, f"<w:p>{'<w:hyperlink>' * 500}<w:r><w:t>a</w:t></w:r>{'</w:hyperlink>' * 500}</w:p>"),
        rest_of(1, f"<w:p><w:r><w:t>{'ab ' * 100_000}</w:t></w:r></w:p>"),
        rest_of(1, f"<w:p><w:r><w:t>\U0001f642{'ab ' * 80_000}</w:t></w:r></w:p>"),
        rest_of(2_000, "<w:x/>"),
        rest_of(1, "<w:x>" * 800 + "</w:x>" * 800),
        rest_of(200, f'<a xmlns="{SPACES["w"]}" xmlns:q="q"><p/></a>'),
    ],
    ids=lambda content: content[len(part("w:document", "")) - 13 :][:40],
)
def test_memory_of_an_entry_is_below_its_bound(content: str) -> None:
    Files("docx").read(archive_of({"word/document.xml": content}, zipfile.ZIP_STORED))


def test_memory_of_long_names_is_below_its_bound() -> None:
    Files("docx").read(of({f"\U0001f642{number}{'a' * 30_000}": "" for number in range(200)}))


@pytest.mark.parametrize(
    "make",
    [
        lambda size: rest_of(size // 30, WORD),
        lambda size: rest_of(1, f"<w:p>{'<w:r><w:t>a</w:t></w:r><w:x/>' * (size // 30)}</w:p>"),
        lambda size: rest_of(1, f"<w:p>{BEGIN * (size // 50)}</w:p>"),
        lambda size: rest_of(1, "<w:p>A" + "<w:hyperlink>" * (size // 30) + "</w:hyperlink>" * (size // 30) + "</w:p>"),
        lambda size: rest_of(
            1, "<w:p>" + '<w:bookmarkStart w:id="1"/>a<w:bookmarkEnd w:id="1"/>' * (size // 50) + "</w:p>"
        ),
    ],
)
def test_time_grows_in_proportion_to_an_entry(make: Callable[[int], str]) -> None:
    def read(data: bytes) -> None:
        for piece in read_file(data, "a.docx").pieces():
            if isinstance(piece, Text):
                piece.write(piece.content + " b")

    assert_linear(lambda size: archive_of({"word/document.xml": make(size)}, zipfile.ZIP_STORED), read, size=400)


def test_compressed_bytes_that_are_damaged() -> None:
    data = bytearray(of({}))
    data[data.index(b"PK\3\4") + 60] ^= 0xFF
    with refused("file", "it is no document of the format 'docx'|is damaged"):
        read_file(bytes(data), "a.docx")
