"""The playground for everyone: axe-core's rules, small screens, dark colours, and Korean."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from jumok_serve.http.playground.page import FILES
from tests.serve.http.playground.conftest import Opened, translate
from tests.support.hang import HANG_S

pytestmark = pytest.mark.xdist_group("browser")

TEXT = "Two young women with red hats are sitting on a bench. A dog runs through the snow."


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program of axe-core, from npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error", "axe-core@4"]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S)
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install axe-core here: {installed.stderr.strip()[-300:]}")
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


def violations(page: Page, axe: str) -> list[str]:
    page.evaluate(axe)
    found = page.evaluate("axe.run()")["violations"]
    return [f"{one['id']}: {node['html']}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize(
    ("colours", "width"),
    [("light", 1200), *(pytest.param(*one, marks=pytest.mark.slow) for one in [("dark", 375), ("dark", 1200)])],
)
def test_axe_finds_nothing(opened: Opened, axe: str, width: int, colours: str) -> None:
    page = opened(viewport={"width": width, "height": 800}, color_scheme=colours)
    assert violations(page, axe) == []
    for panel in ("#options", "#terms", "#files", "#attention"):
        page.click(f"{panel} summary")
    page.fill("#count", "2")
    translate(page, TEXT)
    expect(page.locator("#matrix tbody td").first).to_be_visible()
    page.locator("#output .word").nth(4).hover()
    expect(page.locator("#mirror .aligned")).to_have_text("red")
    assert violations(page, axe) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.fill("#beam", "1000")
    page.press("#source", "Control+Enter")
    expect(page.locator("#message")).to_be_visible()
    assert violations(page, axe) == []
    page.click("#key-button")
    assert violations(page, axe) == []


def test_dark_colours_follow_the_system_until_one_is_chosen(opened: Opened) -> None:
    page = opened(color_scheme="dark")
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    expect(page.locator("#theme")).to_have_attribute("aria-pressed", "true")
    page.click("#theme")
    light = page.evaluate(colour)
    assert sum(map(int, re.findall(r"\d+", light))) > sum(map(int, re.findall(r"\d+", dark)))
    page.reload()
    expect(page.locator("#theme")).to_have_attribute("aria-pressed", "false")
    assert page.evaluate(colour) == light


def test_korean_is_spoken(opened: Opened) -> None:
    page = opened(locale="ko-KR")
    expect(page.locator("html")).to_have_attribute("lang", "ko")
    expect(page.locator("#translate")).to_have_text("번역하기")
    expect(page.locator("#target-language")).to_have_text("독일어")
    page.select_option("#interface", "en")
    expect(page.locator("#translate")).to_have_text("Translate")
    expect(page.locator("#target-language")).to_have_text("German")
    page.reload()
    expect(page.locator("#translate")).to_have_text("Translate")


def test_every_text_is_in_both_languages() -> None:
    english, korean = (
        re.findall(r"\b(\w+): '", block)
        for block in re.findall(r"^  \w\w: {\n(.*?)^  },", read("texts.js"), re.MULTILINE | re.DOTALL)
    )
    assert sorted(english) == sorted(korean)
    assert len(set(english)) == len(english)
    named = set(re.findall(r'data-(?:text|label)="(\w+)"', read("index.html")))
    for path in FILES.glob("*.js"):
        named |= set(re.findall(r"\btext\('(\w+)'", read(path.name)))
    assert named <= set(english)


def read(name: str) -> str:
    return Path(FILES / name).read_text(encoding="utf-8")
