"""Readers of files, one of each format: a file is read, its texts are parsed and written, and all else stays."""

import random
import struct
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.service.handlers.file_service import take_pieces
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.text.files.document import FileDocument, Text, known_formats, needed_memory
from jumok_serve.text.markup.parser import parse
from tests.support import office

MOST_S = 20.0
"""Processor time of an input; it takes milliseconds otherwise."""
MAX_CHARACTERS = ServiceLimits().max_characters

SEEDS = {
    "text": ("A dog runs.\n\n  Two men talk. \r\nend", "\ufeffA dog.\n"),
    "markdown": (
        "---\ntitle: a\n---\n# A *dog* #\n\n- one [link](a 'b') and `code`\n- [ ] **two** ~~three~~ _four_ <b>five</b>"
        '\n\n> 1. quoted &amp; \\* ![picture](x "y") <a@b.c>\n\n```py\ncode\n```\n\n'
        "a | b\n- | -\nc \\| d | e\n\n<!-- f -->\n",
        "Title\n=====\n\na  \nb\\\n\n    code\n\n[a]: b\n***\n<div>\nA\n</div>\n",
        "+++\na = 1\n+++\n\n::: tip\n:smile: {{ a }}\n:::\n\n!!! note\n    a [^1] $b$\n\n> [!TIP]\n> [a] ![a] [[b|c]]"
        "\n\nterm\n: means <https://a.b> http://a.b/c_d\n\n[^1]: note\n\n[a]: b\n$$\nx\n$$\n",
    ),
    "html": (
        "<!DOCTYPE html><html lang=en><head><title>A &amp; b</title><style>p {}</style></head><body><p class='a>b'>A "
        "<b>dog</b> &nbsp; <code>x</code> runs<br/>fast.<p translate=no>No.<ul><li>One<li>Two</ul><script>a<b</script>"
        "<!-- c --><img src=x alt='y'></body></html>",
    ),
    "po": (
        'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: nplurals=2; plural=(n != 1);\\n"'
        '\n\n#: a.c:1\n#, fuzzy, c-format\n#| msgid "old"\nmsgctxt "menu"\nmsgid "A \\"dog\\"\\n"\n"runs.\\t\\x41\\101"'
        '\nmsgstr ""\n\nmsgid "%d dog"\nmsgid_plural "%d dogs"\nmsgstr[0] ""\nmsgstr[1] "x"\n\n#~ msgid "gone"\n',
    ),
    "xliff": (
        '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE xliff [<!ELEMENT a (b)>]>\n<xliff version="1.2" xmlns="u">'
        '<file><body><trans-unit id="1"><source>Two <g id="1">men</g> &amp; a <x id="2"/>dog.</source></trans-unit>'
        '<trans-unit><source>A &own; cat</source><target state="new"/><note>n</note></trans-unit>'
        '<group translate="no"/></body></file></xliff>',
        '<xliff version="2.0"><file id="f"><unit id="1"><segment state="initial"><source><![CDATA[A <b>]]> <pc>dog</pc>'
        "</source><target>Alt</target></segment></unit></file></xliff>",
    ),
    "srt": (
        "1\n00:00:01,000 --> 00:00:02,500 X1:0\n{\\an8}<i>A dog</i> runs\nfast & far.\n\n"
        "2\r\n00:00:03,000 --> 00:00:04,000\r\n- One.\r\n- Two.\r\n",
    ),
    "vtt": (
        "WEBVTT - a\n\nNOTE b\nc\n\nSTYLE\n::cue {}\n\nintro\n00:01.000 --> 00:02.000 align:start\n"
        "<v Ann>A dog <00:01.500>runs &amp; sleeps\n\n01:00:03.000 --> 01:00:04.000\n- One\n- Two\n",
    ),
    "ass": (
        "[Script Info]\nTitle: a\n\n[Events]\n"
        "Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
        "Comment: 0,0:00:00.00,0:00:01.00,,,0,0,0,,a\nDialogue: 0,0:00:01.00,0:00:02.00,Default,Ann,0,0,0,,{\\an8}A "
        "{\\i1}dog{\\i0}\\Nruns {\\p1}m 0 0{\\p0}{x}fast,\\hfar.\n",
    ),
    "android": (
        '<?xml version="1.0" encoding="utf-8"?>\n<resources xmlns:x="u">\n<!-- a -->\n<string name="a">Don\\\'t'
        ' <x:g id="b" example="c">%1$s</x:g> &amp; \\u0041\\n<b>go</b> &lt;i>on&lt;/i></string><string name="b"'
        ' translatable="false">A</string><string name="c"><![CDATA[A <a href=\\"b\\">dog</a>]]></string><string'
        ' name="d">"  a dog "</string><string-array name="e"><item>One</item><item>@string/a</item></string-arr'
        'ay><plurals name="f"><item quantity="one">%d dog</item><item quantity="other">%d dogs</item></plurals>'
        "</resources>",
    ),
    "xcstrings": (
        '{\n  "sourceLanguage" : "en",\n  "strings" : {\n    "A dog" : {\n\n    },\n    "b" : {\n      "comment'
        '" : "c",\n      "localizations" : {\n        "en" : {\n          "stringUnit" : {\n            "state"'
        ' : "translated",\n            "value" : "Two %lld dogs"\n          }\n        }\n      }\n    },\n    '
        '"d" : { "shouldTranslate" : false },\n    "e" : {"localizations": {"de": {"stringUnit": {"state": "new'
        '", "value": ""}}}},\n    "f": {"localizations": {"en": {"variations": {"plural": {"one": {"stringUnit"'
        ': {"state": "translated", "value": "A dog"}}, "other": {"stringUnit": {"state": "translated", "value":'
        ' "Dogs"}}}}}}}\n  },\n  "version" : "1.0"\n}',
    ),
    "json": (
        '{\n  "a": "A <b>dog</b> &amp; <1>two</1> $t(b.c)\\n",\n  "k_one": "{{count}} dog", "k_other": "{{count'
        '}} dogs",\n  "n": {"a": ["x y", 1.5e3, true, null, {"u": "https://a.b/c"}], "e": "", "s": "\\u00e9\\ud'
        '83d\\ude42\\/"}\n}\n',
    ),
    "chrome": (
        '{"a": {"message": "Hello $USER$, a dog &lt; $1", "description": "d", "placeholders": {"user": {"conten'
        't": "$1"}}}}',
    ),
    "arb": (
        '{"@@locale": "en", "a": "{n, plural, one {a dog} other {dogs}}", "@a": {"description": "d"}, "b": "A dog"}',
    ),
    "properties": (
        "# a\n! b\r\na=A dog\\\n   runs\nb : It''s {0} '{1}' \\u00fc\\n\\\n next\nc   d \\= e\\t\n\\ k\\:x = y "
        "z\nempty=\nonly\nf=C:\\\\dogs",
    ),
    "strings": ('/* a */\n"key" = "A \\"dog\\" %@\\nnext \\U00e9";\n// b\nk2="c // d";\n"only";\n"e" = "";\n',),
    "yaml": (
        "# a\n---\nen:\n  a: A dog  # b\n  'b': 'It''s'\n  c: \"a \\\"q\\\" \\u00e9\"\n  d: [One, 'two', {e"
        ": f}]\n  n: ~\n  t: yes\n  s: :sym\n  x: &x A cat\n  y: *x\n  <<: {z: z}\n  l: |\n    One.\n\n    Two."
        "\n  f: >-\n    Three\n    four.\n  p:\n    one: dog\n    other: dogs\n  ? k\n  : v w\n  g: !!str tagge"
        "d\n",
    ),
    "qt": (
        '<?xml version="1.0"?>\n<!DOCTYPE TS>\n<TS version="2.1" language="de"><context><name>A</name><message>'
        '<source>&amp;Open %1 &lt;b&gt;dog&lt;/b&gt;</source><translation type="unfinished"></translation></mes'
        'sage><message numerus="yes"><source>%n dog(s)</source><translation type="unfinished"><numerusform></nu'
        'merusform><numerusform/></translation></message><message><source>a</source><translation type="vanished'
        '">b</translation></message><message><source>Two</source><translation type="unfinished"/></message></co'
        "ntext></TS>",
    ),
    "resx": (
        '<?xml version="1.0"?>\n<root><resheader name="a"><value>b</value></resheader><data name="c" xml:space='
        '"preserve"><value>A dog {0}\n&lt;b>runs&lt;/b></value><comment>d</comment></data><data name="e" type="'
        'f"><value>g</value></data></root>',
    ),
}
"""Files that fuzzing begins with."""
_RUNS = (
    '<w:p><w:pPr/><w:r><w:t>Two </w:t></w:r><w:hyperlink r:id="1"><w:r><w:rPr><w:b/></w:rPr><w:t>men</w:t></w:r>'
    '</w:hyperlink><w:r><w:tab/><w:t>talk</w:t></w:r><w:bookmarkStart w:id="1"/><w:r><w:fldChar w:fldCharType="begin"/>'
    '</w:r><w:r><w:instrText>PAGE</w:instrText></w:r><w:r><w:fldChar w:fldCharType="end"/></w:r>'
    '<w:bookmarkEnd w:id="1"/>'
    "<w:r><w:pict><w:txbxContent><w:p><w:r><w:t>Box</w:t></w:r></w:p></w:txbxContent></w:pict></w:r></w:p>"
)
_OPEN = (
    "<text:h>A <text:span>brown <text:a>dog</text:a></text:span><text:tab/>runs"
    "<text:note><text:p>Note</text:p></text:note>"
    '</text:h><table:table-cell office:value-type="string"><text:p>Cell<text:page-number>1</text:page-number></text:p>'
    "</table:table-cell>"
)
ARCHIVES = {
    "docx": _RUNS,
    "pptx": '<a:p><a:r><a:rPr b="1"/><a:t>A\tdog</a:t></a:r><a:br/><a:fld><a:t>1</a:t></a:fld>'
    "<a:r><a:t>runs</a:t></a:r></a:p>",
    "xlsx": "<si><t>A dog</t></si><si><r><t>A </t></r><r><rPr><b/></rPr><t>man\nruns</t></r><rPh><t>b</t></rPh></si>",
    "odt": _OPEN,
    "ods": _OPEN,
    "odp": _OPEN,
    "epub": SEEDS["html"][0].partition("<body>")[2].partition("</body>")[0],
}
"""Texts of archives that fuzzing begins with."""
PARTS = (
    *("<", ">", "</", "/>", "<!--", "-->", "<![CDATA[", "]]>", "<?", "?>", "&", "&#", ";", "&#x", "'", '"'),
    *("=", "\\", "[", "](", "]", "`", "``", "*", "**", "_", "~~", "|", "|-", "#", "- ", "> ", "1. ", "    "),
    *("  \n", "\n", "\n\n", "<!DOCTYPE a [", "<!ENTITY a '&b;'>", "<!ENTITY % a ''>"),
    *("<!ATTLIST a b CDATA ''>", "<!ELEMENT a (b)>", "%a;", "]>", "<script>", "</script", "<pre>", "<title>"),
    *("<source>", "</source>", "<target/>", "<trans-unit>", " translate='no'", "nplurals=", "charset="),
    *("msgid ", "msgstr[", '"\n"', "\\x", "\\777", "#, fuzzy", "00:00:01,000 --> 00:00:02,000\n", "WEBVTT"),
    *("NOTE", "{\\", "\\N", "<1:2>", "a ", "9" * 5000, "\r", "\x0b", "\xa0", "\u2028", "🙂", "\x00", "{", "}"),
    *('": "', '", "', "[[", "\\u00e9", "\\\n", "''", "{0}", "$t(", "&lt;b&gt;", ": ", "\n  ", "|\n", "&a "),
    *("*a", "!!a ", "<item quantity='few'>", "<x:g>", "</x:g>", "/*", "*/", "_few", '"plural"'),
    *('"localizations"', '"stringUnit"', '"de"', "<numerusform>", "type='unfinished'", "<value>", "é", "<w:p>"),
    *("</w:p>", "<w:r>", "</w:r>", "<w:t>", "</w:t>", '<w:fldChar w:fldCharType="begin"/>', "<w:del>"),
    *("<w:sdt>", '<w:fldChar w:fldCharType="separate"/>', '<w:fldChar w:fldCharType="end"/>', "<text:p>"),
    *("<text:span>", "<a:p>"),
)
"""Parts that mean something in a format."""


class Files:
    """The reader of a format, from the bytes of a file to the file with translated texts."""

    def __init__(self, file_format: str, bundle: Path | None = None) -> None:
        self._format = file_format
        self._markup = known_formats()[file_format].markup
        tracemalloc.start()

    def read(self, data: bytes) -> bool:
        """Read a file, or refuse it; all but its texts stays, in its time and memory; return True if it is read."""
        began = time.thread_time()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        try:
            most = needed_memory(data, "", self._format)
            self._rewrite(data)
            _, peak = tracemalloc.get_traced_memory()
        except InvalidArgumentError as error:
            if error.field == "file" and str(error).startswith("file: "):
                return False
            raise AssertionError("a file is refused without its place") from error
        took_s = time.thread_time() - began
        assert peak - before <= most, f"{peak - before} bytes, at most {most}"
        assert took_s < MOST_S, f"{took_s:.1f} s"
        return True

    def _rewrite(self, data: bytes) -> None:
        """Write a file with its texts as they are.

        A file may also get copies of texts without letters, or a language, once.
        """
        written = self._written(data)
        if written != data:
            assert self._format in {"po", "xcstrings", "qt"}
            assert self._written(written) == written

    def _written(self, data: bytes | bytearray) -> bytearray:
        language = "de" if self._format == "xcstrings" else ""
        steps = FileDocument.read(bytearray(data), "", self._format, language=language)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                document: FileDocument = end.value
                break
        writer, written, pieces, texts = document.writer(), bytearray(), document.pieces(), 0
        while taken := take_pieces(pieces):
            for piece in taken:
                written += writer.add(piece.written if isinstance(piece, Text) else piece)
                if isinstance(piece, Text) and len(piece.content) <= MAX_CHARACTERS:
                    self._translate(piece, texts)
                    texts += 1
        return written + writer.finish()

    def _translate(self, text: Text, number: int) -> None:
        """Parse a text as the service does, and write another text in its place: of several kinds by its number."""
        if self._markup is not None:
            document = parse(text.content, self._markup, known_formats()[self._format].rules)
            with suppress(InvalidArgumentError):  # a translation without the marks or placeholders of its text
                text.write(document.written(lambda block: block.escape(f"{block.text} b")))
        if self._format in ARCHIVES:  # their texts have tags of ours, which the server keeps
            return
        with suppress(InvalidArgumentError):
            text.write((text.content, f"{text.content} b", "", "- 1. | &lt; --> ]]> <")[number % 4])

    def seeds(self) -> Sequence[bytes]:
        """Return files of the format, in each encoding."""
        if self._format in ARCHIVES:
            return [office.document(self._format, ARCHIVES[self._format])]
        return [seed.encode(encoding) for seed in SEEDS[self._format] for encoding in ("utf-8", "utf-8-sig", "utf-16")]

    def mutate(self, data: bytes, source: random.Random) -> bytes | None:
        """Change parts of a text, half of the time: repeat, remove, move or add some."""
        if self._format in ARCHIVES:
            return self._mutate_entry(data, source)
        return self._mutate_text(data, source)

    def _mutate_entry(self, data: bytes, source: random.Random) -> bytes | None:
        """Change the text of an entry of an archive, if it is whole."""
        try:
            entries = office.members(data)
        except (
            AssertionError,
            EOFError,
            KeyError,
            OSError,
            RuntimeError,
            ValueError,
            struct.error,
            zipfile.BadZipFile,
            zlib.error,
        ):
            return None
        names = [name for name in entries if not name.endswith((".png", ".bin"))]
        changed = self._mutate_text(entries[name := source.choice(names)], source) if names else None
        return None if changed is None else office.archive_of({**entries, name: changed}, source.choice((0, 8)))

    @staticmethod
    def _mutate_text(data: bytes, source: random.Random) -> bytes | None:
        encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
        text = data.decode(encoding, "ignore")
        if not text or source.random() < 0.5:
            return None
        for _ in range(source.choice((1, 1, 2, 4))):
            start, end = sorted(source.choices(range(len(text) + 1), k=2))
            place = source.randrange(len(text) + 1)
            part = source.choice((text[start:end], "", source.choice(PARTS)))
            times = source.choice((1, 1, 2, 2 ** source.randrange(14)))
            repeated = part * min(times, 1 + LONGEST // max(1, len(part)))  # what is beyond is cut
            text = (text[:place] + repeated + text[min(place + end - start, len(text)) if not part else place :])[
                :LONGEST
            ]
        return text.encode(encoding, "ignore")


LONGEST = 2**13
"""Characters of a file that is made of parts."""
globals().update({name: partial(Files, name) for name in (*SEEDS, *ARCHIVES)})
