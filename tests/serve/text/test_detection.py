"""Detection of languages among those of models."""

import time
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
        (SENTENCES["de"], ["xx", "tlh"], "de"),
        ("ᎠᎹ ᏓᎩ", ["en", "ko"], "und"),
        ("*** 12,5 % 🙂 _", ["en", "de"], None),
        ("", ["en", "de"], None),
        ("v1.2.3 https://example.org/the/of/and", ["en", "de"], None),
        ("--output=readme.md %(count)d &nbsp; :smile: 10px", ["en", "de"], None),
        ("/usr/share/the: {name} %s Datei nicht gefunden", ["en", "de"], "de"),
        ("{n, plural, one {# Datei wurde gelöscht} other {# Dateien wurden gelöscht}}", ["en", "de"], "de"),
        ("\ud800", ["en"], None),
        ("a\ud800b", ["en"], "en"),
    ],
)
def test_tags_and_texts(text: str, tags: list[str], expected: str | None) -> None:
    found = rank_languages(text, tags)
    assert (found[0].language if found else None) == expected


FOREIGN = {
    "Un chien court dans le parc.": "fr",
    "Quiero comprar una casa nueva.": "es",
    "Een man fietst op straat.": "nl",
    "Koira juoksee puistossa.": "fi",
    "Собака бежит по зелёной траве.": "ru",
    "안녕하세요": "ko",
    "漢字を書く。": "ja",
}


@pytest.mark.parametrize("text", FOREIGN)
def test_languages_without_a_model_are_named(text: str) -> None:
    assert rank_languages(text, ["en", "de"])[0].language == FOREIGN[text]
    with pytest.raises(
        InvalidArgumentError, match=rf"^contents\[3\] is in \w+ \({FOREIGN[text]}\), but 'auto'"
    ) as error:
        detect_source(text, ["en"], "de", field="contents[3]")
    assert error.value.field == "contents[3]"
    kept = detect_source(text, ["en"], "de", copies=True)
    assert (kept.language, kept.is_translated) == (FOREIGN[text], False)


@pytest.mark.parametrize(
    ("text", "sources", "target", "expected"),
    [
        (SENTENCES["fr"], ["de", "fr"], "en", ("fr", True)),
        (SENTENCES["en"], ["de", "fr"], "en", ("en", False)),
        (SENTENCES["en"], ["ko"], "en_GB", ("en_GB", False)),
        ("The quick brown fox", ["ko"], "en", ("en", False)),
        ("OK", ["ko"], "en", ("en", False)),
        ("Barack Obama", ["ko"], "en", ("en", False)),
        ("안녕하세요 John", ["ko"], "en", ("ko", True)),
        ("메일은anna@example.org까지", ["ko"], "en", ("ko", True)),
        ("Guten Tag", ["en"], "de", ("de", False)),
        ("Open file", ["en"], "de", ("en", True)),
        ("File", ["en"], "de", ("en", True)),
        # A close relative with a route is preferred.
        ("Hvor er toilettet?", ["nb"], "en", ("nb", True)),
        ("Hvor er toilettet?", ["da"], "en", ("da", True)),
        ("Di mana saya boleh membeli roti?", ["id"], "en", ("id", True)),
        ("Otvorite prozor i sačuvajte datoteku.", ["hr"], "en", ("hr", True)),
        ("Otvorite prozor i sačuvajte datoteku.", ["bs"], "en", ("bs", True)),
        ("Otvor okno a zavri dvere.", ["cs"], "en", ("cs", True)),
        ("Uložiť súbor ako", ["cs", "sk"], "en", ("sk", True)),
        # Variants of a language are not told apart, and the first source counts.
        (SENTENCES["zh"], ["zho_Hant", "zho_Hans"], "en", ("zho_Hant", True)),
        (SENTENCES["zh"], ["zho_Hant"], "zho_Hans", ("zho_Hant", True)),
        (SENTENCES["zh"], ["ja"], "zho_Hans", ("zho_Hans", False)),
        # No language.
        *(
            (text, ["fr", "en"], "de", ("fr", False))
            for text in ("***", "12,5 %", "{name}: %s", "https://example.org/a")
        ),
    ],
)
def test_routes_decide(text: str, sources: list[str], target: str, expected: tuple[str, bool]) -> None:
    found = detect_source(text, sources, target)
    assert (found.language, found.is_translated) == expected
    assert (found.confidence == 0) == (rank_languages(text, sources) == [])


@pytest.mark.parametrize(("text", "sources"), [("ᎠᎹ ᏓᎩ", ["ko"]), ("ᎠᎹ ᏓᎩ", ["chr"]), (SENTENCES["en"], ["tlh"])])
def test_the_detector_does_not_guess_what_it_does_not_know(text: str, sources: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"language that is not known|is in English \(en\)"):
        detect_source(text, sources, "de")


def test_an_address_takes_little_time() -> None:
    for text in ("/" * 2000, "<" * 2000, "a" * 2000 + "@", "{" * 2000, "www" * 600):
        started = time.monotonic()
        rank_languages(text, ["en"])
        assert time.monotonic() - started < 0.2


def test_sources_of_a_target() -> None:
    pairs = (("fr", "nl"), ("en", "nl"), ("en", "de"))
    languages = Languages(
        sources={tag: SourceLanguage() for tag in ("en", "fr", "de")},
        targets={tag: TargetLanguage() for tag in ("de", "nl")},
        pairs=tuple(LanguagePair(source=one, target=other) for one, other in pairs),
        default=LanguagePair(source="en", target="nl"),
    )
    assert sources_into(languages, None) == (["en", "fr"], "nl")
    assert sources_into(languages, "DE") == (["en"], "de")
    with pytest.raises(LanguageNotFoundError, match="no target language 'es'"):
        sources_into(languages, "es")
    with pytest.raises(InvalidArgumentError, match="several target languages"):
        sources_into(languages.model_copy(update={"default": None}), None)


def test_texts_of_a_translator(tiny_bundle: Any) -> None:
    texts = ["A man sleeps.", "***", "", "A girl with a dog in the park. A man.", SENTENCES["de"]]
    with Translator(tiny_bundle, precision="fp32", threads=1) as translator:
        expected = translator.translate(texts, max_length=6)
        found = translator.translate(texts, source_language="auto", max_length=6)
        assert [one.text for one in found] == [expected[0].text, *texts[1:3], expected[3].text, texts[4]]
        assert [one.source_language for one in found] == ["en", "en", "en", "en", "de"]
        assert [one.source_confidence for one in expected] == [None] * 5
        assert found[0].source_confidence is not None
        assert found[0].source_confidence > 0.3
        assert [round(one.source_confidence or 0) for one in found] == [0, 0, 0, 1, 1]
        with pytest.raises(InvalidArgumentError, match=r"texts\[1\] is in French \(fr\).* from English \(en\) only"):
            translator.translate([texts[0], SENTENCES["fr"]], source_language="auto")
        (kept,) = translator.translate([SENTENCES["fr"]], source_language="auto", copy_unreadable=True)
        assert (kept.text, kept.source_language, kept.target_language, kept.model) == (SENTENCES["fr"], "fr", "de", "")
        assert translator.translate(texts[0], source_language="AUTO", target_prefix="Ein").text.startswith("Ein")
        with pytest.raises(InvalidArgumentError, match=r"texts\[1\] must be a string"):
            translator.translate(["a", 1], source_language="auto")  # type: ignore[list-item]
        with pytest.raises(InvalidArgumentError, match="one for each of 2 texts, got 1"):
            translator.translate(["a", "b"], source_language="auto", target_prefix=["c"])
        with pytest.raises(LanguageNotFoundError, match="no target language 'fr'"):
            translator.translate("a", source_language="auto", target_language="fr")
