"""Regular expressions run on every supported Python."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GROUPS = re.compile(r"(?:(?<!\\)\)|\})[*?+]\+|(?<!\\)\)\{\d*(?:,\d*)?\}\+|\(\?>")
"""Atomic groups, and possessive repetitions of groups, or of what may be one in an f-string."""


def test_no_possessive_or_atomic_groups() -> None:
    """Python before 3.11.5 loses the characters of their last, failed repetition; loops do the same work."""
    files = [
        ROOT / "hatch_build.py",
        *(
            path
            for folder in ("serve", "export", "clients", "proto", "benchmarks", "deploy", "examples")
            for path in sorted((ROOT / folder).rglob("*.py"))
        ),
    ]
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if GROUPS.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        *(
            (pattern, True)
            for pattern in ("(?:ab)*+", "(a)++", "(ab)?+", "(a){2,}+", "(a){3}+", "(?" + ">a)", "{_X}*+")
        ),
        *((pattern, False) for pattern in ("a*+", "[ab]++", r"\)*+", r"\|?+", "(a)*", "(a)+", "a{2}+")),
    ],
)
def test_groups_are_found(pattern: str, found: bool) -> None:
    assert bool(GROUPS.search(pattern)) is found
