"""Attention in the playground: lit words, the table of tokens, and the keyboard."""

import pytest
from playwright.sync_api import expect

from jumok_proto.attention import AttentionKind
from jumok_serve.translator import Translator
from tests.serve.http.playground.conftest import Opened, translate

pytestmark = pytest.mark.xdist_group("browser")

PROGRAM = "async ([name, given]) => (await import('/playground/words.js'))[name](...given)"
TEXT = "Two young women with red hats are sitting on a bench.\nA dog runs through the snow."
PAIRS = {"Frauen": "women", "roten": "red", "Hüten": "hats", "Bank": "bench", "Hund": "dog", "Schnee": "snow"}


def test_a_word_of_the_translation_lights_the_words_it_looks_at(opened: Opened) -> None:
    page = opened()
    translate(page, TEXT)
    aligned = page.locator("#mirror .aligned")
    for target, source in PAIRS.items():
        page.locator("#output .word").get_by_text(target, exact=True).hover()
        expect(aligned).to_have_text(source)
        expect(page.locator("#output .active")).to_have_text(target)
    page.mouse.move(1, 1)
    expect(aligned).to_have_count(0)
    page.locator("#output .word").get_by_text("Hund", exact=True).click()
    page.mouse.move(1, 1)
    expect(aligned).to_have_text("dog")  # until the next click
    page.fill("#source", "A cat.")
    expect(aligned).to_have_count(0)


def test_words_are_reached_by_keyboard(opened: Opened) -> None:
    page = opened()
    page.focus("#source")
    page.keyboard.type("A dog runs.")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#output .word")).to_have_count(4)
    while page.evaluate("document.activeElement.textContent") != "Ein":
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#mirror .aligned")).to_have_text("dog")
    expect(page.locator("#status")).to_have_text("Hund looks at dog")
    page.keyboard.press("Enter")
    expect(page.locator("#output .pinned")).to_have_text("Hund")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#mirror .aligned")).to_have_text("runs")
    page.keyboard.press("Escape")
    expect(page.locator("#mirror .aligned, #output .pinned")).to_have_count(0)
    page.keyboard.press("End")
    expect(page.locator("#output .active")).to_have_text(".")


@pytest.mark.parametrize(("kind", "layer", "head"), [("cross", None, None), ("cross", 1, 2), ("encoder", 0, None)])
def test_the_table_has_the_weights_of_a_layer_and_a_head(
    opened: Opened, model: Translator, kind: AttentionKind, layer: int | None, head: int | None
) -> None:
    text = "A dog runs through the snow."
    page = opened()
    page.click("#attention summary")
    target = translate(page, text)
    page.select_option("#kind", kind)
    cells = page.locator("#matrix tbody td")
    expect(page.locator("#layer option").nth(1)).to_have_text("0")
    for name, number in (("#layer", layer), ("#head", head)):
        if number is not None:
            page.select_option(name, str(number))
    alignment = model.align(text, target, kinds=[kind], layer=layer, head=head)
    weights = getattr(alignment, kind).mean
    expected = [f"{weight:.2f}" for row in weights for weight in row]
    expect(cells).to_have_text(expected)
    assert page.locator("#matrix tbody th").count() == len(weights)


def test_a_click_chooses_the_sentence_of_the_table(opened: Opened) -> None:
    page = opened()
    translate(page, TEXT)
    page.click("#attention summary")
    assert page.locator("#sentence option").count() == 2
    page.locator("#output .word").get_by_text("Hund", exact=True).click()
    expect(page.locator("#sentence")).to_have_value("1")
    expect(page.locator("#matrix tbody th").nth(1)).to_have_text("▁Hund")


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("A dog. A cat.\n\nTwo.", "Ein Hund. Eine Katze.\n\nZwei.", ["Ein Hund.", "Eine Katze.", "Zwei."]),
        ("A dog. A cat.\nTwo.", "Ein Hund, eine Katze.\nZwei.", ["Ein Hund, eine Katze.", "Zwei."]),
        ("A dog.\nTwo.", "Ein Hund. Zwei.", ["Ein Hund. Zwei."]),
    ],
)
def test_sentences_pair_off_or_their_lines_do(opened: Opened, source: str, target: str, expected: list[str]) -> None:
    found = opened().evaluate(PROGRAM, ["units", [source, target, ["en", "de"]]])
    places = [unit["target"] for unit in found]
    assert [target[one["first"] : one["after"]] for one in places] == expected


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["▁Ein", "▁Hü", "nd", "chen", "."], ["Ein", "Hü", "nd", "chen", "."]),
        (["ĠEin", "ĠHÃ", "¼", "ndchen", "."], ["Ein", "Hü", "Hü", "ndchen", "."]),
        (["ein", "hü", "##ndchen", "."], ["Ein", "Hü", "ndchen", "."]),
        (["Ein", "Hü@@", "ndchen@@", "."], ["Ein", "Hü", "ndchen", "."]),
        (["Ein</w>", "Hünd", "chen</w>", ".</w>"], ["Ein", "Hünd", "chen", "."]),
        (["▁Ein", "▁H", "<0xC3>", "<0xBC>", "ndchen", "."], ["Ein", "H", "ü", "ü", "ndchen", "."]),
        (["▁Ein", "<unk>", "chen", "."], ["Ein", " Hünd", "chen", "."]),
    ],
)
def test_tokens_of_all_spellings_find_their_place(opened: Opened, tokens: list[str], expected: list[str]) -> None:
    text = "Ein Hündchen."
    given = [{"text": token, "special": False} for token in tokens] + [{"text": "</s>", "special": True}]
    *places, end = opened().evaluate(PROGRAM, ["places", [given, text]])
    assert [text[place["first"] : place["after"]] for place in places] == expected
    assert end is None
