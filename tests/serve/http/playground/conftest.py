"""Chromium of the system, and pages of a served playground that must keep to the rules of all pages."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from jumok_serve.translator import Translator
from tests.support.hang import HANG_S
from tests.support.servers.http_server import Served, serving_http

MODEL = Path(__file__).parents[4] / "models/multi30k-en-de-transformer"
Opened = Callable[..., Page]
expect.set_options(HANG_S * 1000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, timeout=HANG_S * 1000)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def model() -> Iterator[Translator]:
    with Translator(MODEL, replicas=1, threads=1) as translator:
        yield translator


@pytest.fixture(scope="module")
def playground(model: Translator) -> Iterator[Served]:
    """A server without tokens."""
    with serving_http(model) as served:
        yield served


@pytest.fixture
def opened(browser: Browser, playground: Served) -> Iterator[Opened]:
    """Open pages; asserts at the end that none had an error, broke its policy or looked elsewhere."""
    faults: list[str] = []
    contexts = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):  # refusals
            faults.append(message.text)

    def open_page(url: str = playground.url, **settings: object) -> Page:
        def sent(request: Request) -> None:
            if not request.url.startswith(f"{url}/"):
                faults.append(f"the page asked for {request.url}")

        context = browser.new_context(**settings)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(HANG_S * 1000)
        page.on("console", heard)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", sent)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def translate(page: Page, text: str) -> str:
    """Translate a text with the keyboard; returns the shown translation."""
    page.fill("#source", text)
    page.press("#source", "Control+Enter")
    page.wait_for_selector("#output[aria-busy=false]:not(:empty)")
    return page.inner_text("#output")
