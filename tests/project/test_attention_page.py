"""The pages that teach attention: names in links exist, both languages agree, claims are what was measured."""

import ast
import re
from pathlib import Path

import pytest

from tests.project.test_documents import ROOT, blocks

ENGLISH, KOREAN = ROOT / "docs/attention.md", ROOT / "docs/attention.ko.md"
NAMED = re.compile(r"\[`(\w+)`\]\((\.\./[\w./]+\.py)\)")
LINK = re.compile(r"\]\(([^)#]+)")


def defined(path: Path) -> set[str]:
    """Names of a file's classes, functions and methods."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)}


@pytest.mark.parametrize("page", [ENGLISH, KOREAN], ids=["English", "Korean"])
def test_the_code_that_is_named_exists(page: Path) -> None:
    found = NAMED.findall(page.read_text(encoding="utf-8"))
    assert len(found) > 20
    missing = [f"{name} in {path}" for name, path in found if name not in defined(page.parent / path)]
    assert missing == []


def test_both_languages_have_the_same_code_links_and_pictures() -> None:
    english, korean = (page.read_text(encoding="utf-8") for page in (ENGLISH, KOREAN))

    def runnable(page: Path) -> list[str]:
        return [block.text for block in blocks(page) if block.kind == "python"]

    assert runnable(ENGLISH) == runnable(KOREAN)
    assert NAMED.findall(english) == NAMED.findall(korean)
    links = [[link for link in LINK.findall(text) if not link.startswith("attention.")] for text in (english, korean)]
    assert links[0] == links[1]
    headings = [re.findall(r"^#+ ", text, re.MULTILINE) for text in (english, korean)]
    assert headings[0] == headings[1]
    prose = [re.sub(r"```.*?```", "", text, flags=re.DOTALL) for text in (english, korean)]
    assert re.findall(r"\d+\.\d+", prose[0]) == re.findall(r"\d+\.\d+", prose[1])


QUALITY = (ROOT / "docs/quality.md").read_text(encoding="utf-8")


def differences() -> dict[str, tuple[float, str]]:
    """Difference in BLEU and verdict of each comparison of the quality page, by title."""
    row = r"^\| ([^|]+) \| [\w-]+ - [\w-]+ \| ([+-][\d.]+) \| [^|]+ \| [^|]+ \| ([\w ]+) \|"
    return {title: (float(value), verdict) for title, value, verdict in re.findall(row, QUALITY, re.MULTILINE)}


def losses() -> dict[str, float]:
    """Share of BLEU that each model of the quality page loses from the shortest sentences to the longest."""
    section = QUALITY.partition("## Long sentences")[2]
    row = r"^\| ([\w-]+) \| ([\d.]+) \([^|]+ \| [^|]+ \| [^|]+ \| ([\d.]+) \("
    return {name: 1 - float(long) / float(short) for name, short, long in re.findall(row, section, re.MULTILINE)}


def scores() -> dict[str, float]:
    """BLEU of each model of the quality page with the largest beam."""
    row = r"^\| ([\w-]+) \| [\d.]+ \| [\d.]+ \| ([\d.]+) \| [\d.]+ \| [\d.]+ to "
    return {name: float(value) for name, value in re.findall(row, QUALITY, re.MULTILINE)}


def test_claims_on_quality_are_what_was_measured() -> None:
    found = differences()
    assert found["reversal; one direction, no attention"][1] == "better"
    assert found["reversal; both directions, no attention"][1] == "may be chance"
    assert found["reversal; one direction, attention"][1] == "may be chance"
    assert found["division by the root of the width"][1] == "worse"
    assert min(found[f"attention; {directions}"][0] for directions in ("one direction", "both directions")) > 15
    lost = losses()
    without = {name for name in lost if name in {"lstm", "lstm-reversed"} or name.startswith("lstm-both")}
    assert len(without) == 4
    assert all(lost[name] == pytest.approx(0.4, abs=0.025) for name in without)
    for names, expected in ((without, (13, 17)), (lost.keys() - without, (31, 38))):
        reached = [scores()[name] for name in names]
        assert (round(min(reached)), round(max(reached))) == expected
    others = [share for name, share in lost.items() if name not in without]
    assert (round(100 * min(others)), round(100 * max(others))) == (11, 30)
