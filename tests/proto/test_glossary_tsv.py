"""Entries of a glossary as text, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jumok_proto.glossaries import GlossaryLine, read_tsv, write_tsv

TERMS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\r\n"), min_size=1, max_size=12).filter(
    lambda term: term == term.strip()
)


def same_words(term: str) -> str:
    return " ".join(term.split()).casefold()


@given(
    st.lists(st.tuples(TERMS, st.lists(TERMS, min_size=1, unique=True)), unique_by=lambda entry: same_words(entry[0]))
)
def test_written_entries_are_read(entries: list[tuple[str, list[str]]]) -> None:
    read = list(read_tsv(write_tsv(dict(entries))))
    assert [(line.source, list(line.targets)) for line in read] == entries


def test_lines_that_are_left_out_count() -> None:
    text = "\ufeff# terms\r\n\r\n dog \tHund\tKöter\r\n  \ncar\tAuto\tAuto"
    assert list(read_tsv(text)) == [GlossaryLine(3, "dog", ("Hund", "Köter")), GlossaryLine(5, "car", ("Auto",))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\nc\n", "line 2 needs a source term, a tab and a target term"),
        ("a\tb\n\tc\n", "line 2 has an empty term"),
        ("a\t\n", "line 1 has an empty term"),
        ("a\tb\t \n", "line 1 has an empty term"),
        (" \t \n", "line 1 has an empty term"),
        ("#\nRed  car\tx\nb\ty\nred Car\tz\n", "line 4 has the source term of line 2, 'red Car': put all target terms"),
    ],
)
def test_a_bad_line_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read_tsv(text))


@pytest.mark.parametrize(
    ("entries", "message"),
    [({"a\tb": "c"}, "has a tab"), ({"a": ["b", "c\nd"]}, "line break"), ({"a": [1]}, "got int")],
)
def test_terms_that_no_line_can_hold(entries: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_tsv(entries)
