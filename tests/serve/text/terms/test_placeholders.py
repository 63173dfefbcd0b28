"""Parts of texts that are copied: kinds of placeholders, and patterns."""

from collections.abc import Iterable

import pytest

from jumok_proto.errors import InvalidArgumentError
from jumok_serve.tasks.terms import MAX_TERMS
from jumok_serve.text.terms import Glossary, Placeholders, Terminology
from jumok_serve.text.terms.glossary import KINDS, MAX_MATCH


def found(placeholders: Placeholders, text: str) -> list[str]:
    return [text[match.first : match.after] for match in placeholders.find(text)]


@pytest.mark.parametrize(
    ("asked", "text", "parts"),
    [
        (KINDS, "Hello {name}, {0} of {{ total }}!", ["{name}", "{0}", "{{ total }}"]),
        (KINDS, "${HOME} and {}", ["${HOME}", "{}"]),
        (KINDS, "{ not this one }", []),
        (KINDS, "%s of %d, %(count)d, %1$s, %.2f, %-5s, %ld", ["%s", "%d", "%(count)d", "%1$s", "%.2f", "%-5s", "%ld"]),
        (KINDS, "100% sure, 5 %", []),
        (KINDS, "100%sure", []),
        (KINDS, "See https://example.org/a?b=c(d).", ["https://example.org/a?b=c(d"]),
        (KINDS, "See http://example.org, www.example.org.", ["http://example.org", "www.example.org"]),
        (KINDS, "Write to a.b+c@example.co.uk.", ["a.b+c@example.co.uk"]),
        (KINDS, "Ask @anna and x@y", ["@anna"]),
        (["braces"], "%s {a} @b https://c.de", ["{a}"]),
        ([], "%s {a}", []),
        ("ACME", "ACME and ACMEs, acme", ["ACME"]),
        ("ERR-*", "ERR-17 ERR-_x, ERR-", ["ERR-17", "ERR-_x"]),
        ("*.txt", "a b.txt.", ["b.txt"]),
        ("$*$", "$a$ $b c$", ["$a$"]),
        ("a.c", "abc a.c", ["a.c"]),
        ("New York", "in New York", ["New York"]),
        ("C++", "C++ and C", ["C++"]),
    ],
)
def test_kinds_and_patterns(asked: str | Iterable[str], text: str, parts: list[str]) -> None:
    """A pattern is a string."""
    placeholders = Placeholders(patterns=(asked,)) if isinstance(asked, str) else Placeholders(tuple(asked))
    assert found(placeholders, text) == parts


def test_matches_are_copied_once() -> None:
    (match,) = Placeholders(("braces",)).find("a {b} c")
    assert match == (2, 5, ("{b}",), True)


@pytest.mark.parametrize(
    ("kinds", "patterns", "message"),
    [
        (("tags",), (), "unknown kind 'tags': choose of"),
        ((), ("",), "matches any word"),
        ((), ("*",), "matches any word"),
        ((), ("a" * 257,), "at most 256 characters"),
        ((), ("a",) * 65, "at most 64 patterns"),
        ((), (1,), "must be a string, got int"),
    ],
)
def test_what_is_refused(kinds: tuple[str, ...], patterns: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as error:
        Placeholders(kinds, patterns)
    assert error.value.field == "do_not_translate"


@pytest.mark.parametrize("text", ["{" * 20000, "%(" * 20000, "a." * 20000 + "@", "http://" + "." * 20000, "@" * 20000])
def test_hostile_texts_are_searched_in_linear_time(text: str) -> None:
    """Backtracking over them would take hours."""
    placeholders = Placeholders(tuple(KINDS), ("a*b*c*d", "*x*y"))
    assert len(found(placeholders, text)) <= len(text)


def test_a_part_may_be_as_long_as_an_address() -> None:
    text = " ".join("a" * length for length in (MAX_MATCH, MAX_MATCH + 1, 90_000, 5))
    assert found(Placeholders(patterns=("a*",)), text) == ["a" * MAX_MATCH, "a" * 5]


def test_a_text_of_countless_terms_is_given_up_early() -> None:
    """Each part would be compared with each entry: a thousand million times."""
    terminology = Terminology(Placeholders(("braces",)), Glossary({"dog": "Hund", "{dog": "x"}))
    matches = terminology.find("{dog} dog " * 30_000)
    assert len(matches) == MAX_TERMS + 1
    matches = terminology.find("{dog} " * (MAX_TERMS - 5) + "dog " * 30_000)
    assert len(matches) == MAX_TERMS + 1
    assert {text for match in matches for text in match.targets} == {"{dog}", "Hund"}


def test_placeholders_come_before_entries() -> None:
    terminology = Terminology(Placeholders(("braces",)), Glossary({"name": "Name", "user": "Nutzer"}))
    assert [match.targets for match in terminology.find("name {name} user")] == [("Name",), ("{name}",), ("Nutzer",)]
    assert Terminology().find("name") == []
