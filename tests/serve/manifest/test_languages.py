"""Languages in the manifest: look-up, directions and refusals."""

import pytest
from pydantic import ValidationError

from jumok_proto.errors import InvalidArgumentError, LanguageNotFoundError
from jumok_serve.manifest.languages import LanguagePair, Languages, SourceLanguage, TargetLanguage

EOS, EN, DE = 2, 100, 101

M2M100 = Languages(
    sources={
        "eng-Latn": SourceLanguage(prefix=(EN,), suffix=(EOS,)),
        "deu-Latn": SourceLanguage(prefix=(DE,), suffix=(EOS,)),
    },
    targets={"eng-Latn": TargetLanguage(forced_first=EN), "deu-Latn": TargetLanguage(forced_first=DE)},
)
T5 = Languages(
    sources={"en": SourceLanguage(suffix=(1,))},
    targets={"de": TargetLanguage(), "fr": TargetLanguage(), "ro": TargetLanguage()},
    pairs=(
        LanguagePair(source="en", target="de", task_prefix="translate English to German: "),
        LanguagePair(source="en", target="fr", task_prefix="translate English to French: "),
    ),
    default=LanguagePair(source="en", target="de", task_prefix="translate English to German: "),
)
MARIAN = Languages(
    sources={"en": SourceLanguage(suffix=(0,))},
    targets={"deu": TargetLanguage(source_prefix=(7,)), "nld": TargetLanguage(source_prefix=(8,), start=9)},
    default=LanguagePair(source="en", target="nld"),
)


def test_a_model_of_one_pair_needs_no_names() -> None:
    direction = Languages.of_pair("en", "de", suffix=(EOS,)).direction()
    assert (direction.source, direction.target) == ("en", "de")
    assert (direction.source_prefix, direction.source_suffix) == ((), (EOS,))
    both = Languages.of_pair("en", "de", prefix=(1,), suffix=(EOS,)).direction()
    assert (both.source_prefix, both.source_suffix) == ((1,), (EOS,))
    assert (direction.start, direction.forced_first, direction.task_prefix) == (None, None, "")


@pytest.mark.parametrize("source", ["eng-Latn", "eng_Latn", "ENG-LATN", "eng_latn"])
@pytest.mark.parametrize("target", ["deu-Latn", "DEU_latn"])
def test_spelling_does_not_matter(source: str, target: str) -> None:
    direction = M2M100.direction(source, target)
    assert (direction.source, direction.target) == ("eng-Latn", "deu-Latn")
    assert (direction.source_prefix, direction.source_suffix) == ((EN,), (EOS,))
    assert direction.forced_first == DE


def test_missing_languages_are_the_defaults() -> None:
    assert (MARIAN.direction().target, MARIAN.direction().start) == ("nld", 9)
    assert MARIAN.direction(target="deu").source_prefix == (7,)
    assert MARIAN.direction(source="en").target == "nld"
    assert T5.direction().task_prefix == "translate English to German: "


def test_the_target_stands_before_the_source_language() -> None:
    both = Languages(
        sources={"en": SourceLanguage(prefix=(5,), suffix=(6,))}, targets={"deu": TargetLanguage(source_prefix=(7,))}
    )
    assert both.direction().source_prefix == (7, 5)


def test_a_pair_has_its_own_task_prefix() -> None:
    assert T5.direction("en", "fr").task_prefix == "translate English to French: "


def test_without_a_default_and_with_several_languages_one_must_be_named() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"several source languages .*: name one of eng-Latn, deu-Latn"
    ) as caught:
        M2M100.direction(target="deu-Latn")
    assert caught.value.field == "source_language_code"
    with pytest.raises(InvalidArgumentError, match="several target languages") as caught:
        M2M100.direction("eng-Latn")
    assert caught.value.field == "target_language_code"


@pytest.mark.parametrize(
    ("source", "target", "field", "message"),
    [
        ("xx", "deu-Latn", "source_language_code", "no source language 'xx'; it has eng-Latn, deu-Latn"),
        ("eng-Latn", "deu", "target_language_code", "no target language 'deu'; it has eng-Latn, deu-Latn"),
        ("", "deu-Latn", "source_language_code", "no source language ''"),
    ],
)
def test_unknown_language_is_refused_with_the_known_ones(source: str, target: str, field: str, message: str) -> None:
    with pytest.raises(LanguageNotFoundError, match=message) as caught:
        M2M100.direction(source, target)
    assert caught.value.field == field


def test_a_pair_that_is_not_listed_is_refused() -> None:
    with pytest.raises(LanguageNotFoundError, match="from en to ro; its pairs are en to de, en to fr") as caught:
        T5.direction("en", "ro")
    assert caught.value.field == "target_language_code"


def test_an_error_lists_no_more_languages_than_can_be_read() -> None:
    tags = [f"{first}{second}" for first in "abcde" for second in "vwxyz"]
    many = Languages(sources={tag: SourceLanguage() for tag in tags}, targets={"de": TargetLanguage()})
    with pytest.raises(LanguageNotFoundError, match=r"av, aw, .*, ey and 1 more$"):
        many.direction("xx", "de")


def test_all_pairs() -> None:
    assert list(T5.all_pairs) == [("en", "de"), ("en", "fr")]
    assert list(MARIAN.all_pairs) == [("en", "deu"), ("en", "nld")]
    assert len(list(M2M100.all_pairs)) == 4


@pytest.mark.parametrize(
    ("sources", "targets", "pair", "message"),
    [
        ([], ["de"], None, "name at least one source language"),
        (["en"], [], None, "name at least one target language"),
        (["en"], ["de", "DE"], None, "two target languages differ only in case or hyphens: de, DE"),
        (["en"], ["de"], ("en", "fr"), "pair en to fr: fr is not a target language"),
        (["en"], ["de"], ("de", "de"), "pair de to de: de is not a source language"),
        (["en_XX"], ["de"], None, "String should match pattern"),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_languages_that_contradict_each_other_are_refused(
    sources: list[str], targets: list[str], pair: tuple[str, str] | None, message: str, listed: bool
) -> None:
    pairs = [] if pair is None else [LanguagePair(source=pair[0], target=pair[1])]
    with pytest.raises(ValidationError, match=message):
        Languages(
            sources={tag: SourceLanguage() for tag in sources},
            targets={tag: TargetLanguage() for tag in targets},
            pairs=tuple(pairs) if listed else (),
            default=None if listed or not pairs else pairs[0],
        )
