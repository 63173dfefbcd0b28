"""The measurement of sentence splitting: made texts have the boundaries that they claim."""

import re
import tomllib
from pathlib import Path

import pytest

from benchmarks.texts.splitting import (
    PARTS,
    Line,
    boundary_f1,
    draw,
    ends_of_library,
    ends_of_package,
    made_lines,
    texts_of,
)

LANGUAGES = [*tomllib.loads(PARTS.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("language", LANGUAGES)
def test_made_lines_have_the_sentences_that_were_asked_for(language: str) -> None:
    lines = made_lines(language, 200)
    assert sum(len(line.ends) + 1 for line in lines) == 200
    assert lines == made_lines(language, 200)
    assert lines != made_lines(language, 200, seed=2)
    for line in lines:
        assert "{" not in line.text
        for end in line.ends:
            assert line.text[end] == " "
            assert not line.text[end - 1].isspace()


@pytest.mark.parametrize("language", LANGUAGES)
def test_rules_find_more_boundaries_than_the_library_alone(language: str) -> None:
    lines = made_lines(language, 400)
    library, _ = boundary_f1(lines, language, ends_of_library)
    package, wrong = boundary_f1(lines, language, ends_of_package)
    assert package > library
    assert len(wrong) > 0 or package == 100


def test_boundaries_are_compared_by_their_places() -> None:
    lines = [Line("A dog. Dr. B. runs.", frozenset({6})), Line("1. A dog.", frozenset())]
    f1, wrong = boundary_f1(lines, "en", lambda text, _: {found.end() for found in re.finditer(r"\.(?= )", text)})
    assert f1 == pytest.approx(200 * 1 / (4 + 1))
    assert [one.partition(":")[0] for one in wrong] == ["wrong"] * 3
    assert wrong[0] == "wrong: A dog. Dr. | B. runs."
    assert boundary_f1(lines, "en", ends_of_package) == (100, [])
    assert boundary_f1([Line("One. Two.", frozenset({4}))], "en", ends_of_library) == (100, [])


def test_texts_have_their_lengths_and_times_a_picture(tmp_path: Path) -> None:
    assert [len(text) for text in texts_of("English sentences", [10, 5000])] == [10, 5000]
    assert [*texts_of("initials", [5])] == ["A. A."]
    draw([1000, 2000], {"initials": {"jumok": [0.1, 0.2], "library": [0.3]}}, tmp_path / "times.png")
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
