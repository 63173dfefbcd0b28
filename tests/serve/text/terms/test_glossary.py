"""Glossaries: matches in texts, entries that are refused, and TSV."""

import itertools
import random
from collections.abc import Sequence
from concurrent.futures import CancelledError
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.interrupts import interruptible
from jumok_serve.text.terms.glossary import MAX_ENTRIES, Glossary
from jumok_serve.text.terms.glossary import words as split
from tests.support.growth import lines_run
from tests.support.memory import memory_of
from tests.support.refusals import refused

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
        ("집 집은", ["집", "집"]),
        ("집에서는 집들 집게", ["집", "집"]),
        ("iceを ice를 ice집", ["ice", "ice"]),
        ("C++로", ["C++"]),
        ("", []),
        ("(ice)", ["ice"]),
    ],
)
def test_whole_words_in_any_case_longest_first(text: str, found: list[str]) -> None:
    assert [text[match.first : match.after] for match in GLOSSARY.find(text)] == found


@pytest.mark.parametrize("text", ["ice ", "!ab", "ice cream "])
def test_a_search_ends_where_its_caller_leaves(text: str) -> None:
    """All beginnings of a term are entries too, so that each word is compared with many."""
    glossary = Glossary({"!ab" * number + "!a": "x" for number in range(84)} | {"ice": "Eis", "ice cream": "Eis"})
    content, looks = text * 10_000, itertools.count()
    with interruptible(lambda: next(looks) < 0):
        list(glossary.find(content))
    assert next(looks) >= sum(1 for _ in split(content)) // 1100
    looks = itertools.count()
    with interruptible(lambda: next(looks) == 3), pytest.raises(CancelledError):
        list(glossary.find(content))
    assert next(looks) == 4


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
    def lines(lengths: Sequence[int]) -> int:
        glossary = Glossary({"a " * length + "b": "x" for length in lengths})
        return lines_run(lambda: list(glossary.find("a " * 1000)))

    assert lines(range(1, 101)) < 2 * lines([100])  # one after the other they take 50 times as many


def test_a_match_has_the_target_terms_of_its_entry() -> None:
    (match,) = GLOSSARY.find("ice cream")
    assert match.targets == ("Eiscreme", "Speiseeis")


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
    with refused("glossary", message):
        Glossary(entries)  # type: ignore[arg-type]


def test_many_entries() -> None:
    """The most, and one more, which is refused."""
    entries = {f"word{number} of {number % 7}": f"Wort{number}" for number in range(MAX_ENTRIES)}
    glossary = Glossary(entries)
    assert len(glossary) == MAX_ENTRIES
    (match,) = glossary.find("this is word777 of 0 and " + "word5 of the " * 100)
    assert match.targets == ("Wort777",)
    with pytest.raises(InvalidArgumentError, match="at most 100000 entries, got 100001"):
        Glossary({**entries, "one more": "a"})


def copy_of(glossary: Glossary) -> Glossary:
    return Glossary(dict(zip(glossary._sources, (one.split("\t") for one in glossary._targets), strict=True)))


def test_memory_is_that_of_the_texts() -> None:
    """Terms of many words take no more than others; the worst are short texts of wide characters."""
    words = Glossary({f"{'a ' * 120}{number}": "x" for number in range(1000)})
    wide = Glossary({f"\U0001f600{number}": [f"\U0001f600{target}" for target in range(8)] for number in range(1000)})
    for glossary in (words, wide, Glossary({})):
        taken, _ = memory_of(partial(copy_of, glossary))
        assert copy_of(glossary).num_bytes == glossary.num_bytes
        assert taken < 1.2 * glossary.num_bytes + 4096
    assert words.num_bytes < 400_000
    assert wide.num_bytes < 400_000


WORDS = ["a", "A", "ab", "b", "ß", "ss", "İ", "-", "'", "東", "京", "हि", "न्", "e\u0301", "\u0301", "1", "\U0001f600"]
TERMS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(["", " ", "\u3000"])), min_size=1, max_size=4).map(
    lambda parts: "".join(word + space for word, space in parts).strip()
)


@given(st.lists(TERMS, max_size=12), st.lists(TERMS, max_size=12).map(" ".join))
def test_any_terms_match_as_sequences_of_words(terms: list[str], text: str) -> None:
    entries = {tuple(word.text for word in split(term)): term for term in terms}
    found = list(split(text))
    expected = []
    position = 0
    while position < len(found):
        rest = [word.text for word in found[position:]]
        begin = (rest[0].lstrip(), *rest[1:]) if rest else ()
        length = max((len(entry) for entry in entries if begin[: len(entry)] == entry), default=0)
        if length:
            expected.append((found[position].first, found[position + length - 1].after))
        position += length or 1
    glossary = Glossary(dict.fromkeys(entries.values(), "x"))
    assert [(match.first, match.after) for match in glossary.find(text)] == expected
