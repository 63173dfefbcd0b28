"""Sentence boundaries of long and hostile texts: work in proportion, and the same results on ordinary text."""

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencex
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jumok
from jumok_proto.errors import DeadlineExceededError
from jumok_serve.text import sentence_splitting
from jumok_serve.text.sentence_splitting import ADVANCE, MAX_PIECE, MAX_STOPS, MIN_PIECE, sentence_spans, split
from jumok_serve.translator import Translator
from tests.support.growth import assert_linear
from tests.support.hang import HANG_S
from tests.support.servers.in_process_server import serving

WIDE_SPACES = "\xa0\u1680\u2000\u2009\u202f\u205f\u3000"
FAMILIES = {
    "opening quotation marks": "\u201c",
    "straight quotation marks": '"',
    "apostrophes": " '",
    "guillemets": "«",
    "corner brackets": "「あ。",
    "brackets": "([{<",
    "numbers in brackets": "(1) A. ",
    "full stops": ".",
    "spaced full stops": ". ",
    "full stops of scripts": "\u0964a\u06d4b\u0589 ",
    "full stops after quotations": "\u201d.",
    "initials": "A. ",
    "initials before wide spaces": "A\u202f. ",
    "abbreviations": "e.g.",
    "digits": "1",
    "numbers": "1. ",
    "one word": "a",
    "combining marks": "a\u0301\u0323",
    "emoji": "😀🏽\u200d",
    "alternating scripts": "aяあ한",
    "list markers": "\n1) a",
    "newlines": "\n",
    "line separators": "\u2028.",
    "white space": " \t\xa0",
    "addresses": "a@b.cd ",
    "mixed quotations": "\"A. 'B.' «C. (D. ",
    "wide full stops": "\u3002",
    "spaced wide full stops": "\u3002 ",
    "full stops and ellipses": ". \u2026",
    "full stops of two scripts": "\u0964\u1362",
}
LENGTHS = (12_500, 100_000)
RUNS = re.compile(
    "[.!?][.!? \\t]*|\u2026+|[" + sentence_splitting._TERMINATORS + sentence_splitting._WIDE_TERMINATORS + "]"
)
"""Stops that take the library time in Catalan and Danish, even in a row; of ASCII and ellipses a run does."""


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the length of each piece that the library splits, and check its number of stops."""
    lengths: list[int] = []
    segment = sentencex.segment

    def counted(language: str, text: str) -> Any:
        lengths.append(len(text))
        assert len(RUNS.findall(text)) <= MAX_STOPS
        return segment(language, text)

    monkeypatch.setattr(sentencex, "segment", counted)
    return lengths


@pytest.mark.parametrize("family", FAMILIES)
def test_work_grows_in_proportion_to_a_text(family: str, work: list[int]) -> None:
    unit = FAMILIES[family]
    for language in ("en", "it", "ja"):
        for length in LENGTHS:
            work.clear()
            text = (unit * length)[:length]
            end = 0
            for start, after in sentence_spans(text, language):
                assert end <= start < after
                assert not text[end:start].strip()
                end = after
            assert not text[end:].strip()
            lines = len(text.splitlines())
            assert max(work, default=0) <= MAX_PIECE
            assert len(work) <= lines + length * ADVANCE / MIN_PIECE
            assert sum(work) <= length * ADVANCE


def test_time_grows_in_proportion_to_a_text() -> None:
    assert_linear(lambda length: "\u201c" * length, lambda text: list(sentence_spans(text, "en")), MAX_PIECE)


VOCABULARY = (
    "the a cat dog bird house tree sleeps sings reads book women red over under with of 12 3.5 it's don't well-known "
    "street Tom Anna Berlin i.e. e.g. Dr. Mr. U.S. p.m. Straße größer caf\xe9"
)


def made_sentences(seed: int, number: int) -> Iterator[str]:
    """Make sentences with quotations, brackets, initials and abbreviations."""
    chosen = random.Random(seed)
    for _ in range(number):
        words = chosen.choices(VOCABULARY.split(), k=chosen.randint(3, 25))
        said = " ".join([words[0].capitalize(), *words[1:]])
        shape = chosen.choice(
            ("{}", "{}", "{}", '"{}," he said', "He said: \u201c{}\u201d", "{} (so he said)", "J. R. {}")
        )
        yield shape.format(said) + chosen.choice(".......!?…")


@pytest.mark.parametrize("language", ["en", "de", "fr"])
def test_pieces_of_ordinary_text_are_split_as_the_library_splits_it(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentence_splitting, "ends_sentence", lambda *_: True)
    differing = sentences = 0
    for seed in range(40):
        text = " ".join(made_sentences(seed, 5 + 3 * seed))
        whole = [part.strip() for part in sentencex.segment(language, text)]
        ours = [text[start:end] for start, end in sentence_spans(text, language)]
        sentences += len(whole)
        differing += len(set(whole) ^ set(ours))
        if len(text) <= MAX_PIECE:
            assert ours == whole
    assert sentences > 2000
    assert differing == 0


@pytest.mark.parametrize("space", WIDE_SPACES)
def test_wide_white_space_before_a_full_stop_ends_a_sentence(space: str) -> None:
    for text in (f"A{space}. Is it?", f"Plan B {space}. Is it?", f"He said: J{space}{space}. Is it?"):
        first, second = split(text, "en").sentences
        assert (first, second) == (text.removesuffix(" Is it?"), "Is it?")


def test_a_text_that_the_library_fails_on_is_split_at_its_punctuation(monkeypatch: pytest.MonkeyPatch) -> None:
    class Panic(BaseException):
        pass

    def fail(language: str, text: str) -> None:
        raise Panic("byte index 2 is not a char boundary")

    monkeypatch.setattr(sentencex, "segment", fail)
    text = ' A cat sleeps. "Is it?" Yes!\n天気。はい。 No end'
    assert split(text, "en").sentences == ("A cat sleeps.", '"Is it?"', "Yes!", "天気。", "はい。", "No end")
    long = "A cat sleeps. " * 1000
    assert split(long, "en").sentences == ("A cat sleeps.",) * 1000


STOPS = st.sampled_from(sentence_splitting._ALL_TERMINATORS)
OTHERS = st.sampled_from(
    "\"'\u201c\u201d\u2019\xbb)]}([\u300c\u300d\u300f \t\n\x1c\x85\xa0\u2009\u2028\u3000aA1,\u00df\u6f22\uac00-"
)
ASTRAL = st.characters(min_codepoint=0x10A00, max_codepoint=0x1DB00)
"""Stops that are rare, and the letters around them."""


@given(st.text(st.one_of(STOPS, st.sampled_from(".!?\u3002\uff01\u2026"), OTHERS, ASTRAL), max_size=60))
@example(". . a")
@example("\u3002\u3002\u3002")
@example("a\U0001da88\U0001da87b")
@settings(max_examples=1000)
def test_inner_stops_are_the_matches_of_their_pattern(text: str) -> None:
    found = [one.span() for one in sentence_splitting._inner_stops(text)]
    assert found == [one.span() for one in sentence_splitting._INNER_STOP.finditer(text)]


@pytest.mark.parametrize("stop", sentence_splitting._ALL_TERMINATORS)
def test_each_stop_may_end_a_sentence_before_another(stop: str) -> None:
    assert [one.span() for one in sentence_splitting._inner_stops(f"a{stop} b{stop}")] == [(1, 4)]


def test_a_deadline_ends_the_splitting() -> None:
    spans = sentence_spans("A cat sleeps. " * 1000, "en", deadline=time.monotonic() - 1)
    with pytest.raises(DeadlineExceededError, match="split into sentences"):
        next(spans)


def test_a_server_answers_what_no_library_likes(tiny_bundle: Path) -> None:
    texts = [*(f"A{space}." for space in WIDE_SPACES), "\u201c" * 100_000, "「あ。" * 25_000, "a\u0301" * 50_000]
    with (
        Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator,
        serving(translator) as address,
        jumok.Client(address, timeout_s=HANG_S) as client,
    ):
        results = list(client.translate_iter(texts, split_sentences=True, truncate=True, max_length=2, beam_size=1))
        assert [result.index for result in results] == list(range(len(texts)))
        for result in results:
            assert result.error is None or isinstance(result.error, jumok.InvalidArgumentError)
        assert all(result.error is None for result in results[: len(WIDE_SPACES)])
        for text in texts[: len(WIDE_SPACES)]:
            assert client.translate(text, split_sentences=True, max_length=2, beam_size=1)
