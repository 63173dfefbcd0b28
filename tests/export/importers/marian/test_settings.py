"""Configurations of foreign origin are read within bounds."""

import pytest

from jumok_export.importers.marian.settings import MOST_DEPTH, MOST_NODES, MarianSettings, parse_yaml
from jumok_serve.files import UnusableFileError


def test_configurations_are_mappings_lists_and_strings() -> None:
    text = "dim-emb: 64\nmodels: &files\n  - a.npz\n  - b.npz\nothers: *files\nbest: ~\n"
    files = ["a.npz", "b.npz"]
    assert parse_yaml(text) == {"dim-emb": "64", "models": files, "others": files, "best": "~"}


def doubled(levels: int) -> str:
    """A list of 2 ** levels values, each level written as the level below twice."""
    lines = ["x0: &x0 [v, v]", *(f"x{n}: &x{n} [*x{n - 1}, *x{n - 1}]" for n in range(1, levels))]
    return "\n".join([*lines, f"vocabs: *x{levels - 1}"])


TOO_LARGE = f"has more than {MOST_NODES} values, or more than {MOST_DEPTH} levels"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (doubled(40), TOO_LARGE),
        ("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), TOO_LARGE),
        ("{a: " * 50_000, TOO_LARGE),
        ("- &a [v]\n" + "- *a\n" * (MOST_NODES // 2), TOO_LARGE),
        ("a: &a [*a]", "has the alias 'a' of itself or of nothing"),
        ("a: *b", "has the alias 'b' of itself or of nothing"),
        *((text, "is not YAML") for text in ("a: [", "a: b: c", "\x01", "? [a]\n: b")),
    ],
    ids=range(10),
)
def test_other_content_is_refused(text: str, problem: str) -> None:
    """Also content that is larger than it looks."""
    with pytest.raises(UnusableFileError, match=problem):
        parse_yaml(text)


@pytest.mark.parametrize("value", ["00000000000000000003999", "9" * 5000, "-1", "0", "1e3", "٣", ["3"]])
def test_numbers_beyond_their_bounds_are_refused(value: object) -> None:
    settings = MarianSettings({"enc-depth": value})
    assert settings.integer("enc-depth", 6, most=100) == 6
    assert len(settings.problems) == 1
    assert settings.problems[0].startswith("option enc-depth must be an integer from 1 to 100, got ")
    assert len(settings.problems[0]) < 200


def test_lists_of_numbers_are_read_whole_or_refused() -> None:
    settings = MarianSettings({"layers": ["1", "2"], "huge": ["1", "1" * 21]})
    assert settings.integers("layers") == (1, 2)
    assert settings.integers("huge") == ()
    assert settings.problems[0].startswith("option huge must be a list of integers, got ['1', '111")
