"""Glossaries: matches in texts, entries that are refused, and TSV."""

import random
import time
from collections.abc import Sequence

import pytest

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.text.terms import Glossary
from jumok_serve.text.terms import glossary as module
from jumok_serve.text.terms.glossary import MAX_ENTRIES

GLOSSARY = Glossary(
    {
        "ice": "Eis",
        "ice cream": ["Eiscreme", "Speiseeis"],
        "ice-cream van": "Eiswagen",
        "Straße": "street",
        "C++": "C++",
        "हि": "x",
        "東京": "Tokyo",
        "집": "house",
    }
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Ice, please.", ["Ice"]),
        ("nice ICED icE1", []),
        ("Ice cream and ice", ["Ice cream", "ice"]),
        ("ice  \n cream", ["ice  \n cream"]),
        ("icecream", []),
        ("the ice-cream van", ["ice-cream van"]),
        ("the ice - cream van", ["ice"]),
        ("ice-cream", ["ice"]),
        ("STRASSE", ["STRASSE"]),
        ("in C++.", ["C++"]),
        ("in C+", []),
        ("हिन्दी", []),
        ("हि", ["हि"]),
        ("私は東京に", ["東京"]),
        ("집 집은", ["집"]),
        ("", []),
        ("(ice)", ["ice"]),
    ],
)
def test_whole_words_in_any_case_longest_first(text: str, found: list[str]) -> None:
    assert [text[match.first : match.after] for match in GLOSSARY.find(text)] == found


def longest_of_all(entries: Sequence[Sequence[str]], words: Sequence[str]) -> list[tuple[int, int]]:
    """Compare all entries at each word: first word and number of words of each match."""
    matches, position = [], 0
    while position < len(words):
        lengths = [len(entry) for entry in entries if list(words[position : position + len(entry)]) == list(entry)]
        if lengths:
            matches.append((position, max(lengths)))
        position += max(lengths, default=1)
    return matches


def test_matches_are_those_of_comparing_all_entries() -> None:
    source = random.Random(3)
    for _ in range(200):
        entries = {tuple(source.choices("abc", k=source.randint(1, 5))) for _ in range(source.randint(1, 12))}
        glossary = Glossary({" ".join(entry): "x" for entry in entries})
        words = source.choices("abcd", k=40)
        found = [(match.first // 2, (match.after - match.first + 1) // 2) for match in glossary.find(" ".join(words))]
        assert found == longest_of_all(sorted(entries), words)


def test_entries_that_begin_alike_take_no_longer_than_the_longest() -> None:
    def took_s(lengths: Sequence[int]) -> float:
        glossary = Glossary({"a " * length + "b": "x" for length in lengths})
        started = time.thread_time()
        assert not list(glossary.find("a " * 1000))
        return time.thread_time() - started

    alone = min(took_s([100]) for _ in range(5))
    assert min(took_s(range(1, 101)) for _ in range(5)) < 5 * alone  # one after the other they take 50 times as long


def test_a_match_has_the_target_terms_of_its_entry() -> None:
    (match,) = GLOSSARY.find("ice cream")
    assert match.targets == ("Eiscreme", "Speiseeis")
    assert not match.once


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"": "a"}, "a source term is empty"),
        ({" ": "a"}, "a source term is empty"),
        ({"a": ""}, "a target term of 'a' is empty"),
        ({"a": []}, "needs 1 to 8 target terms, got 0"),
        ({"a": ["b"] * 9}, "needs 1 to 8 target terms, got 9"),
        ({"a": 1}, "needs a target term or a list of them, got int"),
        ({"a": b"b"}, "needs a target term or a list of them, got bytes"),
        ({"a": [1]}, "a target term of 'a' must be a string, got int"),
        ({1: "a"}, "a source term must be a string, got int"),
        ({"Dog": "a", "dog": "b"}, "two entries match 'dog'"),
        ({"ice  cream": "a", "ice cream": "b"}, "two entries match 'ice cream'"),
        ({"a\tb": "c"}, "has a tab"),
        ({"a": "b\tc"}, "has a tab"),
        ({"a": "b\nc"}, "has a tab, a line break"),
        ({"a": "\ud800"}, "unusable character"),
        ({"a" * 257: "b"}, "has 257 characters, at most 256"),
        ({"a": "b" * 257}, "has 257 characters, at most 256"),
    ],
)
def test_entries_that_are_refused(entries: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as error:
        Glossary(entries)  # type: ignore[arg-type]
    assert error.value.field == "glossary"


def test_many_entries() -> None:
    """The most, and one more, which is refused."""
    entries = {f"word{number} of {number % 7}": f"Wort{number}" for number in range(MAX_ENTRIES)}
    glossary = Glossary(entries)
    assert len(glossary) == MAX_ENTRIES
    (match,) = glossary.find("this is word777 of 0 and " + "word5 of the " * 100)
    assert match.targets == ("Wort777",)
    with pytest.raises(InvalidArgumentError, match="at most 100000 entries, got 100001"):
        Glossary({**entries, "one more": "a"})


def test_many_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is that of the words; equal beginnings share theirs."""
    monkeypatch.setattr(module, "MAX_WORDS", 5)
    assert Glossary({"a b c": "x", "a b d": "x", "e": "x"}).num_words == 5
    with pytest.raises(InvalidArgumentError, match="source terms have more than 5 words: leave some out"):
        Glossary({"a b c": "x", "a b d": "x", "e f": "x"})
