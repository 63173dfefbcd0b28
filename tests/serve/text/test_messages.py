"""ICU messages: the places of their branches and arguments, beside those that FormatJS finds."""

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from jumok_serve.tasks.stand_ins import Hole
from jumok_serve.text.messages import MAX_MESSAGE, Message, parse_message, unescaped
from tests.support.growth import assert_linear
from tests.support.hang import HANG_S

PROGRAM = Path(__file__).parent / "icu_parser"
FILES = "{n, plural, offset:1 =0 {none} one {# file of {name}} other {# files}}"


def parsed(text: str) -> Message:
    message = parse_message(text)
    assert message is not None, text
    return message


def rewritten(text: str, translate: Callable[[str], str] = str) -> str:
    """Write a message with translated texts."""
    message = parsed(text)
    parts = []
    for branch in message.branches:
        position, pieces = branch.first, list[str | Hole]()
        for hole in branch.holes:
            pieces += translate(unescaped(text[position : hole.first])), hole
            position = hole.after
        parts.append([*pieces, translate(unescaped(text[position : branch.after]))])
    return message.written(parts)


@pytest.mark.parametrize(
    ("text", "branches"),
    [
        (FILES, [("", FILES), ("=0", "none"), ("one", "# file of {name}"), ("other", "# files")]),
        ("{n,plural,other{}}", [("", "{n,plural,other{}}"), ("other", "")]),
        (
            "a {g, select, f {her} other {it}}.",
            [("", "a {g, select, f {her} other {it}}."), ("f", "her"), ("other", "it")],
        ),
        (
            "{a, select, x {{n, selectordinal, one {#st} other {#th}}} other {no}}",
            [
                ("", "{a, select, x {{n, selectordinal, one {#st} other {#th}}} other {no}}"),
                ("x", "{n, selectordinal, one {#st} other {#th}}"),
                ("one", "#st"),
                ("other", "#th"),
                ("other", "no"),
            ],
        ),
        ("{개수, plural, other {#개}}", [("", "{개수, plural, other {#개}}"), ("other", "#개")]),
        ("{n, plural, other {'{' # '}'}}", [("", "{n, plural, other {'{' # '}'}}"), ("other", "'{' # '}'")]),
        ("{V, plural, other {{{n}} a}}", [("", "{V, plural, other {{{n}} a}}"), ("other", "{{n}} a")]),
    ],
)
def test_branches_are_found(text: str, branches: list[tuple[str, str]]) -> None:
    found = parsed(text).branches
    assert [(branch.selector, text[branch.first : branch.after]) for branch in found] == branches
    assert rewritten(text) == text


def test_arguments_and_numbers_are_holes() -> None:
    text = "{g, select, a {# {d, date, h 'o''clock'} '{x}'} other {{n, plural, other {# {0}}}}}"
    holes = [[(text[hole.first : hole.after], hole.kind) for hole in branch.holes] for branch in parsed(text).branches]
    assert holes == [
        [(text, "icu")],
        [("{d, date, h 'o''clock'}", "braces"), ("'{x}'", "quote")],
        [("{n, plural, other {# {0}}}", "icu")],
        [("#", "number"), ("{0}", "braces")],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a {name} b",
        "{n, number} of {d, date, short}",
        "{n, plural}",
        "{n, plural,}",
        "{n, plural, }",
        "{n, plural, one}",
        "{n, plural, one {a}",
        "{n, plural, one {a}}}",
        "{n, plural, one {a} other {b",
        "{n, plural, {a}}",
        "{n, plural, one {{a,}}}",
        "{n, plural, one {{}}}",
        "{n plural, one {a}}",
        "'{n, plural, one {a}}'",
        "{n, plural, one {a}} {",
        "{n, plural, one {a}} {0, date, 'a}",
        "{n, plural, other {" * 5000,
    ],
)
def test_other_texts_are_no_messages(text: str) -> None:
    assert parse_message(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{n, plural, one {day} other {days}}", "{n, plural, one {DAY} other {DAYS}}"),
        ("I''m {n, plural, other {it''s # {a}}}", "I''M {n, plural, other {IT''S # {a}}}"),
        ("don't {n, plural, other {l'a {x}}}", "DON'T {n, plural, other {L'A {x}}}"),
    ],
)
def test_texts_are_replaced(text: str, expected: str) -> None:
    assert rewritten(text, str.upper) == expected


@pytest.mark.parametrize(
    ("text", "added", "expected"),
    [
        ("a {n, plural, other {b {x}}}", "l'", "a l''{n, plural, other {b l''{x}l''}}l''"),
        ("{n, plural, other {# b}}", "{", "'{'{n, plural, other {'{'# b'{'}}'{'"),
        ("{n, plural, other {b}}", "#", "#{n, plural, other {b'#'}}#"),
        ("I''m {n, plural, other {b}}", "l'a", "I''m l''a{n, plural, other {bl''a}}l''a"),
    ],
)
def test_what_is_added_is_escaped(text: str, added: str, expected: str) -> None:
    written = rewritten(text, lambda part: part + added)
    assert written == expected
    assert len(parsed(written).branches) == len(parsed(text).branches)


def test_depth_does_not_matter() -> None:
    depth = 10_000
    text = "{a, select, x {" * depth + "a" + "}}" * depth
    message = parsed(text)
    assert len(message.branches) == depth + 1
    assert rewritten(text, str.upper) == text.replace("{a}}", "{A}}", 1)
    assert parse_message(text[:-1]) is None


def test_many_arguments_and_the_bound() -> None:
    text = "{a, select, x {b}} " * 10_000
    assert rewritten(text) == text
    assert parse_message(text + " " * MAX_MESSAGE) is None


@pytest.mark.parametrize(
    "repeated", ["{n, plural, other {a}} ", "{n, plural, other {", "'{", "'#", "{", "''", "{a,b,'"]
)
def test_time_grows_with_the_text(repeated: str) -> None:
    assert_linear(lambda size: "{n, plural, other {a}}" + repeated * (size // 10), parse_message, 1000)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], list[list[list[object]] | str]]:
    """FormatJS: places and kinds of holes, places and selectors of branches, or the error of each message."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = shutil.copytree(PROGRAM, tmp_path_factory.mktemp("icu") / "parser")

    def run(*command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=folder, input=given, capture_output=True, text=True, check=False, timeout=HANG_S
        )

    installed = run("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install FormatJS here: {installed.stderr.strip()[-300:]}")

    def parse(texts: list[str]) -> list[list[list[object]] | str]:
        done = run("node", "parse.js", given=json.dumps(texts))
        assert done.returncode == 0, done.stderr
        answers: list[list[list[object]] | str] = json.loads(done.stdout)
        return answers

    return parse


PARTS = [
    *("file ", "don't ", "'' ", "'{x}' ", "# ", "l'", "'# x' ", "' ", "'{' b' ", "그 "),
    *("{name}", "{ n }", "{0}", "{d, date, short}", "{n,number}", "{n, number, ::currency/USD}"),
    "{t, time, h 'o''clock' a}",
]


def made(rng: random.Random, depth: int = 0) -> str:
    """Make a message; apostrophes in it may begin quotations."""
    parts = []
    for _ in range(rng.randint(0, 4)):
        if depth == 3 or rng.random() < 0.6:
            parts.append(rng.choice(PARTS))
            continue
        kind = rng.choice(["plural", "select", "selectordinal"])
        selectors = ["male", "female", "other"] if kind == "select" else ["one", "few", "other", "=0", "=1"]
        branches = [
            f"{selector}{rng.choice(['', ' '])}{{{made(rng, depth + 1)}}}"
            for selector in rng.sample(selectors, rng.randint(1, 3))
        ]
        offset = "offset:1 " if kind != "select" and rng.random() < 0.3 else ""
        parts.append(f"{{n,{rng.choice(['', ' '])}{kind},{rng.choice([' ', chr(10)])}{offset}{' '.join(branches)}}}")
    return "".join(parts)


def test_formatjs_finds_the_same_places(places: Callable[[list[str]], list[list[list[object]] | str]]) -> None:
    """Both may refuse one; an unmatched brace after a message is text for FormatJS, and an error here."""
    rng = random.Random(5)
    texts = [made(rng) for _ in range(4000)]
    equal = 0
    for text, expected in zip(texts, places(texts), strict=True):
        message = parse_message(text)
        if message is None or isinstance(expected, str):
            continue
        found = [
            [hole.first, hole.after, hole.kind]
            for branch in message.branches
            for hole in branch.holes
            if hole.kind != "quote"
        ] + [[branch.first, branch.after, branch.selector] for branch in message.branches[1:]]
        assert sorted(found, key=str) == sorted(expected, key=str), text
        equal += 1
    assert equal > 800
