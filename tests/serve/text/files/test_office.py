"""Office documents: which characters are texts, and what is written in their place."""

import io
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx
import pytest
from docx.shared import Inches
from hypothesis import given
from hypothesis import strategies as st
from openpyxl.comments import Comment
from openpyxl.worksheet.table import Table

from jumok_serve.text.files.document import Text
from tests.support.files import made, read_file, written
from tests.support.office import (
    PICTURE,
    SHEET,
    archive_of,
    assert_only_texts_differ,
    document,
    members,
    part,
    translated,
)

FIELD = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'


def field(instruction: str, shown: str) -> str:
    begin, separate, end = map(FIELD.format, ("begin", "separate", "end"))
    return f"{begin}<w:r><w:instrText> {instruction} </w:instrText></w:r>{separate}{shown}{end}"


def run(text: str, look: str = "", space: str = ' xml:space="preserve"') -> str:
    return f"<w:r>{look and f'<w:rPr>{look}</w:rPr>'}<w:t{space}>{text}</w:t></w:r>"


def box(inside: str) -> str:
    """Return a text box as Word writes it, twice."""
    return (
        "<w:r><mc:AlternateContent><mc:Choice><wps:txbx><w:txbxContent>"
        f"{inside}</w:txbxContent></wps:txbx></mc:Choice><mc:Fallback><v:textbox><w:txbxContent>{inside}"
        "</w:txbxContent></v:textbox></mc:Fallback></mc:AlternateContent></w:r>"
    )


WORD = [
    # Runs that look alike are one.
    (
        run("Hel")
        + '<w:proofErr w:type="spellStart"/>'
        + run("lo", '<w:lang w:val="en-US"/>')
        + run(" you", "<w:noProof/>"),
        ["Hello you"],
        "<w:r><w:t>HELLO YOU</w:t></w:r>",
    ),
    (
        '<w:r w:rsidR="1"><w:t>Hel</w:t></w:r><w:r w:rsidR="2"><w:t>lo</w:t></w:r>',
        ["Hello"],
        '<w:r w:rsidR="1"><w:t>HELLO</w:t></w:r>',
    ),
    (
        run("A ") + run("brown", "<w:b/>") + run(" dog"),
        ['A <r i="1">brown</r> dog'],
        run("A ") + "<w:r><w:rPr><w:b/></w:rPr><w:t>BROWN</w:t></w:r>" + run(" DOG"),
    ),
    (run("A ", "<w:b/>") + run("brown") + run(" dog", "<w:b/>"), ['A <r i="1">brown</r> dog'], None),
    (run("A dog", "<w:b/>") + run(" ") + run("runs", "<w:b/>"), ["A dog runs"], None),
    ("<w:r><w:t> A dog </w:t></w:r>", ["A dog"], "<w:r><w:t>A DOG</w:t></w:r>"),
    ("<w:r><w:t><![CDATA[A & b]]></w:t></w:r>", ["A &amp; b"], "<w:r><w:t>A &amp; B</w:t></w:r>"),
    # Characters that are elements, and breaks.
    ("<w:r><w:t>e</w:t><w:noBreakHyphen/><w:t>mail</w:t></w:r>", ["e\u2011mail"], None),
    ("<w:r><w:t>Won</w:t><w:softHyphen/><w:t>der</w:t></w:r>", ["Wonder"], None),
    ("<w:r><w:tab/><w:t>A</w:t><w:tab/><w:t>b</w:t><w:br/></w:r>", ['A<br i="2"/>b'], None),
    # Elements around runs and between them.
    (
        run("See ") + f'<w:hyperlink r:id="r1">{run("this", "<w:u/>")}</w:hyperlink>' + run(" page"),
        ['See <g i="1">this</g> page'],
        run("SEE ")
        + '<w:hyperlink r:id="r1"><w:r><w:rPr><w:u/></w:rPr><w:t>THIS</w:t></w:r></w:hyperlink>'
        + run(" PAGE"),
    ),
    (f'<w:hyperlink r:id="r1">{run("All")}</w:hyperlink>', ["All"], None),
    (f'{run("A")}<w:hyperlink r:id="r1"><w:r><w:drawing/></w:r></w:hyperlink>', ["A"], None),
    (f"{run('A ')}<w:ins w:id='1'>{run('new')}</w:ins>{run(' dog')}", ['A <g i="1">new</g> dog'], None),
    (
        f"{run('A ')}<w:del w:id='1'><w:r><w:delText>old</w:delText></w:r></w:del>{run('dog')}",
        ['A <m i="1"/>dog'],
        None,
    ),
    (f"{run('A ')}<w:moveFrom w:id='1'>{run('old')}</w:moveFrom>{run('dog')}", ['A <m i="1"/>dog'], None),
    (
        f"{run('A ')}<w:sdt><w:sdtPr><w:id w:val='1'/></w:sdtPr><w:sdtContent>{run('dog')}"
        f"</w:sdtContent></w:sdt>{run(' b')}",
        ['A <g i="1">dog</g> b'],
        None,
    ),
    (
        f"{run('A ')}<w:sdt><w:sdtPr><w:dataBinding/></w:sdtPr><w:sdtContent>{run('Title')}</w:sdtContent></w:sdt>",
        ["A "],
        None,
    ),
    (f"{run('A')}<w:r><w:footnoteReference w:id='2'/></w:r>{run(' b')}", ['A<m i="1"/> b'], None),
    (f"{run('Let ')}<m:oMath><m:r><m:t>x+y</m:t></m:r></m:oMath>{run(' be')}", ['Let <m i="1"/> be'], None),
    (
        '<w:bookmarkStart w:id="0" w:name="a"/>' + run("A ") + '<w:bookmarkEnd w:id="0"/>' + run("dog"),
        ['A <m i="2"/>dog'],
        None,
    ),
    (
        "<w:r><w:ruby><w:rubyPr/><w:rt><w:r><w:t>yomi</w:t></w:r></w:rt><w:rubyBase><w:r><w:t>kanji</w:t></w:r>"
        f"</w:rubyBase></w:ruby></w:r>{run(' b')}",
        ["kanji b"],
        run("KANJI B", space=""),
    ),
    # Fields: instructions are no text, nor is what a program computes.
    (run("Page ") + field("PAGE", run("3")) + run(" of"), ['Page <x i="5" translate="no">3</x> of'], None),
    (run("For ") + field("MERGEFIELD Name", run("«Name»")), ['For <x i="5" translate="no">«Name»</x>'], None),
    (run("See ") + field('HYPERLINK "http://a.b"', run("our page")), ['See <g i="6">our page</g>'], None),
    (
        f'{run("See ")}<w:fldSimple w:instr=" REF a ">{run("Chapter 2")}</w:fldSimple>',
        ['See <g i="1">Chapter 2</g>'],
        None,
    ),
    (
        f'{run("No. ")}<w:fldSimple w:instr=" PAGE ">{run("2")}</w:fldSimple>',
        ['No. <x i="2" translate="no">2</x>'],
        None,
    ),
    (
        FIELD.format("begin") + "<w:r><w:instrText>TOC</w:instrText></w:r>" + FIELD.format("separate") + run("Title"),
        ["Title"],
        None,
    ),
    (run("End") + FIELD.format("end") + run("dog"), ['End<br i="1"/>dog'], None),
    # Texts within texts.
    (f"{run('Out')}{box('<w:p>' + run('In the box') + '</w:p>')}", ["<p>Out</p><p>In the box</p>"], None),
    (box(f"<w:p>{run('One')}</w:p><w:p>{run('Two')}</w:p>"), ["<p>One</p><p>Two</p>"], None),
    (run("1.2.3") + run("&#160;&amp;"), [], None),
]


def upper(content: str) -> str:
    """Translate a content, whose tags stay."""
    return re.sub(r"(<[^>]*>|&\w+;)|[^<&]+", lambda found: found[0] if found[1] else found[0].upper(), content)


def contents(data: bytes, name: str) -> list[str]:
    return [piece.content for piece in read_file(data, name).pieces() if isinstance(piece, Text)]


@pytest.mark.parametrize(("inside", "wanted", "inside_after"), WORD)
def test_a_paragraph_of_word(inside: str, wanted: list[str], inside_after: str | None) -> None:
    data = document("docx", f"<w:body><w:p><w:pPr><w:jc/></w:pPr>{inside}</w:p></w:body>")
    numbers = re.compile(r'i="\d+"')
    found = [numbers.sub("i", content) for content in contents(data, "a.docx")]
    assert found == [numbers.sub("i", content) for content in wanted]
    assert written(read_file(data, "a.docx")) == data
    out, _ = translated(data, "a.docx")
    assert_only_texts_differ(data, out)
    main = members(out)["word/document.xml"].decode()
    if inside_after is not None:
        assert main == part("w:document", f"<w:body><w:p><w:pPr><w:jc/></w:pPr>{inside_after}</w:p></w:body>")


def cell(attributes: str, shown: str, more: str = "") -> str:
    return f"<table:table-cell {attributes}><text:p>{shown}</text:p>{more}</table:table-cell>"


@pytest.mark.parametrize(
    ("kind", "inside", "wanted"),
    [
        (
            "pptx",
            '<a:p><a:pPr lvl="1"/><a:r><a:rPr lang="en-US" dirty="0"/><a:t>Two </a:t></a:r>'
            '<a:r><a:rPr lang="en-GB" err="1"/><a:t>men</a:t></a:r><a:endParaRPr/></a:p>',
            ["Two men"],
        ),
        (
            "pptx",
            '<a:p><a:r><a:rPr b="1"/><a:t>Two</a:t></a:r><a:br/><a:r><a:t>men talk</a:t></a:r></a:p>',
            ['<r i="1">Two</r><br i="1"/>men talk'],
        ),
        (
            "pptx",
            '<a:p><a:r><a:t>Slide </a:t></a:r><a:fld id="{1}" type="slidenum"><a:rPr/><a:t>7</a:t></a:fld></a:p>',
            ['Slide <x i="1" translate="no">7</x>'],
        ),
        ("pptx", "<a:p><a:r><a:t>Name\tDate\nPlace</a:t></a:r></a:p>", ['Name<br i="1"/>Date<br i="2"/>Place']),
        ("pptx", "<a:p><a:r><a:t>12 %</a:t></a:r></a:p><a:p/>", []),
        ("xlsx", "<si><t>A dog</t></si><si><t>12.5</t></si><si/>", ["A dog"]),
        (
            "xlsx",
            '<si><r><t xml:space="preserve">A </t></r><r><rPr><b/></rPr><t>dog runs</t></r></si>',
            ['<r i="1">A </r>dog runs'],
        ),
        ("xlsx", '<si><t>漢字</t><rPh sb="0" eb="2"><t>かんじ</t></rPh><phoneticPr fontId="1"/></si>', ["漢字"]),
        (
            "xlsx",
            '<si><t xml:space="preserve">One line\nand another\n</t></si>',
            ['One line<br i="1"/>and another<br i="2"/>'],
        ),
        ("xlsx", "<si><t>One_x000D_\ntwo</t></si>", ['One<br i="1"/>two']),
        (
            "odt",
            "<text:h>A <text:span>brown</text:span> dog<text:s/>runs</text:h>",
            ['A <g i="1">brown</g> dog<m i="2"/>runs'],
        ),
        (
            "odt",
            '<text:p>Go <text:a xlink:href="x"><text:span>there</text:span></text:a></text:p>',
            ['Go <g i="1">there</g>'],
        ),
        ("odt", "<text:p>A<text:line-break/>b<text:tab/>c</text:p>", ['A<br i="1"/>b<br i="2"/>c']),
        (
            "odt",
            "<text:p>A dog<text:note><text:note-citation>1</text:note-citation><text:note-body>"
            "<text:p>A note</text:p></text:note-body></text:note> runs</text:p>",
            ['<p>A dog<m i="1"/> runs</p><p>A note</p>'],
        ),
        (
            "odt",
            "<text:p>Page <text:page-number>3</text:page-number> of it</text:p>",
            ['Page <x i="1" translate="no">3</x> of it'],
        ),
        ("odt", "<text:tracked-changes><text:p>Old</text:p></text:tracked-changes><text:p>New</text:p>", ["New"]),
        (
            "odt",
            "<text:p><text:ruby><text:ruby-base>kanji</text:ruby-base><text:ruby-text>yomi</text:ruby-text>"
            "</text:ruby> b</text:p>",
            ["kanji b"],
        ),
        (
            "odt",
            '<text:p><text:bookmark-start text:name="a"/>A <text:bookmark-end text:name="a"/>dog</text:p>',
            ['A <m i="2"/>dog'],
        ),
        (
            "odt",
            "<text:p><draw:frame><draw:text-box><text:p>Inside</text:p></draw:text-box></draw:frame></text:p>",
            ["Inside"],
        ),
        (
            "ods",
            cell('office:value-type="string"', "A dog") + cell('office:value-type="float"', "Twelve") + cell("", "Two"),
            ["A dog", "Two"],
        ),
        ("ods", cell('office:value-type="string" table:formula="of:=A1"', "Computed"), []),
        (
            "ods",
            cell('office:value-type="float"', "12", "<office:annotation><text:p>A note</text:p></office:annotation>"),
            ["A note"],
        ),
        ("odp", "<draw:frame><draw:text-box><text:p>A slide</text:p></draw:text-box></draw:frame>", ["A slide"]),
        ("epub", "<p>A <b>brown</b> dog</p><pre>code</pre><script>a()</script>", ["A <b>brown</b> dog"]),
    ],
)
def test_a_paragraph_of_other_kinds(kind: str, inside: str, wanted: list[str]) -> None:
    data = document(kind, inside)
    numbers = re.compile(r'i="\d+"')
    assert [numbers.sub("i", one) for one in contents(data, f"a.{kind}")] == [numbers.sub("i", one) for one in wanted]
    assert written(read_file(data, f"a.{kind}")) == data
    assert_only_texts_differ(data, translated(data, f"a.{kind}")[0])


def test_prefixes_of_namespaces_may_be_any() -> None:
    data = document("docx", run("A big ") + run("dog", "<w:b/>"))
    xml = members(data)["word/document.xml"].decode()
    renamed = re.sub(r"(</?)w:", r"\1n1:", f"{xml}").replace("xmlns:w=", "xmlns:n1=")
    renamed = renamed.replace("<n1:r>", "<n1:p><n1:r>", 1).replace("</n1:document>", "</n1:p></n1:document>")
    out, count = translated(archive_of({"x.xml": renamed}), "a.docx")
    assert count == 1
    assert "<n1:r><n1:rPr><n1:b/></n1:rPr><n1:t>DOG</n1:t></n1:r>" in members(out)["x.xml"].decode()


def test_strict_documents_have_other_namespaces() -> None:
    strict = "http://purl.oclc.org/ooxml/wordprocessingml/main"
    xml = f'<w:document xmlns:w="{strict}"><w:p><w:r><w:t>A dog</w:t></w:r></w:p></w:document>'
    assert contents(archive_of({"word/document.xml": xml}), "a.docx") == ["A dog"]


@pytest.mark.parametrize("kind", ["docx", "odt", "epub"])
def test_other_entries_keep_their_compressed_bytes(kind: str) -> None:
    inside = {"docx": f"<w:p>{run('A dog')}</w:p>", "odt": "<text:p>A dog</text:p>", "epub": "<p>A dog</p>"}[kind]
    data = document(kind, inside)
    out, _ = translated(data, f"a.{kind}")
    assert members(out)["media/image1.png"] == PICTURE
    place, after = data.index(b"media/image1.png"), data.index(b"PK\3\4", data.index(b"media/image1.png"))
    assert data[place:after] in out
    assert kind == "docx" or out.startswith(data[: data.index(b"PK\3\4", 4)])


COLUMNS = f'<table {SHEET}><tableColumns><tableColumn id="1" name="A &amp; B"/></tableColumns></table>'
PIVOT = f'<pivotCacheDefinition {SHEET}><cacheField numFmtId="0" name="Region"/></pivotCacheDefinition>'
INLINE = f'<worksheet {SHEET}><c t="inlineStr"><is><t>Inline</t></is></c><f>"Formula"</f></worksheet>'


def test_names_of_columns_stay_and_sheets_have_texts_of_their_own() -> None:
    strings = f"<sst {SHEET}><si><t>A &amp; B</t></si><si><t>A dog</t></si><si><t>Region</t></si></sst>"
    entries = {
        "xl/workbook.xml": f"<workbook {SHEET}/>",
        "t.xml": COLUMNS,
        "p.xml": PIVOT,
        "s.xml": strings,
        "w.xml": INLINE,
    }
    assert contents(archive_of(entries), "a.xlsx") == ["A dog", "Inline"]


BOOK = {
    "mimetype": "application/epub+zip",
    "content.opf": '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata>'
    "<dc:title>The dog</dc:title><dc:creator>Ann</dc:creator></metadata></package>",
    "toc.ncx": '<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navLabel><text>Chapter &lt;1&gt;</text>'
    "</navLabel></ncx>",
    "a.xhtml": '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>One</title></head><body>'
    "<p>A dog</p></body></html>",
}


def test_a_book_has_a_title_and_a_table_of_contents() -> None:
    data = archive_of(BOOK)
    assert contents(data, "a.epub") == ["The dog", "Chapter &lt;1&gt;", "One", "A dog"]
    out, _ = translated(data, "a.epub")
    assert_only_texts_differ(data, out)
    assert "<dc:title>THE DOG</dc:title><dc:creator>Ann" in members(out)["content.opf"].decode()


def test_headers_of_open_documents_are_texts_and_placeholders_are_not() -> None:
    styles = part(
        "office:document-styles",
        "<style:master-page><style:header><text:p>Header</text:p></style:header><text:p>Click here</text:p>"
        "</style:master-page>",
    )
    entries = {"mimetype": "application/vnd.oasis.opendocument.text", "styles.xml": styles}
    assert contents(archive_of(entries), "a.odt") == ["Header"]


WORD_PARTS = (
    *(
        run("A big dog "),
        run("Two", "<w:b/>"),
        run(" men", "<w:i/>"),
        run(" "),
        run("3 ", "<w:lang/>"),
        run("&amp; 5 %"),
    ),
    *("<w:r><w:tab/></w:r>", "<w:r><w:br/></w:r>", "<w:r><w:footnoteReference w:id='1'/></w:r>", "<w:proofErr/>"),
    *(f'<w:hyperlink r:id="r1">{run("a link")}</w:hyperlink>', f"<w:ins w:id='1'>{run('new words', '<w:b/>')}</w:ins>"),
    *('<w:bookmarkStart w:id="7"/>', '<w:bookmarkEnd w:id="7"/>', f"<w:del>{run('gone')}</w:del>", "<m:oMath/>"),
    *(field("PAGE", run("12")), field("HYPERLINK", run("a page ")), FIELD.format("begin"), FIELD.format("end")),
    *(
        box(f"<w:p>{run('In the ')}{run('box', '<w:b/>')}</w:p>"),
        f"<w:sdt><w:sdtContent>{run('x y')}</w:sdtContent></w:sdt>",
    ),
)
OPEN_PARTS = (
    *(
        "A big dog ",
        "<text:span>two men</text:span>",
        "<text:a>a <text:span>link</text:span></text:a>",
        "<text:s/>",
        "3 ",
    ),
    *("<text:tab/>", "<text:line-break/>", "<text:span> </text:span>", "<text:page-number>3</text:page-number>"),
    *('<text:bookmark-start text:name="a"/>', '<text:bookmark-end text:name="a"/>', "<text:bookmark/>", "<!-- a -->"),
    "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>A note</text:p></text:note-body>"
    "</text:note>",
)
SLIDE_PARTS = (
    *('<a:r><a:rPr b="1"/><a:t>Two men </a:t></a:r>', '<a:r><a:rPr lang="en"/><a:t>talk</a:t></a:r>', "<a:br/>"),
    *("<a:r><a:t>A\tbig dog</a:t></a:r>", "<a:fld><a:t>7</a:t></a:fld>", "<a:r><a:t> runs.</a:t></a:r>"),
)
CELL_PARTS = (
    *("<r><t>A big </t></r>", "<r><rPr><b/></rPr><t>dog</t></r>", '<r><t xml:space="preserve"> runs\nfast </t></r>'),
    "<r><rPr><i/></rPr><t>3</t></r>",
)
BOOK_PARTS = (
    *("A big dog ", "<b>two men</b>", '<a href="b?c=1&amp;d=2">a <i>link</i></a>', "R&amp;D", "&#160;", "3 ", " runs."),
    *("<code>f(x)</code>", '<img src="a.png" alt="&lt;"/>', "<br/>", "<!-- a -->", "word<sup>1</sup>", "<wbr/>"),
    *('<span translate="no">Name</span>', "<ruby>one<rp>(</rp><rt>wan</rt><rp>)</rp></ruby>"),
)
PARAGRAPHS = {
    "docx": ("<w:p><w:pPr/>{}</w:p>", WORD_PARTS),
    "odt": ("<text:p>{}</text:p>", OPEN_PARTS),
    "ods": ('<table:table-cell office:value-type="string"><text:p>{}</text:p></table:table-cell>', OPEN_PARTS),
    "odp": ("<draw:frame><draw:text-box><text:p>{}</text:p></draw:text-box></draw:frame>", OPEN_PARTS),
    "epub": ("<p>{}</p>", BOOK_PARTS),
    "pptx": ("<a:p><a:pPr/>{}<a:endParaRPr/></a:p>", SLIDE_PARTS),
    "xlsx": ("<si>{}<phoneticPr/></si>", CELL_PARTS),
}


@pytest.mark.parametrize("kind", PARAGRAPHS)
@given(data=st.data())
@made
def test_made_documents_keep_their_structure(kind: str, data: st.DataObject) -> None:
    around, parts = PARAGRAPHS[kind]
    inside = data.draw(st.lists(st.lists(st.sampled_from(parts), max_size=8).map("".join), min_size=1, max_size=3))
    file = document(kind, "".join(map(around.format, inside)))
    name = f"a.{kind}"
    assert written(read_file(file, name)) == file
    for backwards in (False, True):  # a word may be in several elements, and then none has it
        assert_only_texts_differ(file, translated(file, name, backwards=backwards)[0], in_order=False)


# Documents that other libraries make and read.


def word_file() -> bytes:
    report = docx.Document()
    report.add_heading("The report", 0)
    paragraph = report.add_paragraph("A ")
    paragraph.add_run("brown").bold = True
    paragraph.add_run(" dog\truns.")
    report.add_paragraph("One point", style="List Bullet")
    report.add_table(1, 2).cell(0, 1).text = "In a cell"
    report.sections[0].header.paragraphs[0].text = "In the header"
    report.sections[0].footer.paragraphs[0].text = "In the footer"
    out = io.BytesIO()
    report.save(out)
    return out.getvalue()


def slides_file() -> bytes:
    show = pptx.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text = "The title"
    slide.placeholders[1].text = "One point\nTwo points"
    table = slide.shapes.add_table(1, 1, Inches(1), Inches(1), Inches(1), Inches(1)).table
    table.cell(0, 0).text = "In a cell"
    slide.notes_slide.notes_text_frame.text = "In the notes"
    out = io.BytesIO()
    show.save(out)
    return out.getvalue()


def sheets_file() -> bytes:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["Name", "Note"])
    sheet.append(["A dog", 12])
    sheet.append(["=SUM(B2)", "Two\nlines"])
    sheet["A2"].comment = Comment("A comment", "Ann")
    sheet.add_table(Table(displayName="T", ref="A1:B3"))
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def texts_of_word(data: bytes) -> list[str]:
    read: Any = docx.Document(io.BytesIO(data))
    parts = [read.sections[0].header, read.sections[0].footer, read.tables[0].cell(0, 1), read]
    return [paragraph.text for one in parts for paragraph in one.paragraphs]


def texts_of_slides(data: bytes) -> list[str]:
    slide = pptx.Presentation(io.BytesIO(data)).slides[0]
    table = next(shape.table for shape in slide.shapes if shape.has_table)
    frames = [shape.text_frame.text for shape in slide.shapes if shape.has_text_frame]
    return [*frames, table.cell(0, 0).text, slide.notes_slide.notes_text_frame.text]


def texts_of_sheets(data: bytes) -> list[str]:
    sheet = openpyxl.load_workbook(io.BytesIO(data)).active
    return [str(cell.value) for row in sheet.iter_rows(min_row=2) for cell in row] + [sheet["A2"].comment.text]


@pytest.mark.parametrize(
    ("name", "make", "read"),
    [
        ("a.docx", word_file, texts_of_word),
        ("a.pptx", slides_file, texts_of_slides),
        ("a.xlsx", sheets_file, texts_of_sheets),
    ],
)
def test_files_of_other_libraries(name: str, make: Callable[[], bytes], read: Callable[[bytes], list[str]]) -> None:
    data = make()
    assert written(read_file(data, name)) == data
    out, count = translated(data, name)
    assert count >= 3
    assert_only_texts_differ(data, out)
    assert read(out) == [text.upper() for text in read(data)]


def described() -> bytes:
    """Return a file of Word with properties."""
    report: Any = docx.Document(io.BytesIO(word_file()))
    core = report.core_properties
    core.title, core.subject, core.keywords, core.comments = "My dogs", "Dogs & cats", "dog, cat", "About them"
    core.author, core.category = "Ann Smith", "Animals"
    out = io.BytesIO()
    report.save(out)
    return out.getvalue()


OPEN_PROPERTIES = (
    '<office:document-meta xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:meta="urn:oasis:names:tc:opendocument:xmlns:meta:1.0" xmlns:dc="http://purl.org/dc/elements/1.1/">'
    "<office:meta><dc:title>My dogs</dc:title><meta:keyword>dog</meta:keyword><dc:creator>Ann</dc:creator>"
    "<meta:generator>Some Office</meta:generator></office:meta></office:document-meta>"
)
BOOK_PROPERTIES = (
    '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
    "<dc:title>My dogs</dc:title><dc:creator>Ann</dc:creator><dc:subject>Animals</dc:subject>"
    "<dc:description>About &lt;b&gt;them&lt;/b&gt;</dc:description></metadata></package>"
)


def with_entry(data: bytes, name: str, content: str) -> bytes:
    return archive_of(members(data) | {name: content.encode()})


@pytest.mark.parametrize(
    ("name", "data", "own", "asked"),
    [
        ("a.docx", described(), [], ["My dogs", "Dogs &amp; cats", "dog, cat", "About them", "Animals"]),
        ("a.odt", with_entry(document("odt", ""), "meta.xml", OPEN_PROPERTIES), [], ["My dogs", "dog"]),
        (
            "a.epub",
            with_entry(document("epub", ""), "OEBPS/content.opf", BOOK_PROPERTIES),
            ["My dogs"],
            ["My dogs", "Animals", "About &lt;b&gt;them&lt;/b&gt;"],
        ),
    ],
    ids=["docx", "odt", "epub"],
)
def test_properties_are_translated_if_they_are_asked_for(
    name: str, data: bytes, own: list[str], asked: list[str]
) -> None:
    known, plain = set(contents(data, name)), read_file(data, name, properties=True)
    assert known >= set(own)
    found = [piece.content for piece in plain.pieces() if isinstance(piece, Text)]
    assert [one for one in found if one not in known or one in own] == asked
    assert written(plain) == data
    out, _ = translated(data, name, properties=True)
    assert_only_texts_differ(data, out)
    if name == "a.docx":
        core = docx.Document(io.BytesIO(out)).core_properties
        assert (core.title, core.comments, core.author) == ("MY DOGS", "ABOUT THEM", "Ann Smith")


def test_looks_of_runs_stay_around_their_words() -> None:
    out, _ = translated(word_file(), "a.docx")
    paragraph: Any = docx.Document(io.BytesIO(out)).paragraphs[1]
    assert [(one.text, one.bold) for one in paragraph.runs] == [
        ("A ", None),
        ("BROWN", True),
        (" DOG", None),
        ("\t", None),
        ("RUNS.", None),
    ]


SOFFICE = shutil.which("soffice")
TEMPLATES = Path("/usr/lib/libreoffice/share/template")
REAL = sorted(path for path in TEMPLATES.rglob("*.ot?") if path.suffix in {".ott", ".ots", ".otp"})


@pytest.mark.skipif(not REAL, reason="needs LibreOffice's templates, of Debian's libreoffice-common")
def test_templates_of_libreoffice_keep_their_structure() -> None:
    for path in REAL:
        data = path.read_bytes()
        assert written(read_file(data, path.name)) == data
        out, _ = translated(data, path.name)
        assert_only_texts_differ(data, out)


@pytest.mark.skipif(SOFFICE is None, reason="needs LibreOffice")
def test_libreoffice_opens_translated_files(tmp_path: Path) -> None:
    files = {"a.docx": word_file(), "a.pptx": slides_file(), "a.xlsx": sheets_file()}
    files |= {path.name: path.read_bytes() for path in (REAL[0], REAL[-1])} if REAL else {}
    for folder, of in (("before", dict(files)), ("after", {name: translated(files[name], name)[0] for name in files})):
        (tmp_path / folder).mkdir()
        for name, data in of.items():
            (tmp_path / folder / name).write_bytes(data)
        convert = [
            str(SOFFICE),
            f"-env:UserInstallation=file://{tmp_path}/profile",
            "--headless",
            "--convert-to",
            "pdf",
        ]
        paths = [tmp_path / folder / name for name in of]
        subprocess.run([*convert, "--outdir", tmp_path / folder, *paths], check=True, capture_output=True, timeout=300)
    for name in files:
        before, after = ((tmp_path / folder / name).with_suffix(".pdf") for folder in ("before", "after"))
        assert 0.5 < after.stat().st_size / before.stat().st_size < 2
