"""Terms stand where the words stood that they replace."""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from jumok_proto.results import Translation
from jumok_serve import Translator
from jumok_serve.tasks import term_placing
from jumok_serve.tasks.term_placing import Claim

MODELS = Path(__file__).parents[3] / "models"
CASES: dict[str, list[tuple[str, dict[str, str | list[str]], str]]] = {
    "multi30k-en-de-transformer": [
        ("A dog runs.", {"dog": "Köter"}, "Ein Köter rennt."),
        ("A dog runs.", {"dog": "Hund"}, "Ein Hund rennt."),
        ("A man wears a hat.", {"hat": "Mütze"}, "Ein Mann trägt eine Mütze."),  # the search finds the article
        ("The boy eats an apple.", {"apple": "Banane"}, "Der Junge isst einen Banane."),
        ("A dog plays with a ball.", {"dog": "Welpe", "ball": ["Fußball", "Tennisball"]}, "Welpe .*(Fuß|Tennis)ball"),
    ],
    "software-en-de": [
        ("Click the button to close the dialog.", {"dialog": "Fenster"}, "Fenster zu schließen"),
        # The word is there already, but translates another one.
        ("Click Window to close the dialog.", {"dialog": "Fenster"}, "Fenster, um .* Fenster zu schließen"),
        ("Open the file and save the document.", {"document": "Schriftstück", "file": "Akte"}, "Akte .*Schriftstück"),
        ("Save the page as (HTML).", {"html": "XML"}, r"\(XML\)"),
    ],
    "software-en-ko": [
        ("Open the file.", {"file": "문서철"}, "문서철을 엽니다"),
        ("Save the text to a file.", {"file": "자료"}, "자료로 저장"),
        ("Click the icon to close the dialog.", {"dialog": "창"}, "창을 닫"),
        # The model reads the article for the noun, and a particle for another noun.
        ('Double-click the "First Page" style.', {"style": "양식"}, "양식을 더블"),
        ("End text lines with CR+LF", {"text": "글월", "lines": "줄"}, "^글월.* 줄"),
        ("Lets you access commands.", {"access": "접속"}, "접속할"),
        ("Cannot delete the before-first or after-last row.", {"row": "줄"}, "또는 이후의 줄을"),  # a conjunction stays
    ],
}
REPLACED = {
    "multi30k-en-de-transformer": "Hut|Apfel",
    "software-en-de": "Dialog|Datei|Dokument",
    "software-en-ko": "파일|대화|스타일",
}


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest) -> Iterator[Translator]:
    with Translator(MODELS / request.param, replicas=1, threads=1) as translator:
        yield translator


def check_terms(translation: Translation) -> None:
    """Each term is where the result says."""
    (hypothesis,) = translation.hypotheses
    spans = []
    for term in hypothesis.terms:
        assert term.satisfied
        assert term.target_span is not None
        assert hypothesis.text[slice(*term.target_span)] in term.targets
        spans.append(term.target_span)
    assert len(set(spans)) == len(spans)


def test_terms_replace_words(model: Translator) -> None:
    name = model.manifest.name
    for text, glossary, expected in CASES[name]:
        translation = model.translate(text, glossary=glossary)
        check_terms(translation)
        assert re.search(expected, translation.text), (text, translation.text)
        assert not re.search(REPLACED[name], translation.text), (text, translation.text)


def test_any_terms_are_written_and_counted(model: Translator) -> None:
    """Also those that share words, repeat, or fit nowhere."""
    texts = [text for text, _, _ in CASES[model.manifest.name]]
    for text, (one, other) in product(texts, [("Baum", "Gurke"), ("Lampe", "Lampe")]):
        words = re.findall(r"\w+", text)
        glossary: dict[str, str] = {words[-1]: one, words[1]: other}
        translation = model.translate(text, glossary=glossary)
        if model.manifest.languages.default and model.manifest.languages.default.target == "de":
            check_terms(translation)
        hypothesis = translation.hypotheses[0]
        assert len(hypothesis.tokens) == len(hypothesis.token_ids) == len(hypothesis.token_scores)
        assert translation.score == pytest.approx(sum(hypothesis.token_scores) / len(hypothesis.token_ids), rel=0.01)


def test_tags_stay_around_the_replaced_word() -> None:
    with Translator(MODELS / "software-en-de", replicas=1, threads=1) as translator:
        text = "Open the file and save the <b>document</b>."
        translation = translator.translate(text, glossary={"document": "Schriftstück"}, markup="html")
        assert "<b>Schriftstück</b>" in translation.text
        text = "<p>Open the <i>file</i> of <b>{name}</b>.</p>"
        translation = translator.translate(text, glossary={"file": "alte, A & B"}, markup="html", placeholders=True)
        assert "<i>alte, A &amp; B</i> von <b>{name}</b>" in translation.text


@pytest.mark.parametrize(
    ("noun", "particle", "expected"),
    [
        ("창", "를", "을"),
        ("자료", "을", "를"),
        ("자료", "으로", "로"),
        ("글월", "으로", "로"),  # after ㄹ
        ("창", "로", "으로"),
        ("화일", "들을", "들을"),
        ("자료", "에서", "에서"),
        ("XML", "은", "는"),
    ],
)
def test_korean_particles_agree(noun: str, particle: str, expected: str) -> None:
    assert term_placing._after(noun, particle) == expected


@pytest.mark.parametrize(
    ("attention", "taken", "expected"),
    [
        ([0.1, 0.9, 0.2, 0.0], [], Claim(0, 1, 3, kept=False)),  # the third token continues the word
        ([0.1, 0.9, 0.2, 0.8], [], Claim(0, 1, 4, kept=False)),
        ([0.8, 0.9, 0.2, 0.0], [1, 2], Claim(0, 0, 1, kept=False)),
        ([0.0, 0.0, 0.04, 0.0], [], Claim(0, 1, 1, kept=False)),  # no word: before the likeliest
        ([0.0, 0.9, 0.9, 0.0], [0, 1, 2, 3], Claim(0, 1, 1, kept=False)),
    ],
)
def test_claims_are_whole_words(attention: list[float], taken: list[int], expected: Claim) -> None:
    found = term_placing._claim(
        0,
        np.array(attention),
        [False, False, True, False],
        taken=[place in taken for place in range(4)],
        signs=[False] * 4,
        least=term_placing.LEAST_ATTENTION,
        share=term_placing.SHARE,
    )
    assert found == expected
