"""Parts of texts that are copied: kinds of placeholders, and patterns with stars in one pass over a text."""

import random
import re
from collections.abc import Iterable, Sequence
from itertools import islice

import pytest

from jumok_serve.tasks.stand_ins import Hole
from jumok_serve.text.holes import DEFAULT_KINDS, KINDS, MAX_HOLE, find_holes
from jumok_serve.text.terms.glossary import MAX_CHARACTERS, MAX_PATTERNS, Patterns, Placeholders, count_marks
from tests.serve.text.hole_examples import EXAMPLES
from tests.support.calls import noted_calls
from tests.support.refusals import refused


def found(placeholders: Placeholders, text: str) -> list[str]:
    return [text[match.first : match.after] for match in placeholders.find(text)]


@pytest.mark.parametrize(
    ("asked", "text", "parts"),
    [
        (DEFAULT_KINDS, "Hello {name}, {0} of {{ total }}!", ["{name}", "{0}", "{{ total }}"]),
        (DEFAULT_KINDS, "${HOME} and {}", ["${HOME}", "{}"]),
        (DEFAULT_KINDS, "{ not this one }", []),
        (
            DEFAULT_KINDS,
            "%s of %d, %(count)d, %1$s, %.2f, %-5s, %ld",
            ["%s", "%d", "%(count)d", "%1$s", "%.2f", "%-5s", "%ld"],
        ),
        (DEFAULT_KINDS, "100% sure, 5 %", []),
        (DEFAULT_KINDS, "100%sure", []),
        (DEFAULT_KINDS, "See https://example.org/a?b=c(d).", ["https://example.org/a?b=c(d)"]),
        (DEFAULT_KINDS, "See http://example.org, www.example.org.", ["http://example.org", "www.example.org"]),
        (DEFAULT_KINDS, "Write to a.b+c@example.co.uk.", ["a.b+c@example.co.uk"]),
        (DEFAULT_KINDS, "Ask @anna and x@y", ["@anna"]),
        (["braces"], "%s {a} @b https://c.de", ["{a}"]),
        ([], "%s {a}", []),
        ("ACME", "ACME and ACMEs, acme", ["ACME"]),
        ("ERR-*", "ERR-17 ERR-_x, ERR-", ["ERR-17", "ERR-_x"]),
        ("*.txt", "a b.txt.", ["b.txt"]),
        ("$*$", "$a$ $b c$", ["$a$"]),
        ("a.c", "abc a.c", ["a.c"]),
        ("New York", "in New York", ["New York"]),
        ("C++", "C++ and C", ["C++"]),
        ("CLASSPATH", "CLASSPATH를 CLASSPATHS", ["CLASSPATH"]),
        ("ACME", "ACMEの新製品", ["ACME"]),
        ("ERR-*", "ERR-17을", ["ERR-17"]),
        ("파일", "파일을 파일에서는 파일럿 파일", ["파일", "파일", "파일"]),
        ("새 파일", "새 파일을 새를 파일", ["새 파일"]),
        ("파*", "파일을", ["파일을"]),
        ("日本", "日本語", ["日本"]),
        ("日*", "日本語", ["日本"]),
    ],
)
def test_kinds_and_patterns(asked: str | Iterable[str], text: str, parts: list[str]) -> None:
    """A pattern is a string."""
    placeholders = Placeholders(patterns=(asked,)) if isinstance(asked, str) else Placeholders(tuple(asked))
    assert found(placeholders, text) == parts


def test_of_one_place_a_pattern_counts_and_else_the_first_to_begin() -> None:
    holes = Placeholders(("braces",), ("{a}-*", "b")).find("{a}-1 {b} b {c}")
    parts = (0, 5, "copied"), (6, 9, "braces"), (10, 11, "copied"), (12, 15, "braces")
    assert holes == [Hole(*one) for one in parts]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_first_look_at_a_text_misses_no_example(kind: str) -> None:
    for example in EXAMPLES[kind][0].split("  "):
        assert count_marks(example) > 0, example


@pytest.mark.parametrize("text", ["use -v", "see (-v)", "say '-v'", "add |-v"])
def test_an_option_of_one_letter_is_found_without_other_marks(text: str) -> None:
    assert found(Placeholders(("option",)), text) == ["-v"]


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
    with refused("do_not_translate", message):
        Placeholders(kinds, patterns)


@pytest.mark.parametrize("text", ["{" * 20000, "%(" * 20000, "a." * 20000 + "@", "http://" + "." * 20000, "@" * 20000])
def test_hostile_texts_are_searched_in_linear_time(text: str) -> None:
    """Backtracking over them would take hours."""
    placeholders = Placeholders(tuple(KINDS), ("a*b*c*d", "*x*y"))
    assert len(found(placeholders, text)) <= len(text)


def test_a_part_may_be_as_long_as_an_address() -> None:
    text = " ".join("a" * length for length in (MAX_HOLE, MAX_HOLE + 1, 90_000, 5))
    assert found(Placeholders(patterns=("a*",)), text) == ["a" * MAX_HOLE, "a" * 5]


ALPHABETS = (
    "a-",
    "ab-*",
    "ab_ .*",
    "a\u00e9\u0301\u0663-* ",
    "a{}%$(d)0.*",
    "@aw.-:/htp",
    "\u2500\U0001f600a*",
)


def expected_places(kinds: Sequence[str], patterns: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Find places of patterns by one regular expression, and of holes, character by character."""

    def expression(pattern: str) -> str:
        stars = r"\w++".join(map(re.escape, re.split(r"\*+", pattern)))
        before = r"(?<!\w)" if re.match(r"[\w*]", pattern) else ""
        return before + stars + (r"(?!\w)" if re.search(r"[\w*]\Z", pattern) else "")

    expressions = re.compile("|".join(f"(?:{expression(pattern)})" for pattern in patterns) or "(?!)")
    holes = {hole.first: hole.after for hole in find_holes(text, kinds)}
    places, position = [], 0
    while position < len(text):
        match = expressions.match(text, position)
        after = match.end() if match else holes.get(position)
        if after:
            places.append((position, after))
        position = after or position + 1
    return places


def random_text(rng: random.Random, alphabet: str, length: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(length))


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_equals_a_regular_expression(alphabet: str) -> None:
    """Over patterns that overlap each other, themselves and kinds."""
    rng = random.Random(alphabet)
    found = 0
    for _ in range(1500):
        drawn = [random_text(rng, f"{alphabet}*", rng.randint(1, 8)) for _ in range(rng.randint(1, 6))]
        patterns = [pattern for pattern in drawn if pattern.strip("* ")]
        kinds = [kind for kind in sorted(KINDS) if patterns == [] or rng.random() < 0.3]
        text = random_text(rng, alphabet, rng.randint(0, 60))
        text += rng.choice(["", "http://a.b", "{a} %d @a", "a@b.c"])
        expected = expected_places(kinds, patterns, text)
        assert [(one.first, one.after) for one in Placeholders(kinds, patterns).find(text)] == expected
        found += len(expected)
    assert found > 500


@pytest.mark.parametrize("length", [1000, 1024, 1025, 3000])
def test_equals_a_regular_expression_over_long_texts(length: int) -> None:
    """With patterns and parts that lie across the pieces in which a text is looked at."""
    rng = random.Random(length)
    patterns = ["-".join("a" * 100) + "-b*", "*-" * 100, "b--", "ab*.*"]
    text = "".join(rng.choice(["a-", "a-" * 101, "bc", "-", ".", "abc.d", "\u2014"]) for _ in range(length))
    expected = expected_places((), patterns, text)
    assert [(one.first, one.after) for one in Placeholders(patterns=patterns).find(text)] == expected
    assert len(expected) > 50


def hostile_patterns() -> list[str]:
    """Return as many patterns as are possible, as long as possible, which almost match everywhere."""
    return [f"{'*-' * 120}x{number:02x}" for number in range(MAX_PATTERNS // 2)] + [
        f"{'-' * (MAX_CHARACTERS - 2)}{number:02x}" for number in range(MAX_PATTERNS // 2)
    ]


@pytest.mark.parametrize("repeated", ["a-", "-", "a", "a- ", "\u2500_"])
def test_each_part_of_a_text_is_looked_at_once(repeated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many patterns almost match there: the reading of a text is counted, not its time."""
    looks = noted_calls(monkeypatch, Patterns, "_begun_at")
    text = repeated * 5000
    assert not any(Patterns(hostile_patterns()).find(text))
    assert sum(len(parts) for _, parts in looks) <= 1.5 * len(text)


def test_the_beginning_of_a_text_is_enough_for_the_first_places() -> None:
    places = Patterns(["a"]).find("a " * 50_000)
    assert list(islice(places, 3)) == [(0, 1), (2, 3), (4, 5)]


def test_memory_is_counted() -> None:
    """Different characters in all patterns take the most."""
    alike = Placeholders(patterns=["-" * MAX_CHARACTERS] * MAX_PATTERNS)
    different = Placeholders(patterns=["".join(map(chr, range(0x2500, 0x2600)))] * MAX_PATTERNS)
    assert 2**20 > different.num_bytes > 2**18 > alike.num_bytes
    assert Placeholders(("url",)).num_bytes == 0
