"""Placeholders, addresses and other parts that are not language: the table of rules, and what it leaves as text."""

import gzip
import os
import random
import string
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from jumok_serve.text import holes as scanner
from jumok_serve.text.holes import (
    DEFAULT_KINDS,
    KINDS,
    MAX_HOLE,
    Hole,
    find_holes,
    kinds_of_flag,
)
from tests.serve.text.hole_examples import EXAMPLES
from tests.support.data import DATA
from tests.support.growth import assert_linear

PUBLIC: Final = {"braces", "double_braces", "percent", "url", "email", "mention"}
"""Kinds of the contract."""


def found(text: str, *flags: str) -> list[str]:
    kinds = frozenset[str]().union(*map(kinds_of_flag, flags)) or DEFAULT_KINDS
    return [text[hole.first : hole.after] for hole in find_holes(text, kinds)]


def examples(which: int) -> list[tuple[str, str]]:
    return [(kind, text) for kind, texts in EXAMPLES.items() for text in texts[which].split("  ")]


@pytest.mark.parametrize(("kind", "text"), examples(0))
def test_an_example_is_one_hole(kind: str, text: str) -> None:
    """Alone, among all default kinds, and with text and particles around it."""
    expected = [Hole(0, len(text), kind)]
    assert find_holes(text, {kind}) == expected
    if kind in DEFAULT_KINDS:
        assert find_holes(text) == expected
    for before, after in (("", " b"), ("A ", ", b."), ("(", ")"), ("\u202b", "\u202c"), ("한 ", "을")):
        holes = find_holes(before + text + after, {kind})
        if text[-1] in "어국" and after == "을":
            continue  # a hashtag or a domain in Hangul goes on
        assert Hole(len(before), len(before) + len(text), kind) in holes, before + text + after


@pytest.mark.parametrize(("kind", "text"), examples(1))
def test_a_counter_example_is_none(kind: str, text: str) -> None:
    assert find_holes(text, {kind}) == []


def test_the_kinds_of_the_contract_are_default_ones() -> None:
    assert PUBLIC < DEFAULT_KINDS < KINDS
    assert {rule.kind for rule in scanner.RULES} == EXAMPLES.keys()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("%d개와 %s을", ["%d", "%s"]),
        ("%1$s님, {name}님", ["%1$s", "{name}"]),
        ("https://example.org/help/에서", ["https://example.org/help/"]),
        ("https://example.org/help/에서는", ["https://example.org/help/"]),
        ("https://ko.wikipedia.org/wiki/한국어 참조", ["https://ko.wikipedia.org/wiki/한국어"]),
        ("https://ko.wikipedia.org/wiki/고양이를 참조", ["https://ko.wikipedia.org/wiki/고양이"]),
        ("https://ja.wikipedia.org/wiki/日本", ["https://ja.wikipedia.org/wiki/日本"]),
        ("see https://ja.wikipedia.org/wiki/ラーメン, b", ["https://ja.wikipedia.org/wiki/ラーメン"]),
        ("(https://zh.wikipedia.org/wiki/北京#历史)", ["https://zh.wikipedia.org/wiki/北京#历史"]),
        ("https://example.org/a/を確認してください", ["https://example.org/a/"]),
        ("请访问https://example.org/下载。", ["https://example.org/"]),
        ("https://example.org입니다", ["https://example.org"]),
        ("メールはanna@example.orgまで", ["anna@example.org"]),
        ("README.md를 example.org에서", ["README.md", "example.org"]),
        ("@user님 @a-b를", ["@user", "@a-b"]),
        ("请访问https://example.org/a。", ["https://example.org/a"]),
        ("&nbsp;개 v1.2.3은", ["&nbsp;", "v1.2.3"]),
        ("مرحبا %s و{name}.", ["%s", "{name}"]),
        ("שלום %1$s, ראו https://example.org/א.", ["%1$s", "https://example.org/א"]),
    ],
)
def test_letters_of_other_scripts_end_a_hole(text: str, parts: list[str]) -> None:
    """Korean, Chinese and Japanese letters do; the direction of the text around it does not matter."""
    assert found(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "Save 50% a month",
        "5% a",
        "50% e il 5% di sconto",
        "50 % d'eau",
        "100%.",
        "100% sure, 5%-10%, 5 % s",
        "It costs $5, not $10.50 or US$1.",
        "C# and F#, #1 hit, the # sign",
        "and/or, km/h, 24/7, TCP/IP, he/she",
        "Note: this. 12:30, 1:1",
        "1.5 times, 30.11.2026, 1,234.5, 1.234.567 Einwohner",
        "[[link]], [1], a[b], (c)",
        "a < b > c, x <- y, AT&T, R&D;",
        "{ not this one } and { a b c }",
        "Mr.Smith, e.g. this, i.e. that, ASP.NET",
        "-- said she -- and left",
        "me @ home",
        "-I see. -You do?",
        "-A dog! -in x",
    ],
)
def test_what_stays_text(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("%s%d%%", ["%s", "%d", "%%"]),
        ("%d%% of %s", ["%d", "%%", "%s"]),
        ("%dx%d, %.1fMB in %lds", ["%d", "%d", "%.1f", "MB", "%ld"]),
        ("%.1f MB, {size}\u00a0KiB", ["%.1f", " MB", "{size}", "\u00a0KiB"]),
        ("{c}%, %d% of %1$s% at 0x%08x", ["{c}", "%", "%d", "%", "%1$s", "%", "0x", "%08x"]),
        ("^[%lld file](inflect: true)", ["^[", "%lld", "](inflect: true)"]),
        ("![a]({src}) [b](c (d))", ["![", "]({src})", "[", "](c (d))"]),
        ("%sKey of %PRODUCTNAME", ["%s", "%PRODUCTNAME"]),
        ("See (https://example.org/a_(b)).", ["https://example.org/a_(b)"]),
        ("[x](https://example.org/b)", ["[", "](https://example.org/b)"]),
        ("<https://example.org/>", ["https://example.org/"]),
        ("<b>bold</b> <0>a</0> <file>", ["<b>", "</b>", "<0>", "</0>", "<file>"]),
        ("Give <file>", []),
        ("-v shows it", ["-v"]),
        ("-I, --include DIR", ["-I", "--include"]),
        ("-n\n-V", ["-n", "-V"]),
        ("a:\n  -q  be quiet\n  -x  trace", ["-q", "-x"]),
        ("\u200eOpen \u2068{name}\u2069", ["\u200e", "\u2068", "{name}", "\u2069"]),
        ("$1 and $2", ["$1", "$2"]),
        ("Open ~/.config/x.toml, then ./a.", ["~/.config/x.toml", "./a"]),
        ("&lt;https://x.org/?a=1&amp;b=2&gt;", ["&lt;", "https://x.org/?a=1&amp;b=2", "&gt;"]),
        ("--output=FILE, --mode=", ["--output=FILE", "--mode"]),
        ("in {n, plural, one {# day} other {# days}}, {0}", ["{n, plural, one {# day} other {# days}}", "{0}"]),
        ("{n, plural, one {a {b} other {c}", ["{b}", "{c}"]),
        ("a@b.org @user@host.social #tag", ["a@b.org", "@user@host.social", "#tag"]),
        ("&lt;{a}&gt;", ["&lt;", "{a}", "&gt;"]),
        ("ends with %", []),
        ("{{{", []),
        ("}{", []),
        ("", []),
    ],
)
def test_holes_beside_text(text: str, parts: list[str]) -> None:
    assert found(text) == parts


@pytest.mark.parametrize(
    ("flag", "text", "parts"),
    [
        ("c-format", "5% d of 100%% %ds", ["% d", "%%", "%d"]),
        ("no-c-format", "Format %d with %s", []),
        ("python-format", "%(count)d %s 5%r", ["%(count)d", "%s", "%r"]),
        ("python-brace-format", "{0:>{width}} of 5% a", ["{0:>{width}}"]),
        ("java-format", "{0,number,#.#} 50% a", ["{0,number,#.#}"]),
        ("java-printf-format", "%1$tY-%1$tm%n", ["%1$tY", "%1$tm", "%n"]),
        ("php-format", "%1$s %'.10d", ["%1$s", "%'.10d"]),
        ("objc-format", "%@ and %1$@개", ["%@", "%1$@"]),
        ("qt-format", "%1 of %L2, %10", ["%1", "%L2", "%10"]),
        ("kde-format", "%5 files", ["%5"]),
        ("csharp-format", "{0:N2} {1,10:C}", ["{0:N2}", "{1,10:C}"]),
        ("javascript-format", "%s %d", ["%s", "%d"]),
        ("sh-format", "$name ${file}", ["$name", "${file}"]),
        ("perl-brace-format", "{count} files", ["{count}"]),
        ("ruby-format", "%<n>05.1f %{name} %s", ["%<n>05.1f", "%{name}", "%s"]),
        ("scheme-format", "~a in ~s~%", ["~a", "~s", "~%"]),
        ("lisp-format", "~D file~:P", ["~D", "~:P"]),
        ("object-pascal-format", "%0:s %s", ["%0:s", "%s"]),
        ("boost-format", "%1% %|2$+5|", ["%1%", "%|2$+5|"]),
        ("gcc-internal-format", "%qD %<a%>", ["%qD", "%<", "%>"]),
        ("c-format", "%s https://example.org", ["%s", "https://example.org"]),
        ("fuzzy", "5% d", []),
        ("range: 0..10", "%d", ["%d"]),
    ],
)
def test_a_flag_decides_for_its_entry(flag: str, text: str, parts: list[str]) -> None:
    assert found(text, flag) == parts


def test_flags_add_up() -> None:
    assert found("% d {0}", "fuzzy", "no-wrap", "c-format", "python-brace-format") == ["% d", "{0}"]


CONVERSIONS: Final = ("%s", "%d", "% d", "%5.2f", "%-5s", "%%", "%x", "%+d", "%#o", "%r", "%05d", "%.3s", "%*d", "%i")


def test_conversions_are_those_of_python() -> None:
    """Python counts the arguments of a text."""
    rng = random.Random(1)
    checked = 0
    for _ in range(4000):
        parts = rng.choices([*CONVERSIONS, "a", " ", "5", "개", ".", "%", "% "], k=rng.randint(1, 8))
        text = "".join(parts)
        holes = [text[hole.first : hole.after] for hole in find_holes(text, {"printf"})]
        arguments = sum(1 + hole.count("*") for hole in holes if hole != "%%")
        try:
            text % ((1,) * arguments)
        except (ValueError, TypeError):
            for number in range(9):
                with pytest.raises((ValueError, TypeError)):
                    text % ((1,) * number)
        else:
            checked += 1
            assert sum(hole.count("%") for hole in holes) == text.count("%")
    assert checked > 1000


def test_fields_are_those_of_python() -> None:
    """`string.Formatter` parses the text, and writes the fields that were found."""
    rng = random.Random(2)
    fields = ["{}", "{0}", "{name}", "{a.b}", "{a[0]}", "{n:>10}", "{n!r}", "{n!r:^{w}}", "{:,.2f}", "{t:%H:%M}"]
    for _ in range(500):
        text = "".join(rng.choices([*fields, "text ", "(", "개 ", "5% ", ", "], k=rng.randint(1, 9)))
        parsed = [part for part in string.Formatter().parse(text) if part[1] is not None]
        holes = [text[hole.first : hole.after] for hole in find_holes(text, {"braces"})]
        assert [(part[1], part[2], part[3]) for part in parsed] == [
            next((part[1], part[2], part[3]) for part in string.Formatter().parse(hole)) for hole in holes
        ]


@pytest.mark.parametrize("text", [*dict(examples(0)).values(), "{n, plural, other {#}}"])
def test_ten_thousand_in_one_text(text: str) -> None:
    content = f"{text} | " * 10_000
    holes = find_holes(content)
    assert all(one.after <= other.first for one, other in pairwise(holes))
    expected = found(f"{text} | ")
    if found(f"{text} | {text} | ") == expected * 2:
        assert len(holes) in {len(expected) * 10_000, 0}  # a message may be too long


HOSTILE: Final = (
    "{",
    "{a,",
    "${a{",
    "{{a",
    "%",
    "%(",
    "%1$",
    "%a%",
    "<a b='c' ",
    "</a <b ",
    "[/b",
    "a/b.",
    "/a",
    "C:\\",
    "C:\\한글",
    "http://한.",
    "http://a/한글",
    "/日",
    "\u200e-v",
    "한글",
    "한@글.",
    "\\",
    "$a/",
    "a.b@",
    "@a-",
    "#a",
    "&a",
    "--a-",
    "http://",
    "http://(",
    "a.com/",
    "1.2.3-",
    ":a",
    "$t(",
    "10 __A",
    "{n, plural, other {",
    "{n, plural, other {}} ",
    "'{",
)


@pytest.mark.parametrize("repeated", HOSTILE)
def test_time_grows_with_the_text(repeated: str) -> None:
    assert_linear(lambda size: repeated * (size // 20), find_holes, 1000)


@pytest.mark.parametrize("before", [scanner._PIECE - 3, scanner._PIECE - 1, scanner._PIECE, 2 * scanner._PIECE - 2])
def test_a_hole_is_found_across_the_pieces_of_a_text(before: int) -> None:
    address = "http://example.org/" + "a" * 1400
    text = " " * before + address + ". {name}"
    assert found(text) == [address, "{name}"]
    assert len(address) < MAX_HOLE


def software_pairs(language: str) -> Iterator[tuple[str, str]]:
    folder = Path(os.environ.get("JUMOK_SOFTWARE", DATA / "software"))
    files = [folder / f"test.en-{language}.{side}.gz" for side in ("en", language)]
    if not all(file.exists() for file in files):
        pytest.skip("the corpus is not shared here: name its folder in JUMOK_SOFTWARE")
    yield from zip(*(gzip.decompress(file.read_bytes()).decode().splitlines() for file in files), strict=True)


@pytest.mark.parametrize("language", ["de", "ko"])
def test_people_keep_what_is_marked(language: str) -> None:
    """The share of holes that the human translation has too, without addresses of examples, which people change."""
    kept = total = 0
    for source, target in software_pairs(language):
        parts = [source[hole.first : hole.after] for hole in find_holes(source) if hole.kind not in {"url", "path"}]
        total += len(parts)
        kept += sum(min(parts.count(part), target.count(part)) for part in set(parts))
    assert total >= 20
    assert kept / total >= 0.9
