"""Intervals of spans over a translation, compared with all possible ones."""

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jumok_serve.tasks.word_alignment import words
from jumok_serve.text.markup.parser import Span
from jumok_serve.text.markup.placing import MAX_CELLS, Word, best_intervals, transfer, write_spans
from tests.support.growth import lines_run
from tests.support.memory import memory_of

GAINS = st.floats(-1, 1, width=16)


def every_choice(intervals: int, words: int) -> Iterator[list[tuple[int, int]]]:
    """Yield all disjoint intervals in order, empty ones only if there are too few words."""
    for ends in itertools.combinations_with_replacement(range(words + 1), 2 * intervals):
        yield list(zip(ends[::2], ends[1::2], strict=True))


@given(st.integers(1, 3).flatmap(lambda k: st.lists(st.lists(GAINS, min_size=k, max_size=k), min_size=0, max_size=5)))
@settings(max_examples=300, deadline=None)
def test_intervals_are_the_best_of_all(by_word: list[list[float]]) -> None:
    number = len(by_word[0]) if by_word else 2
    gains = [[of_word[one] for of_word in by_word] for one in range(number)]
    total, found = best_intervals(gains)

    def value(intervals: Sequence[tuple[int, int]]) -> tuple[int, float]:
        filled = sum(first < after for first, after in intervals)
        return filled, sum(sum(of_one[slice(*place)]) for of_one, place in zip(gains, intervals, strict=True))

    most = max(map(value, every_choice(number, len(by_word))))
    assert value(found)[0] == most[0]
    assert value(found)[1] == pytest.approx(most[1], abs=1e-6)
    assert total == pytest.approx(most[1] - 1e6 * (number - most[0]), rel=1e-9, abs=1e-4)
    assert all(before <= after for _, before in [(0, 0), *found] for after in [before])
    assert [place for interval in found for place in interval] == sorted(
        place for interval in found for place in interval
    )


@pytest.mark.parametrize("between", ["<x/>", ""])
def test_work_grows_in_proportion_to_the_sentences(between: str) -> None:
    def lines(sentences: int) -> int:
        """Count the lines of Python that placing a span, and a mark, in each sentence takes."""
        spans, places = list[Span](), list[tuple[int, int]]()
        for number in range(sentences):
            start = 4 * number
            spans.append(Span(start, start + 1, "<b>", "</b>"))
            spans += [Span(start + 2, start + 2, between)] if between else []
            places.append((start, start + 4))
        text = "a b " * sentences
        placed = [Word(*place, number // 2) for number, place in enumerate(words(text))]
        return lines_run(lambda: transfer(spans, text, placed, places))

    assert lines(400) < 2.5 * lines(200)


def one_sentence(shape: str, size: int) -> tuple[list[Span], str]:
    """Return spans over a text of one sentence."""
    text = "a b " * size
    starts = range(0, len(text), 4)
    if shape == "side by side":
        return [Span(start, start + 1, "<b>", "</b>") for start in starts], text
    if shape == "marks":
        return [Span(start + 2, start + 2, "<i/>") for start in starts], text
    spans: list[Span] = []
    for start in reversed(starts):
        marks = [Span(start + 2, start + 2, "<i/>")] if shape == "nested marks" else []
        spans = [Span(start, len(text) - 1, "<b>", "</b>", [*marks, *spans])]
    return spans, text


@pytest.mark.parametrize("shape", ["side by side", "marks", "nested", "nested marks"])
@pytest.mark.parametrize("kept", [1.0, 0.1])
def test_work_for_one_sentence_is_bounded(monkeypatch: pytest.MonkeyPatch, shape: str, kept: float) -> None:
    assert MAX_CELLS <= 2**20
    monkeypatch.setattr("jumok_serve.text.markup.placing.MAX_CELLS", 2**10)

    def most(size: int) -> tuple[int, int]:
        """Return the lines of Python that placing spans takes, and the memory."""
        spans, text = one_sentence(shape, size)
        of_source = words(text)
        placed = [Word(*place, 0) for place in of_source[: int(kept * len(of_source))]]

        def run() -> None:
            transfer(spans, text, placed, [(0, len(text))])

        return lines_run(run), memory_of(run)[1]

    (lines, peak), (most_lines, most_peak) = most(2000), most(8000)
    assert most_lines < 6 * lines
    assert most_peak < 6 * peak


@pytest.mark.parametrize("number", [10, 1000])
def test_spans_of_a_copy_keep_their_words(number: int) -> None:
    text = "X y " * number
    placed = [Word(*place, 0) for place in words(text)]
    spans = [Span(start, start + 1, "<b>", "</b>") for start in range(0, len(text), 4)]
    found = transfer(spans, text, placed, [(0, len(text))])
    assert [found[one] for one in spans] == [(2 * place, 2 * place + 1) for place in range(number)]


WORDS = ("one", "two", "three", "four", "five", "six")
TEXT = " ".join(WORDS)
STARTS = [TEXT.index(word) for word in WORDS]


@st.composite
def trees(draw: st.DrawFn, first: int = 0, after: int = len(WORDS), depth: int = 0) -> list[Span]:
    """Make spans over the words of TEXT, with marks."""
    spans: list[Span] = []
    at = first
    while at < after and draw(st.booleans()):
        start = draw(st.integers(at, after - 1))
        end = draw(st.integers(start, after))
        name = f"{len(spans)}{'abc'[depth % 3]}"
        if end == start:
            spans.append(Span(STARTS[start], STARTS[start], f"<{name}/>", after_space=draw(st.booleans())))
        else:
            stop = STARTS[end - 1] + len(WORDS[end - 1])
            children = draw(trees(start, end, depth + 1)) if depth < 3 else []
            spans.append(Span(STARTS[start], stop, f"<{name}>", f"</{name}>", children))
        at = end
    return spans


def tags(spans: Sequence[Span]) -> list[str]:
    return [tag for one in spans for tag in (one.opening, *tags(one.children), one.closing) if tag]


@given(trees(), st.lists(st.integers(-1, len(WORDS) - 1), max_size=8), st.integers(1, 6))
@settings(max_examples=500, deadline=None)
def test_every_tag_is_written_once_and_nested(spans: list[Span], aligned: list[int], sentences: int) -> None:
    bounds = [
        (STARTS[index], STARTS[index] + len(WORDS[index]) + 1)
        for index in range(0, len(WORDS), max(1, len(WORDS) // sentences))
    ]
    words = [
        Word(STARTS[one], STARTS[one] + len(WORDS[one]), min(len(bounds) - 1, place * len(bounds) // len(aligned)))
        if one >= 0
        else Word(0, 0, min(len(bounds) - 1, place * len(bounds) // len(aligned)))
        for place, one in enumerate(aligned)
    ]
    found = transfer(spans, TEXT, words, bounds)
    target = " ".join(f"w{place}" for place in range(len(words)))
    places = [(3 * place, 3 * place + 2) for place in range(len(words))]
    written = write_spans(spans, found, target, places, lambda text: text)
    for tag in (all_tags := tags(spans)):
        assert written.count(tag) >= all_tags.count(tag)
    stack: list[str] = []
    rest = written
    seen = 0
    while "<" in rest:
        tag, _, rest = rest[rest.index("<") + 1 :].partition(">")
        seen += 1
        if tag.startswith("/"):
            assert stack.pop() == tag[1:]
        elif not tag.endswith("/"):
            stack.append(tag)
    assert not stack
    assert seen == len(all_tags)


def spanned(source: str, pairs: Sequence[tuple[int, int]], target: str) -> str:
    """Write a translation by pairs of target and source words; spans are in square brackets."""
    text, spans, open_spans = "", list[Span](), list[Span]()
    for character in source:
        if character == "[":
            span = Span(len(text), len(text), "[", "]", after_space=text[-1:] in {"", " "})
            (open_spans[-1].children if open_spans else spans).append(span)
            open_spans.append(span)
        elif character == "]":
            open_spans.pop().end = len(text)
        elif character == "|":
            spans.append(Span(len(text), len(text), "|", after_space=text[-1:] in {"", " "}))
        else:
            text += character
    places, target_places = words(text), words(target)
    aligned = dict(pairs)
    read = [Word(*(places[aligned[index]] if index in aligned else (0, 0)), 0) for index in range(len(target_places))]
    found = transfer(spans, text, read, [(0, len(text))])
    return write_spans(spans, found, target, target_places, lambda written: written)


@pytest.mark.parametrize(
    ("source", "pairs", "target", "wanted"),
    [
        ("a [red] cat", [(0, 0), (1, 1), (2, 2)], "eine rote Katze", "eine [rote] Katze"),
        ("[a red cat]", [(0, 0), (2, 2)], "eine rote Katze", "[eine rote Katze]"),
        # Words that change places, with a word between them that has no source.
        ("the [big cat] sleeps", [(0, 3), (1, 2), (3, 1)], "schläft Katze die große", "schläft [Katze die große]"),
        ("[one] [two]", [(0, 1), (1, 0)], "zwei eins", "[zwei] [eins]"),
        ("[one [two]] three", [(0, 2), (1, 1), (2, 0)], "drei zwei eins", "drei [[zwei] eins]"),
        # A word of the span far away from the others stays outside.
        (
            "[take off] the hat now",
            [(0, 0), (1, 2), (2, 3), (3, 4), (4, 1)],
            "nimm den Hut jetzt ab",
            "[nimm] den Hut jetzt ab",
        ),
        # Marks stay beside their words, at both ends, and out of spans.
        ("|one two", [(0, 1), (1, 0)], "zwei eins", "|zwei eins"),
        ("one two|", [(0, 1), (1, 0)], "zwei eins", "zwei eins|"),
        ("one| two three", [(0, 1), (1, 0), (2, 2)], "zwei eins drei", "zwei eins| drei"),
        ("one |two three", [(0, 1), (1, 0), (2, 2)], "zwei eins drei", "|zwei eins drei"),
        ("one [two three]| four", [(0, 0), (1, 2), (2, 1), (3, 3)], "eins drei zwei vier", "eins [drei zwei]| vier"),
        # Without words there are still all tags.
        ("[one] |[two]", [], "", "[]|[]"),
        ("[one] [two]", [(0, 0)], "eins", "[eins][]"),
        # A Korean particle is in no span that ends with its noun, and no tag comes between them.
        ("open [one] now", [(0, 1), (1, 0)], "파일을 열기", "[파일]을 열기"),
        ("open [one two] now", [(0, 1), (1, 2), (2, 0)], "파일의 이름을 열기", "[파일의 이름]을 열기"),
        ("one| two", [(0, 0), (1, 1)], "파일을 열기", "파일을| 열기"),
        ("[one]| two", [(0, 0), (1, 1)], "파일을(를) 열기", "[파일]을(를)| 열기"),
    ],
)
def test_examples(source: str, pairs: list[tuple[int, int]], target: str, wanted: str) -> None:
    assert spanned(source, pairs, target) == wanted
