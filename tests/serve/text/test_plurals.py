"""Plural categories of languages are those of CLDR, as Babel has them."""

import pytest
from babel import Locale, UnknownLocaleError

from jumok_serve.text.plurals import (
    _CATEGORIES_OF,
    CATEGORIES,
    is_unused,
    locale_name,
    missing_categories,
    plural_categories,
)


def test_categories_are_those_of_cldr() -> None:
    compared = 0
    for language, categories in _CATEGORIES_OF.items():
        try:
            rule = Locale.parse(language).plural_form
        except UnknownLocaleError:
            continue
        assert {*rule.tags, "other"} == set(categories), language
        assert list(categories) == [name for name in CATEGORIES if name in categories]
        compared += 1
    assert compared > 180


@pytest.mark.parametrize(
    ("language", "categories"),
    [
        ("en", "one other"),
        ("kor_Hang", "other"),
        ("zh-Hans", "other"),
        ("rus_Cyrl", "one few many other"),
        ("pt-BR", "one many other"),
        ("arb_Arab", "zero one two few many other"),
        ("xx", ""),
        ("", ""),
    ],
)
def test_languages_by_any_tag(language: str, categories: str) -> None:
    assert " ".join(plural_categories(language)) == categories


def test_categories_that_are_missing_or_unused() -> None:
    assert missing_categories("ru", ["one", "other"]) == ["few", "many"]
    assert missing_categories("ru", ["one"]) == missing_categories("xx", ["other"]) == []
    assert [name for name in CATEGORIES if is_unused("ko", name)] == ["one", "two", "few", "many"]
    assert not is_unused("xx", "few")
    assert not is_unused("ko", "a")


@pytest.mark.parametrize(
    ("language", "name"),
    [("deu_Latn", "de"), ("zho_Hans", "zh_Hans"), ("pt-BR", "pt_BR"), ("srp_Cyrl", "sr_Cyrl"), ("en", "en")],
)
def test_names_of_languages_in_catalogues(language: str, name: str) -> None:
    assert locale_name(language, "_") == name
