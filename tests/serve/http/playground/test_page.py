"""The playground in Chromium: translations, terms, markup, keys, errors and texts that are no markup."""

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.service.limits import ServiceLimits
from jumok_serve.translator import Translator
from tests.serve.engine.test_engine import Gate
from tests.serve.http.playground.conftest import MODEL, Opened, translate
from tests.support.hang import wait_until
from tests.support.models.variants import directed, edited
from tests.support.office import document, members
from tests.support.servers.http_server import serving_http
from tests.support.servers.in_process_server import check_idle
from tests.support.servers.tokens import token_file

pytestmark = pytest.mark.xdist_group("browser")  # so that few browsers run beside each other

TEXT = "Two young women with red hats are sitting on a bench.\nA dog runs. The children play in the park."


def test_a_text_is_translated(opened: Opened, model: Translator) -> None:
    page = opened()
    assert translate(page, TEXT) == model.translate(TEXT, split_sentences=True).text
    expect(page.locator("#measures")).to_contain_text("multi30k-en-de-transformer")
    page.fill("#source", "A cat.")
    expect(page.locator("#output")).to_be_empty()


def test_the_translation_grows_and_can_be_stopped(opened: Opened, model: Translator) -> None:
    text = "Two young women with red hats are sitting on a bench."
    expected = model.translate(text, beam_size=1).text
    with Translator(MODEL, replicas=1, threads=1) as held, serving_http(held) as served:
        gate = Gate(held)
        page = opened(served.url)
        page.click("#options summary")
        page.fill("#beam", "1")
        output = page.locator("#output")
        for stopping in (True, False):
            page.fill("#source", text)
            page.click("#translate")
            if stopping:
                gate.arrive()
            for _ in range(7):  # the first may be of the text that was stopped
                gate.step()
            expect(output).not_to_be_empty()
            begun = output.inner_text()
            assert expected.startswith(begun)
            assert begun != expected
            expect(page.locator("#translate")).to_have_text("Stop")
            if stopping:
                page.keyboard.press("Escape")
                expect(page.locator("#status")).to_have_text("Stopped")
                stopped = output.inner_text()
                assert stopped.startswith(begun)
                assert expected.startswith(stopped)
                assert stopped != expected
                wait_until(lambda: served.server.open_calls == 0)  # the server knows it
        gate.open()
        expect(output).to_have_text(expected)
        expect(page.locator("#translate")).to_have_text("Translate")
        check_idle(held)


def test_several_translations_with_scores(opened: Opened, model: Translator) -> None:
    text = "A young woman with a red hat is sitting on a bench."
    page = opened()
    page.click("#options summary")
    page.fill("#count", "3")
    translate(page, text)
    hypotheses = model.translate(text, beam_size=3, num_hypotheses=3).hypotheses
    rows = page.locator("#hypotheses .hypothesis")
    expected = [f"{one.score:.3f}{one.text}" for one in hypotheses]
    assert [row.text_content() for row in rows.all()] == expected
    rows.nth(2).click()
    expect(page.locator("#output")).to_have_text(hypotheses[2].text)
    expect(rows.nth(2)).to_have_attribute("aria-pressed", "true")


def test_terms_are_written_and_marked(opened: Opened) -> None:
    page = opened()
    page.click("#terms summary")
    page.get_by_label("Term", exact=True).fill("dog")
    page.get_by_label("Its translation").fill("Windhund | Pudel")
    found = translate(page, "A dog runs.")
    assert "Windhund" in found or "Pudel" in found
    assert page.locator("#output .term").inner_text() in {"Windhund", "Pudel"}
    page.get_by_role("button", name="Remove").click()
    assert translate(page, "A dog runs.") == "Ein Hund rennt."


def test_markup_keeps_its_tags(opened: Opened) -> None:
    page = opened()
    page.click("#options summary")
    page.select_option("#format", "html")
    assert translate(page, "<p>A <b>dog</b> runs.</p>") == "<p>Ein <b>Hund</b> rennt.</p>"
    assert page.locator("#output b").count() == 0


SUBTITLES = "1\n00:00:01,000 --> 00:00:02,000\nA dog runs.\n\n2\n00:00:03,000 --> 00:00:04,000\nTwo <i>young</i> men.\n"


def test_a_file_is_translated_and_saved(opened: Opened, model: Translator, tmp_path: Path) -> None:
    page = opened()
    page.click("#files summary")
    page.set_input_files("#file", {"name": "film.srt", "mimeType": "text/plain", "buffer": SUBTITLES.encode()})
    page.click("#translate-file")
    link = page.get_by_role("link", name="Save film.de.srt")
    expect(link).to_be_visible()
    assert page.evaluate("(({value, max}) => [value, max])(document.getElementById('file-progress'))") == [2, 2]
    with page.expect_download() as saving:
        link.click()
    saving.value.save_as(tmp_path / "saved")
    assert saving.value.suggested_filename == "film.de.srt"
    lines = (tmp_path / "saved").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "-->" in line] == [line for line in SUBTITLES.splitlines() if "-->" in line]
    assert lines[2] == "Ein Hund rennt."
    assert "<i>" in lines[6]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("program.exe", b"MZ", "has no known ending"),
        ("../<b>.srt", b"<img src=x>", "got '<img src=x>'"),
        ("text.txt", b"\xff\xfe\xff", "The server refuses"),
        ("large.txt", b"a" * 17_000_000, "too long"),
    ],
    ids=["program", "markup", "bytes", "large"],
)
def test_a_bad_file_is_refused_in_words(opened: Opened, name: str, content: bytes, words: str) -> None:
    page = opened()
    page.click("#files summary")
    page.set_input_files("#file", {"name": name, "mimeType": "text/plain", "buffer": content})
    page.click("#translate-file")
    expect(page.locator("#message")).to_contain_text(words)
    expect(page.locator("#file-link")).to_be_hidden()
    check_harmless(page)


def test_a_document_is_dropped_and_saved(opened: Opened, tmp_path: Path) -> None:
    page = opened()
    page.click("#files summary")
    content = list(document("docx", "<w:p><w:r><w:t>A dog runs.</w:t></w:r></w:p>"))
    file = "new File([new Uint8Array(bytes)], 'a.docx')"
    made = f"(bytes) => {{const made = new DataTransfer(); made.items.add({file}); return made;}}"
    page.dispatch_event("#files", "drop", {"dataTransfer": page.evaluate_handle(made, content)})
    page.click("#translate-file")
    link = page.get_by_role("link", name="Save a.de.docx")
    expect(link).to_be_visible()
    with page.expect_download() as saving:
        link.click()
    saving.value.save_as(tmp_path / "saved")
    assert b"<w:t>Ein Hund rennt.</w:t>" in members((tmp_path / "saved").read_bytes())["word/document.xml"]


def test_the_language_is_detected_if_there_are_several(opened: Opened, model: Translator, tmp_path: Path) -> None:
    bundle = edited(MODEL, tmp_path / "french", directed("fr", "de"))
    with Translator(bundle, replicas=1, threads=1) as french, serving_http(model, french) as served:
        page = opened(served.url)
        names = page.locator("#source-language option")
        expect(names).to_have_text(["Detect language", "English", "French"])
        assert translate(page, "Two young women are sitting on a bench.")
        expect(page.locator("#notes")).to_have_text("The text is in this language: English")
        expect(page.locator("#measures")).to_contain_text("multi30k")
        page.locator("#output .word").nth(2).hover()
        expect(page.locator("#mirror .aligned")).to_have_text("women")


def test_a_key_is_asked_for_and_stays_in_the_tab(opened: Opened, model: Translator, tmp_path: Path) -> None:
    file, (secret,) = token_file(tmp_path, "page")
    with serving_http(model, tokens=TokenFile(file)) as served:
        page = opened(served.url)
        expect(page.locator("#key-reason")).to_contain_text("This server needs an API key.")
        for key, words in (("wrong", "does not know this key"), (secret, None)):
            page.locator("#key").fill(key)
            page.keyboard.press("Enter")
            if words:
                expect(page.locator("#key-reason")).to_contain_text(words)
        expect(page.locator("#key-dialog")).to_be_hidden()
        expect(page.locator("#source-language")).to_have_value("en")
        assert translate(page, "A dog runs.") == "Ein Hund rennt."
        assert page.evaluate("Object.values(sessionStorage)") == [secret]
        assert page.evaluate("Object.values(localStorage)") == []
        assert page.url == f"{served.url}/"


def test_errors_are_shown_in_words(opened: Opened, model: Translator) -> None:
    limits = ServiceLimits(max_characters=20)
    with serving_http(model, limits=limits) as served:
        page = opened(served.url)
        expect(page.locator("#source-language")).to_have_value("en")
        page.fill("#source", "A text of more than twenty characters.")
        page.click("#translate")
        message = page.locator("#message")
        expect(message).to_contain_text("The server refuses this request.")
        expect(message).to_contain_text("20")
        assert translate(page, "A dog runs.") == "Ein Hund rennt."
        expect(message).to_be_hidden()
    page.fill("#source", "A cat.")
    page.click("#translate")
    expect(message).to_contain_text("The server cannot be reached.")


BAD = '<img src=x onerror="window.bad=1"><script>window.bad=1</script>\'"&amp;javascript:window.bad=1'
HYPOTHESIS = {
    "text": BAD,
    "score": -1,
    "tokens": [BAD],
    "terms": [{"source": BAD, "targets": [BAD]}],
}
TOKENS = [{"text": BAD}, {"text": BAD, "special": True}]
RESPONSES = {
    "/v1/models": {
        "models": [{"name": BAD, "languagePairs": [{"sourceLanguageCode": BAD, "targetLanguageCode": BAD}]}]
    },
    "/v1/text:streamTranslate": {
        "stableText": BAD,
        "translation": {
            "hypotheses": [HYPOTHESIS, HYPOTHESIS],
            "model": BAD,
            "cutSentences": [BAD],
            "sourceLanguageCode": BAD,
            "targetLanguageCode": BAD,
        },
    },
    "/v1/files:translate": {"textCount": 1, "problems": [{"line": 1, "error": {"message": BAD}}]},
    "/v1/text:align": {
        "alignments": [
            {
                "sourceTokens": TOKENS,
                "targetTokens": TOKENS,
                "cross": {"layers": [0], "heads": [0], "mean": {"weights": [0.5] * 4}},
            }
        ]
    },
}


def answer_badly(route: Route) -> None:
    """Answer as a server whose every text is markup."""
    path = urlsplit(route.request.url).path
    content = json.dumps(RESPONSES[path])
    route.fulfill(body=f"data: {content}\n\n" if "stream" in path or "files" in path else content)


def refusing(status: int, reason: str) -> Callable[[Route], None]:
    """Refuse as a server whose every message is markup."""
    error = {"error": {"code": status, "status": reason, "message": BAD}}
    return lambda route: route.fulfill(status=status, body=json.dumps(error))


def check_harmless(page: Page) -> None:
    assert page.evaluate("window.bad") is None
    assert page.locator("img, body script").count() == 0


def test_no_text_becomes_markup(opened: Opened) -> None:
    page = opened()
    page.route("**/v1/**", answer_badly)
    page.reload()
    expect(page.locator("#model option").nth(1)).to_have_text(BAD)
    for panel in ("#options", "#terms", "#attention"):
        page.click(f"{panel} summary")
    page.get_by_label("Term", exact=True).fill(BAD)
    page.get_by_label("Its translation").fill(BAD)
    assert translate(page, BAD) == BAD
    for place in ("#mirror", "#output", "#notes", "#measures", "#hypotheses", "#sentence"):
        expect(page.locator(place)).to_contain_text(BAD[:60])
    page.locator("#output .word").first.hover()
    expect(page.locator("#matrix")).to_contain_text(BAD)
    check_harmless(page)
    page.click("#files summary")
    page.set_input_files("#file", {"name": f"{BAD}.txt", "mimeType": "text/html", "buffer": BAD.encode()})
    page.click("#translate-file")
    expect(page.locator("#file-problems")).to_contain_text(BAD)
    expect(page.locator("#file-link")).to_contain_text(BAD[:20])
    check_harmless(page)
    for status, reason in ((400, "INVALID_ARGUMENT"), (401, "UNAUTHENTICATED"), (500, BAD)):
        page.unroute("**/v1/**")
        page.route("**/v1/**", refusing(status, reason))
        page.press("#source", "Control+Enter")
        expect(page.locator("#message .detail")).to_have_text(BAD)
        page.keyboard.press("Escape")
        check_harmless(page)
