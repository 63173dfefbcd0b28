"""Korean particles at the ends of words."""

import pytest

from jumok_serve.tasks.particles import particles
from jumok_serve.text.terms.glossary import Glossary


@pytest.mark.parametrize(
    ("word", "stem"),
    [
        ("파일을", "파일"),
        ("파일를", ""),
        ("폴더를", "폴더"),
        ("폴더을", ""),
        ("파일로", "파일"),
        ("폴더로", "폴더"),
        ("화면로", ""),
        ("화면으로", "화면"),
        ("화면으로부터", "화면"),
        ("서버에서는", "서버"),
        ("파일입니다", "파일"),
        ("파일들을", "파일"),
        ("파일럿", ""),
        ("파일", ""),
        ("사과", ""),
        ("을", ""),
        ("CLASSPATH를", "CLASSPATH"),
        ("CLASSPATH을", "CLASSPATH"),
        ("3으로", "3"),
        ("word", ""),
        ("東京", ""),
        ("", ""),
    ],
)
def test_the_shortest_stem_comes_first(word: str, stem: str) -> None:
    """A particle suits the sound before it."""
    assert next((word[:-length] for length in particles(word)), "") == stem


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("파일을 여십시오", ["파일"]),
        ("새 파일에서 파일럿", ["새 파일"]),
        ("파일들에는 API를 API서버", ["파일", "API"]),
        ("파일이름", []),
        ("그 폴더로부터, 파일입니다.", ["파일"]),
    ],
)
def test_a_term_matches_before_particles(text: str, found: list[str]) -> None:
    glossary = Glossary({"파일": "file", "새 파일": "new file", "API": "API", "파일럿": "pilot"})
    matches = [text[match.first : match.after] for match in glossary.find(text)]
    assert [match for match in matches if match != "파일럿"] == found
