"""Subtitles: cues and their times stay, and wrong ones are named."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.text.files.document import MAX_READ
from tests.support.files import made, rewritten, texts

WORDS = st.lists(
    st.sampled_from(["a", "dog", "Größe", "<i>", "</i>", "&", "&amp;", "<", "-", "12", "한국어", "{b}", "...", "♪"]),
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


def time(second: int, point: str) -> str:
    return f"00:{second // 60 % 60:02}:{second % 60:02}{point}000"


@st.composite
def srt_files(draw: st.DrawFn) -> str:
    end, cues = draw(ENDS), draw(st.lists(LINES, max_size=5))
    blank = draw(st.sampled_from([end, end * 2, f" {end}"]))
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


CASES = st.one_of(srt_files().map(lambda content: ("srt", content)), vtt_files().map(lambda content: ("vtt", content)))


@given(CASES)
@made
def test_nothing_changes_without_a_change(case: tuple[str, str]) -> None:
    name, content = case
    assert rewritten(content, name) == content


@given(CASES)
@made
def test_translated_cues_have_the_structure_of_the_file(case: tuple[str, str]) -> None:
    name, content = case
    translated = rewritten(content, name, lambda text: re.sub(r"[^\W\d_]+(?![^<]*>)(?![^&\s]*;)", "wort", text))
    assert [line for line in translated.splitlines() if "-->" in line] == [
        line for line in content.splitlines() if "-->" in line
    ]
    assert len(texts(translated, name)) == len(texts(content, name))
    assert len(translated.splitlines()) <= len(content.splitlines())
    assert re.sub(r"[^\r\n]+", "", translated).startswith("\r") is re.sub(r"[^\r\n]+", "", content).startswith("\r")


def test_texts_of_srt() -> None:
    found = [(text.content, text.line) for text in texts(SRT, "srt")]
    assert found == [("Two women are talking.", 3), ("- A <i>dog</i>?", 8), ("- R&amp;D.", 9)]
    translations = {"Two women are talking.": "Zwei sehr junge Frauen reden.", "- R&amp;D.": "- F&amp;E &lt;x."}
    written = rewritten(SRT, "srt", lambda text: translations.get(text, text))
    assert "{\\an8}Zwei sehr junge\nFrauen reden.\n\n2\n" in written
    assert written.endswith("\n- A <i>dog</i>?\n- F&E <x.\n")


def test_texts_of_vtt() -> None:
    assert [text.content for text in texts(VTT, "vtt")] == ["<v Bob>Two", "women &amp; a dog."]
    assert rewritten(VTT, "vtt", str.upper).endswith("<V BOB>TWO <00:01.500>WOMEN &AMP; A DOG.\n")


def test_cues_without_an_empty_line_between_and_with_one_inside() -> None:
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
        ("srt", SRT.replace("--> 00:00:04,000", "-->"), "line 7: the times .* got '00:00:03,000 -->': mend them"),
        ("srt", "no cue\n", "line 1: a cue must begin with times"),
        ("vtt", SRT, "line 1: the first line must be WEBVTT, got '1': mend it, or give the format srt"),
        ("vtt", VTT.replace("00:01.000", "00:01,000"), "line 8: the times of a cue must be as 00:00:01.000"),
        ("vtt", "WEBVTT\n\na text\n", "line 3: the times"),
    ],
)
def test_a_bad_file_names_the_line(name: str, content: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        rewritten(content, name)


@pytest.mark.parametrize("name", ["srt", "vtt"])
def test_a_text_far_too_long_stays_as_it_is(name: str) -> None:
    content = (SRT if name == "srt" else VTT).replace("Two", f"R&amp;D <{'ab ' * 110_000}")
    long, *others = texts(content, name)
    assert len(long.content) > MAX_READ
    assert others
    assert long.write(f"{long.content}!") == long.written
