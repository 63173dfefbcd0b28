"""Choice of models by languages and over a pivot, without a server."""

import pytest

from jumok_proto.errors import LanguageNotFoundError
from jumok_proto.results import Route
from jumok_serve.manifest.languages import LanguagePair, Languages, SourceLanguage, TargetLanguage
from jumok_serve.service.models.registry import Routes


def of(*pairs: str) -> Languages:
    """Languages of a model with exactly these pairs, such as ``en de``."""
    listed = [LanguagePair(source=source, target=target) for source, target in map(str.split, pairs)]
    return Languages(
        sources={pair.source: SourceLanguage() for pair in listed},
        targets={pair.target: TargetLanguage() for pair in listed},
        pairs=tuple(listed),
    )


def test_the_first_model_of_a_pair_is_chosen() -> None:
    routes = Routes({"a": of("de en"), "b": of("en fr-FR", "de en"), "c": of("en fr-FR")})
    assert routes.find("de", "en") == ("a",)
    assert routes.find("EN", "fr_fr") == ("b",)
    assert routes.shared == {("a", "b"): [("de", "en")], ("b", "c"): [("en", "fr-FR")]}


def test_a_missing_pair_names_those_available() -> None:
    many = of(*(f"en {letter}{other}" for letter in "abcdef" for other in "abcdef"))
    for routes, listed in (
        (Routes({"a": of("de en"), "b": of("en fr")}), "the pairs are de to en (a), en to fr (b)"),
        (Routes({"all": many}), "en to df (all) and 12 more"),
    ):
        with pytest.raises(LanguageNotFoundError) as caught:
            routes.find("de", "fr")
        assert str(caught.value).startswith("no model translates from 'de' to 'fr'; ")
        assert str(caught.value).endswith(listed)
        assert caught.value.field == "target_language_code"


def test_two_models_translate_over_the_pivot() -> None:
    models = {"a": of("de en"), "b": of("de en", "nl en", "en fr-FR"), "c": of("en fr-FR"), "d": of("nl fr-FR")}
    routes = Routes(models, "EN")
    assert routes.find("de", "fr_fr") == ("a", "b")
    assert routes.find("nl", "fr-FR") == ("d",)  # directly
    assert routes.over_pivot == (Route(source="de", target="fr-FR", models=("a", "b")),)
    assert Routes(models).over_pivot == ()
    for source, target in (("de", "de"), ("de", "nl"), ("fr-FR", "de")):
        with pytest.raises(
            LanguageNotFoundError, match=f"from '{source}' to '{target}', directly or over EN; the pairs"
        ):
            routes.find(source, target)
    with pytest.raises(LanguageNotFoundError, match="from 'de' to 'fr-FR'; the pairs"):
        Routes(models).find("de", "fr-FR")


def test_a_default_pair_is_one_of_the_pairs() -> None:
    languages = of("en de").model_copy(update={"default": LanguagePair(source="en", target="de")})
    assert Routes({"a": languages}).find("en", "de") == ("a",)
