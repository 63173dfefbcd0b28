"""Subtitles: cues, times, tags and codes stay, as other readers of the formats see them, and wrong times are named."""

import re
from io import StringIO

import pysubs2
import pytest
import webvtt
from hypothesis import given
from hypothesis import strategies as st

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.text.files.document import MAX_READ
from tests.support.files import made, rewritten, texts

WORDS = st.lists(
    st.sampled_from(
        [
            *(
                "a",
                "dog",
                "Größe",
                "<i>",
                "</i>",
                "<c.x>",
                "</c>",
                "&",
                "&amp;",
                "<",
                "-",
                "12",
                "한국어",
                "{b}",
                "...",
                "♪",
            ),
            *("{\\i1}", "{\\i0}", "{\\an8}", "{\\r}", "<b>a</b>", "ANNA:", "[door]", "<v Bob>", "A\xa0!"),
        ]
    ),
    min_size=1,
    max_size=8,
).map(" ".join)
LINES = st.lists(WORDS, min_size=1, max_size=3)
ENDS = st.sampled_from(["\n", "\r\n"])
SRT = (
    "1\n00:00:01,000 --> 00:00:02,500\n{\\an8}Two women\nare talking.\n\n"
    "2\n00:00:03,000 --> 00:00:04,000\n- A <i>dog</i>?\n- R&D.\n"
)
VTT = (
    "WEBVTT - all\nKind: captions\n\nNOTE\na note\n\n"
    "name\n00:01.000 --> 00:02.500 align:left\n<v Bob>Two <00:01.500>women &amp; a dog.\n"
)
ASS = (
    "[Script Info]\n; a comment\nTitle: A dog\nScriptType: v4.00+\n\n"
    "[V4+ Styles]\nFormat: Name, Fontname, Fontsize\nStyle: Default,Arial,20\n\n[Events]\n"
    "Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
    "Comment: 0,0:00:00.00,0:00:01.00,Default,,0,0,0,,A comment\n"
)
MARKS = {
    "srt": re.compile(r"</?[A-Za-z][^<>]*>|\{\\[^{}]*\}"),
    "vtt": re.compile(r"<[^<>]*>|\{\\[^{}]*\}"),
    "ass": re.compile(r"\{\\p1\}.*?\{\\p0\}|\{[^{}]*\}"),
}
DIALOGUE = "Dialogue: 0,0:00:01.00,0:00:02.50,Default,Ann,0,0,0,,"
CUE = "00:00:01,000 --> 00:00:02,000\n"


def time(second: int, point: str) -> str:
    return f"00:{second // 60 % 60:02}:{second % 60:02}{point}000"


@st.composite
def srt_files(draw: st.DrawFn) -> str:
    end, cues = draw(ENDS), draw(st.lists(LINES, max_size=5))
    blank = draw(st.sampled_from([end, end * 2, f" {end}", ""]))
    parts = []
    for number, lines in enumerate(cues, start=1):
        settings = draw(st.sampled_from(["", "  X1:40 X2:600", " "]))
        times = f"{time(number, ',')} --> {time(number + 1, ',')}{settings}"
        parts.append(end.join([str(number), times, *lines]) + end)
    return blank.join(parts) + draw(st.sampled_from(["", end]))


@st.composite
def vtt_files(draw: st.DrawFn) -> str:
    end, cues = draw(ENDS), draw(st.lists(LINES, max_size=5))
    parts = [draw(st.sampled_from(["WEBVTT", "WEBVTT title", f"WEBVTT{end}Kind: captions"])) + end]
    for number, lines in enumerate(cues, start=1):
        if draw(st.booleans()):
            parts.append(draw(st.sampled_from(["NOTE a note", f"STYLE{end}::cue {{}}"])) + end)
        name = draw(st.sampled_from([[], ["intro"], ["7"]]))
        times = f"{time(number, '.')} --> {time(number + 1, '.')}{draw(st.sampled_from(['', ' line:0']))}"
        parts.append(end.join([*name, times, *lines]) + end)
    return end.join(parts)


@st.composite
def ass_files(draw: st.DrawFn) -> str:
    texts = draw(st.lists(LINES.map(draw(st.sampled_from(["\\N", "\\n", "\\h"])).join), max_size=5))
    drawing = draw(st.sampled_from(["", "{\\p1}m 0 0 l 1 0{\\p0}", "{\\k20}"]))
    content = ASS + "".join(f"{DIALOGUE}{drawing}{text}\n" for text in texts)
    return content.replace("\n", draw(ENDS))


MADE = {"srt": srt_files(), "vtt": vtt_files(), "ass": ass_files()}


def other_words(text: str) -> str:
    return re.sub(r"[^\W\d_]+(?![^<]*>)(?![^&\s]*;)", "wort", text)


def events(content: str, name: str) -> list[tuple[object, ...]]:
    """What another reader finds in a file: times, names and styles, tags and codes."""
    if name == "vtt":
        cues = webvtt.from_buffer(StringIO(content, newline=None)).captions
        return [(cue.identifier, cue.start, cue.end, *MARKS[name].findall(cue.raw_text)) for cue in cues]
    subtitles = pysubs2.SSAFile.from_string(content, format_=name, keep_html_tags=True, keep_ssa_tags=True)
    return [(one.start, one.end, one.style, one.name, one.type, *MARKS[name].findall(one.text)) for one in subtitles]


@pytest.mark.parametrize("name", MADE)
@given(data=st.data())
@made
def test_nothing_changes_without_a_change(name: str, data: st.DataObject) -> None:
    content = data.draw(MADE[name])
    assert rewritten(content, name) == content


@pytest.mark.parametrize("name", MADE)
@given(data=st.data())
@made
def test_translated_cues_have_the_structure_of_the_file(name: str, data: st.DataObject) -> None:
    content = data.draw(MADE[name])
    translated = rewritten(content, name, other_words)
    assert events(translated, name) == events(content, name)
    assert len(translated.splitlines()) <= len(content.splitlines())
    assert re.sub(r"[^\r\n]+", "", translated).startswith("\r") is re.sub(r"[^\r\n]+", "", content).startswith("\r")


def test_texts_of_srt() -> None:
    found = [(text.content, text.line) for text in texts(SRT, "srt")]
    assert found == [("Two women are talking.", 3), ("A <t0>dog</t0>?", 8), ("R&amp;D.", 9)]
    translations = {"Two women are talking.": "Zwei sehr junge Frauen reden.", "R&amp;D.": "F&amp;E &lt;x."}
    written = rewritten(SRT, "srt", lambda text: translations.get(text, text))
    assert "{\\an8}Zwei sehr junge\nFrauen reden.\n\n2\n" in written
    assert written.endswith("\n- A <i>dog</i>?\n- F&E <x.\n")


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("srt", f"{CUE}- {{\\an8}}A man", ["A man"]),
        ("srt", f"{CUE}<i>{{\\an8}}A man</i>", ["A man"]),
        ("srt", f"{CUE}{{\\i1}}A{{\\i0}} dog", ["<t0>A</t0> dog"]),
        ("srt", f"{CUE}<i>A man\n\n2\n{CUE}is <b>here</i>.", ["A man", "is <t0/>here<t1/>."]),
        ("srt", f"{CUE}♪ La la ♪\n♪ Lo lo ♪", ["La la", "Lo lo"]),
        ("srt", f"{CUE}♪ La la\nlo lo ♪", ["La la lo lo"]),
        (
            "srt",
            f"{CUE}ANNA: Hello,\nyou.\nBOB 2: Hi.\nThis is\nit: x",
            ["Hello, you.", "Hi. This is it: x"],
        ),
        ("srt", f"{CUE}- ANNA:\nHello.\n{{\\an8}}O'HARA: <i>B</i> c", ["Hello.", "<t0>B</t0> c"]),
        ("srt", f"{CUE}>> ANNA: Hello.\n>>> A dog\n>runs", ["Hello.", "A dog >runs"]),
        ("vtt", f"WEBVTT\n\n{CUE}&gt;&gt; Hello.".replace(",", "."), ["Hello."]),
        ("srt", f"{CUE}MAN: HI THERE.\nNot Upper: a", ["MAN: HI THERE. Not Upper: a"]),
        ("srt", f"{CUE}[door]\nWho is\nthere?", ["[door]", "Who is there?"]),
        ("srt", f"{CUE}<i>A man</i>\r\n<i>is here</i>", ["A man is here"]),
        ("srt", f"{CUE}<i>- A man</i>\n<i>- B</i>", ["A man", "B"]),
        ("srt", f"{CUE}<i>A</i>\n<b>B</b>", ["<t0>A</t0> <t3>B</t3>"]),
        ("srt", f"{CUE}- What?\n- <i>No!</i>", ["What?", "No!"]),
        ("srt", f"{CUE}It is\n-5 degrees", ["It is -5 degrees"]),
        ("srt", f"{CUE}1984\n2001 <i>12</i>", []),
        ("srt", f'{CUE}<font color="#f00">A <b>dog</b></font> runs', ["<t0>A <t1>dog</t1></t0> runs"]),
        ("srt", f"{CUE}Two\\Nmen\\hrun", ["Two men&nbsp;run"]),
        ("srt", f"{CUE}It is in C:\\News\\home.", ["It is in C:\\News\\home."]),
        ("srt", f"{CUE}{{y:i}}A <3 & {{b}}", ["A &lt;3 &amp; {b}"]),
        ("srt", f"\n1:00:01.5 --> 1:00:02,000 X1:1 Y1:2\nA\n2\n{CUE}B", ["A", "B"]),
        ("srt", f"1\r{CUE}Two\rmen\r".replace("\n", "\r"), ["Two men"]),
        ("vtt", "WEBVTT\n00:01.000 --> 00:02.000\nA\n0:00:02.000-->0:00:03.000\nB", ["A", "B"]),
        ("vtt", "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:0\n\n7\n00:01.000 --> 00:02.000\nA", ["A"]),
        ("vtt", "WEBVTT\n\nREGION\nid:x\n\nNOTE it\n\nNOTE\n00:01.000 --> 00:02.000\nA", ["A"]),
        ("vtt", VTT.replace("women", "<c.yellow.bg>women</c>"), ["Two <t0/><t1>women</t1> &amp; a dog."]),
        ("vtt", VTT.replace("Two", "<v.loud Ann>A</v> <v Cy>B\n<v Bob>C"), ["A", "B", "C <t0/>women &amp; a dog."]),
        (
            "vtt",
            VTT.replace("Two", "<ruby>A<rt>a</rt>b<rt>c</ruby>"),
            ["<t0>A<t1/>b<t2/></t0> <t4/>women &amp; a dog."],
        ),
        ("vtt", VTT.replace("Two", "<lang en>A</lang>"), ["<t0>A</t0> <t2/>women &amp; a dog."]),
        ("ass", f"{ASS}{DIALOGUE}A, b\\N{{\\pos(1,2)}}c{{note}}.", ["A, b <t1/>c<t2/>."]),
        ("ass", f"{ASS}{DIALOGUE}- A\\N- {{\\fs20}}B{{\\fs}}", ["A", "B"]),
        ("ass", f"{ASS}{DIALOGUE}{{\\an8\\p1}}m 0 0{{\\p0}}A {{\\p2}}l 1 0", ["A"]),
        ("ass", f"{ASS}{DIALOGUE}{{\\k20}}A {{\\kf30}}dog", ["A <t0/>dog"]),
        ("ass", f"{ASS}{DIALOGUE}\\hA {{\\b1\\c&HFF&}}dog{{\\b0\\c}}\\h< b", ["A <t0>dog</t0>&nbsp;&lt; b"]),
        ("ass", f"{ASS}{DIALOGUE}{{\\b1}}A{{\\r}} {{\\1c&HF&}}b{{\\1c&HE&}} c", ["<t0>A</t0> <t2>b</t2> c"]),
        ("ass", ASS.replace("Layer, ", "") + DIALOGUE.replace("0,0:", "0:", 1) + "A, b", ["A, b"]),
        ("ass", f"[Script Info]\n[Events]\n{DIALOGUE}A", ["A"]),
        ("ass", ASS, []),
    ],
)
def test_texts(name: str, content: str, found: list[str]) -> None:
    assert [text.content for text in texts(content, name)] == found
    assert rewritten(content, name) == content


@pytest.mark.parametrize(
    ("name", "cue", "translation", "written"),
    [
        ("srt", "Two\nmen run", "Zwei M\u00e4nner rennen --> hier", "Zwei M\u00e4nner rennen ->\nhier"),
        ("srt", "A <i>b</i>{\\an8} c", "<t0>B</t0> C<t2/> A", "<i>B</i> C{\\an8} A"),
        ("srt", "<i>A man</i>\n<i>is here</i>", "Ein Mann ist da", "<i>Ein Mann</i>\n<i>ist da</i>"),
        ("srt", "<i>A man</i>\n<i>is here</i>", "Da", "<i>Da</i>\n<i></i>"),
        ("srt", "- A\n- B", "C - D", "- C - D\n- C - D"),
        ("srt", "A\\Nb", "C D", "C\\ND"),
        ("vtt", "A <00:01.100>b <00:01.200>c", "C <t1/>B <t0/>A &amp;", "C <00:01.100>B <00:01.200>A &amp;"),
        ("ass", "A\\Nb\\Nc{x}d", "A {b} C<t2/> D", "A (b)\\NC{x}\\ND"),
        ("ass", "A\\hb{\\k1}c{\\k2}d", "A\u00a0B<t1/> C<t0/> D", "A\\hB{\\k1} C{\\k2} D"),
    ],
)
def test_translations_are_written_with_the_marks_of_the_cue(
    name: str, cue: str, translation: str, written: str
) -> None:
    before = {"srt": CUE, "vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\n", "ass": f"{ASS}{DIALOGUE}"}[name]
    assert rewritten(before + cue, name, lambda _: translation) == before + written


def test_lines_of_texts() -> None:
    assert [text.line for text in texts(f"{CUE}\n- A\n- B\n\n{CUE}C", "srt")] == [3, 4, 7]
    assert [text.line for text in texts(f"{ASS}{DIALOGUE}A\\N- B", "ass")] == [13, 13]


def test_cues_with_an_empty_line_inside() -> None:
    content = SRT.replace("\n\n2", "\n2").replace("are", "\nare")
    assert [text.content for text in texts(content, "srt")][:2] == ["Two women", "are talking."]
    assert rewritten(content, "srt") == content


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "srt",
            SRT.replace("00:00:03,000 -->", "00:00:3,000 -->"),
            "line 7: the times of a cue must be as 00:00:01,000",
        ),
        ("srt", SRT.replace("00:00:01,000 -->", "00:61:01,000 -->"), "line 2: the times"),
        ("srt", SRT.replace("00:00:01,000 -->", "-00:00:01,000 -->"), "line 2: the times"),
        ("srt", SRT.replace("00:00:01,000 -->", "00:00:01,000 ->"), "line 2: the times .* got '00:00:01,000 -> 00"),
        ("srt", SRT.replace("00:00:03,000 -->", "00:00:03,000 =>"), "line 7: the times"),
        ("srt", SRT.replace("00:00:03,000 -->", "00:00:03,000").replace("\n\n", "\n"), "line 6: the times"),
        ("srt", SRT.replace("00:00:03,000 --> 00:00:04,000", "00:00:03,000"), "line 7: the times"),
        ("srt", SRT.replace("--> 00:00:04,000", "-->"), "line 7: the times .* got '00:00:03,000 -->': mend them"),
        ("srt", "no cue\n", "line 1: a cue must begin with times"),
        ("srt", "1\nTwo women\n", "line 2: a cue must begin with times, as 00:00:01,000 .* got 'Two women'"),
        ("vtt", SRT, "line 1: the first line must be WEBVTT, got '1.*': mend it, or give the format srt"),
        ("vtt", "", "line 1: the first line must be WEBVTT"),
        ("vtt", VTT.replace("00:01.000", "00:01,000"), "line 8: the times of a cue must be as 00:00:01.000"),
        ("vtt", VTT.replace("-->", "->"), "line 8: the times"),
        ("vtt", "WEBVTT\n00:01.000 -> 00:02.000\nA", "line 2: the times"),
        ("vtt", "WEBVTT\n\na text\n", "line 3: a cue must begin with times"),
        ("ass", SRT, r"line 1: a section, as \[Script Info\], must begin the file, got '1'"),
        ("ass", f"{ASS}Dialogue: 0,0:00:01.00,A", "line 13: a dialogue must have 10 fields, as Format says, got"),
        ("ass", ASS + DIALOGUE.replace("0:00:02.50", "0:00:02"), "line 13: times must be as 0:00:01.00, got '0:00:02'"),
        ("ass", ASS.replace(", Effect, Text", ", Text, Effect"), "line 11: Text must be the last of"),
        ("ass", ASS.replace("Effect, Text", "," * 10_000), "line 11: Text must be the last of at most 64 fields"),
    ],
)
def test_a_bad_file_names_the_line(name: str, content: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        rewritten(content, name)


@pytest.mark.parametrize(("name", "content"), [("srt", SRT), ("vtt", VTT), ("ass", f"{ASS}{DIALOGUE}Two\n{DIALOGUE}A")])
def test_a_text_far_too_long_stays_as_it_is(name: str, content: str) -> None:
    content = content.replace("Two", f"R&amp;D <{'ab ' * 110_000}") + "\n" * 2 + content[content.rfind("\n\n") + 2 :]
    long, *others = texts(content, name)
    assert len(long.content) > MAX_READ
    assert others
    assert long.write(f"{long.content}!") == long.written
