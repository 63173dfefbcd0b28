"""Detection of languages among those of models."""

from typing import Any

import pytest

from jumok_proto.errors import InvalidArgumentError, LanguageNotFoundError
from jumok_serve import Translator, rank_languages
from jumok_serve.manifest.languages import LanguagePair, Languages, SourceLanguage, TargetLanguage
from jumok_serve.text.detection import detect_source, sources_into

SENTENCES = {
    "en": "Two women are talking in front of the old house.",
    "de": "Zwei Frauen unterhalten sich vor dem alten Haus.",
    "fr": "Deux femmes parlent devant la vieille maison.",
    "es": "Dos mujeres hablan delante de la casa vieja.",
    "it": "Due donne parlano davanti alla vecchia casa.",
    "ru": "Две женщины разговаривают перед старым домом.",
    "ko": "두 여자가 오래된 집 앞에서 이야기하고 있다.",
    "ja": "二人の女性が古い家の前で話している。",
    "zh": "两个女人在老房子前面说话。",
    "nb": "To kvinner snakker foran det gamle huset.",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_sentences_are_detected(language: str) -> None:
    found = rank_languages(SENTENCES[language], SENTENCES)
    assert found[0].language == language
    assert found[0].confidence > 0.9
    assert sum(one.confidence for one in found) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("text", "tags", "expected"),
    [
        (SENTENCES["de"], ["eng_Latn", "deu_Latn"], "deu_Latn"),
        (SENTENCES["zh"], ["zho_Hans", "zho_Hant", "en"], "zho_Hans"),
        (SENTENCES["de"], ["de-AT", "de", "en_GB"], "de"),
        (SENTENCES["de"].upper(), ["en", "de"], "de"),
        (f"<p class='the of and'>{SENTENCES['de']}</p>", ["en", "de"], "de"),
        (f"{SENTENCES['de']} " + "the " * 1_000_000, ["de"], "de"),
        (SENTENCES["de"], ["xx", "tlh"], None),
        ("*** 12,5 % 🙂 _", ["en", "de"], None),
        ("", ["en", "de"], None),
        ("\ud800", ["en"], None),
        ("a\ud800b", ["en"], "en"),
    ],
)
def test_tags_and_texts(text: str, tags: list[str], expected: str | None) -> None:
    found = rank_languages(text, tags)
    assert (found[0].language if found else None) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Un chien court dans le parc.",
        "Quiero comprar una casa nueva.",
        "Vorrei un caffè.",
        "Een man fietst op straat.",
        "Hunden løber i parken.",
        "Koira juoksee puistossa.",
        "Собака бежит.",
        "안녕하세요",
    ],
)
def test_languages_without_a_model_have_no_confidence(text: str) -> None:
    tags = ["en", "de"]
    assert max(one.confidence for one in rank_languages(text, tags)) < 0.05
    assert detect_source(text, tags, tags).confidence < 0.05


def test_the_most_probable_source_is_chosen() -> None:
    languages = ["en", "de", "fr"]
    assert detect_source(SENTENCES["fr"], languages, ["de", "fr"]).language == "fr"
    other = detect_source(SENTENCES["en"], languages, ["de", "fr"])
    assert other.language in ("de", "fr")
    assert other.confidence < 0.1
    assert detect_source("***", languages, ["fr", "de"]) == ("fr", 0.0)
    assert detect_source(SENTENCES["en"], [], ["xx"]) == ("xx", 0.0)


def test_sources_of_a_target() -> None:
    pairs = (("fr", "nl"), ("en", "nl"), ("en", "de"))
    languages = Languages(
        sources={tag: SourceLanguage() for tag in ("en", "fr", "de")},
        targets={tag: TargetLanguage() for tag in ("de", "nl")},
        pairs=tuple(LanguagePair(source=one, target=other) for one, other in pairs),
        default=LanguagePair(source="en", target="nl"),
    )
    assert sources_into(languages, None) == ["en", "fr"]
    assert sources_into(languages, "DE") == ["en"]
    with pytest.raises(LanguageNotFoundError, match="no target language 'es'"):
        sources_into(languages, "es")
    with pytest.raises(InvalidArgumentError, match="several target languages"):
        sources_into(languages.model_copy(update={"default": None}), None)


def test_texts_of_a_translator(tiny_bundle: Any) -> None:
    texts = ["A man sleeps.", "***", "", "A girl with a dog in the park. A man."]
    with Translator(tiny_bundle, precision="fp32", threads=1) as translator:
        expected = translator.translate(texts, max_length=6)
        found = translator.translate(texts, source_language="auto", max_length=6)
        assert [one.text for one in found] == [one.text for one in expected]
        assert [one.source_confidence for one in expected] == [None] * 4
        assert [round(one.source_confidence or 0) for one in found] == [1, 0, 0, 1]
        assert translator.translate(texts[0], source_language="AUTO", target_prefix="Ein").text.startswith("Ein")
        with pytest.raises(InvalidArgumentError, match=r"texts\[1\] must be a string"):
            translator.translate(["a", 1], source_language="auto")  # type: ignore[list-item]
        with pytest.raises(InvalidArgumentError, match="one for each of 2 texts, got 1"):
            translator.translate(["a", "b"], source_language="auto", target_prefix=["c"])
        with pytest.raises(LanguageNotFoundError, match="no target language 'fr'"):
            translator.translate("a", source_language="auto", target_language="fr")
