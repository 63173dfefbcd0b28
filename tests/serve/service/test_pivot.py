"""Translation over a pivot language by two real models, end to end."""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner

import jumok
from jumok.commands._main import jumok as jumok_command
from jumok_serve.engine.request_queue import EngineLimits
from jumok_serve.service import Administration
from jumok_serve.text.terms.store import GlossaryStore
from jumok_serve.translator import Translator
from tests.serve.engine.test_engine import Gate
from tests.serve.service.handlers.test_service_translator import check_same
from tests.support.hang import HANG_S, wait_until
from tests.support.models.variants import directed, edited
from tests.support.servers.fake_model import Ended
from tests.support.servers.in_process_server import check_idle, serving

TEXTS = ["a man in a blue shirt", "", "two young males", " \t", "a little girl climbing", "a dog"]
MODELS = Path(__file__).parents[3] / "models"
REGISTRY = "jumok_serve.service.models.registry"
PAIR: dict[str, Any] = {"source_language": "de", "target_language": "fr"}


@pytest.fixture(scope="module")
def bundles(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return (
        edited(tiny_bundle, folder / "de-en", directed("de", "en")),
        edited(tiny_bundle, folder / "en-fr", directed("en", "fr")),
    )


@pytest.fixture(scope="module")
def models(bundles: tuple[Path, Path]) -> Iterator[tuple[Translator, Translator]]:
    first, second = bundles
    with Translator(first, precision="fp32", threads=1) as one, Translator(second, precision="fp32", threads=1) as two:
        yield one, two


def test_a_server_names_models_that_share_a_pair(
    bundles: tuple[Path, Path], models: tuple[Translator, Translator], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edited(bundles[0], tmp_path / "root/another", lambda manifest: manifest.update(name="another"))
    load = partial(Translator, precision="fp32", threads=1)
    caplog.set_level("INFO", REGISTRY)
    with (
        serving(*models, administration=Administration(root=tmp_path / "root", load=load)) as address,
        jumok.AdminClient(address) as admin,
        jumok.Client(address) as client,
    ):
        admin.load_model("another")
        told = "tiny-de-en and another translate de to en: requests without a model's name go to tiny-de-en"
        assert [record.message for record in caplog.records if record.name == REGISTRY] == [
            f"{told}, the first that was named; name the model in requests to choose, as with --model another"
        ]
        assert client.translate("a dog", source_language="de", target_language="en").model == "tiny-de-en"
        assert client.translate("a dog", model="another").model == "another"


@pytest.fixture(scope="module")
def client(models: tuple[Translator, Translator]) -> Iterator[jumok.Client]:
    with serving(*models) as address, jumok.Client(address) as connected:
        yield connected


def test_the_work_of_the_second_model_is_bounded_too(bundles: tuple[Path, Path]) -> None:
    first, second = bundles
    with (
        Translator(first, precision="fp32", threads=1) as one,
        Translator(second, precision="fp32", threads=1, limits=EngineLimits(max_request_work=1000)) as two,
        serving(one, two) as address,
        jumok.Client(address) as client,
    ):
        assert len(client.translate(["a dog", "a man"], beam_size=5, max_length=20, **PAIR)) == 2
        for texts, split in ((["a dog"] * 12, False), (["A dog. A man. " * 6], True)):
            with pytest.raises(jumok.InvalidArgumentError, match=r"the request could take 1[0-9]{3} row steps"):
                client.translate(texts, beam_size=5, max_length=20, split_sentences=split, **PAIR)
        check_idle(one)
        check_idle(two)


def one_after_the_other(
    models: tuple[Translator, Translator], texts: Sequence[str], *, first: dict[str, Any], second: dict[str, Any]
) -> list[jumok.Translation]:
    """Translate by two calls, and describe the first in the results of the second."""
    between = models[0].translate(texts, **first)
    return [
        replace(
            translation,
            source_language="de",
            source_token_count=one.source_token_count,
            source_unknown_count=one.source_unknown_count,
            pivot=jumok.PivotTranslation(
                text=one.text, language="en", model="tiny-de-en", model_version=models[0].manifest.version
            ),
        )
        for one, translation in zip(between, models[1].translate([one.text for one in between], **second), strict=True)
    ]


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        ({}, {}),
        (
            {
                "beam_size": 3,
                "num_hypotheses": 3,
                "max_length": 7,
                "target_prefix": ["Ein", None, "Zwei", "", "", "Ein"],
            },
            {"beam_size": 3, "split_sentences": False},
        ),
        ({"beam_size": 1, "sample": True, "seed": 5, "max_length": 6}, {"beam_size": 1}),
        ({"split_sentences": True}, {"split_sentences": True}),
    ],
)
def test_a_call_equals_two_calls_one_after_the_other(
    models: tuple[Translator, Translator], client: jumok.Client, options: dict[str, Any], shared: dict[str, Any]
) -> None:
    texts = [*TEXTS[:-1], "A dog runs. Two men.\n\nA girl."]
    expected = one_after_the_other(models, texts, first=shared, second=options)
    before = [model.counters().texts for model in models]
    answers = client.translate(texts, **PAIR, **options)
    check_same(answers, expected)
    assert {(answer.model, answer.source_language, answer.target_language) for answer in answers} == {
        ("tiny-en-fr", "de", "fr")
    }
    assert all(answer.timings is not None and answer.timings.decode_s > 0 for answer in answers)
    # Texts with content, and those among their translations, go through the engines.
    passed = [4, sum(bool(one.pivot and one.pivot.text.strip()) for one in expected)]
    assert [model.counters().texts - count for model, count in zip(models, before, strict=True)] == passed


def test_corpora_and_streams_equal_two_calls(models: tuple[Translator, Translator], client: jumok.Client) -> None:
    texts = TEXTS * 10
    expected = one_after_the_other(models, texts, first={}, second={"max_length": 8})
    results = list(client.translate_iter(texts, window=8, max_length=8, **PAIR))
    check_same([result.translation for result in results], expected)
    for text, translation in zip(TEXTS[:3], expected, strict=False):
        updates = list(client.translate_stream(text, max_length=8, **PAIR))
        assert [update.text for update in updates] == sorted((update.text for update in updates), key=len)
        assert updates[-1].translation is not None
        assert updates[-1].text == translation.text
        check_same([updates[-1].translation], [translation])


def test_pairs_are_listed_and_errors_name_the_text(client: jumok.Client) -> None:
    assert client.list_routes() == [jumok.Route(source="de", target="fr", models=("tiny-de-en", "tiny-en-fr"))]
    assert client.translate("a man", source_language="en", target_language="fr", max_length=2).pivot is None
    with pytest.raises(jumok.InvalidArgumentError, match="beam_size") as caught:
        client.translate(TEXTS, num_hypotheses=3, beam_size=2, **PAIR)
    assert caught.value.field == "options.num_hypotheses"
    with pytest.raises(jumok.InvalidArgumentError, match="suppress_tokens") as caught:
        client.translate(TEXTS, suppress_tokens=[100_000], **PAIR)
    assert caught.value.field == "options.suppress_tokens"
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: client.translate("a man", attention=True, **PAIR), "attention"),
        (lambda: client.score("a man", "ein Mann", **PAIR), "scoring"),
        (lambda: client.align("a man", **PAIR), "alignment"),
    ]
    for refused, work in calls:
        with pytest.raises(jumok.InvalidArgumentError, match=f"{work} takes one model") as caught:
            refused()
        assert caught.value.field == "model"
        assert "tiny-de-en and tiny-en-fr: name the model" in str(caught.value)


def test_the_command_lists_models_and_routes(models: tuple[Translator, Translator]) -> None:
    with serving(*models) as address:
        done = CliRunner().invoke(jumok_command, ["models", "--server", address])
    assert done.output == "de\ten\ttiny-de-en\nen\tfr\ttiny-en-fr\nde\tfr\ttiny-de-en tiny-en-fr\n"


def test_without_a_pivot_the_pair_is_refused(models: tuple[Translator, Translator]) -> None:
    with serving(*models, pivot="") as address, jumok.Client(address) as client:
        assert client.list_routes() == []
        with pytest.raises(jumok.LanguageNotFoundError, match="no model translates from 'de' to 'fr'; the pairs are"):
            client.translate("a man", **PAIR)


@pytest.mark.parametrize("held", [0, 1])
def test_a_cancelled_call_frees_the_rows_of_both_engines(bundles: tuple[Path, Path], held: int) -> None:
    observer = Ended()
    with (
        Translator(bundles[0], precision="fp32", threads=1, replicas=1) as first,
        Translator(bundles[1], precision="fp32", threads=1, replicas=1) as second,
        serving(first, second, observers=[observer]) as address,
        ThreadPoolExecutor(1) as threads,
    ):
        models = (first, second)
        gate = Gate(models[held])
        client = jumok.Client(address)
        call = threads.submit(lambda: client.translate(TEXTS, **PAIR))
        gate.arrive()  # the engine has rows of the call
        client.close()
        assert isinstance(call.exception(HANG_S), jumok.CallCancelledError)
        wait_until(lambda: bool(observer.calls))
        assert observer.calls[0].code == "CANCELLED"
        gate.open()
        for model in models:
            check_idle(model)
        assert sum(models[held].counters().given_up.values()) > 0


def test_terms_go_over_the_pivot(models: tuple[Translator, Translator], client: jumok.Client) -> None:
    text = "Ein alte Frau und ein Mann und noch ein Mann. Ein {name}."
    glossary = {"ALTE frau": ["Hund", "Haus"], "Mann": "junge Frau", "Haus": "Hund", "Ein": "Ein"}
    terms: dict[str, Any] = {"glossary": glossary, "placeholders": ["braces"]}
    answer = client.translate(text, **terms, **PAIR)
    assert answer.pivot is not None
    assert answer.pivot.text.count("alte Frau") == 1  # copied as the text writes it
    found = answer.hypotheses[0].terms
    places = [(one.source, one.source_span and text[slice(*one.source_span)], one.targets) for one in found]
    wanted = [*(["Ein", "alte Frau", "ein", "Mann", "ein", "Mann"]), "Ein", "{name}"]
    assert [source for source, *_ in places] == wanted
    assert [written for _, written, _ in places] == wanted
    assert places[1][2] == ("Hund", "Haus")
    for one in found:
        if one.satisfied:
            assert one.target_span is not None
            assert answer.text[slice(*one.target_span)] in one.targets
        else:
            assert one.target_span is None
    assert [one.satisfied for one in found][:7] == [True] * 7
    assert answer.text.count("junge Frau") == 2
    for options in ({"num_hypotheses": 2, "beam_size": 8, "split_sentences": False}, {"markup": "html"}):
        several = client.translate(text, **terms, **options, **PAIR)
        assert [[one.satisfied for one in each.terms][:7] for each in several.hypotheses] == [[True] * 7] * len(
            several.hypotheses
        )
    tagged = "Ein <b>alte Frau</b> und <i/>ein Mann."
    written = [one.text for one in client.translate([tagged, text, tagged], **terms, markup="html", **PAIR)]
    assert written == [client.translate(one, **terms, markup="html", **PAIR).text for one in (tagged, text, tagged)]
    assert client.translate("Eine Frau", **terms, **PAIR) == client.translate("Eine Frau", **PAIR)
    for model in models:
        check_idle(model)


@pytest.fixture(scope="module")
def korean_client() -> Iterator[jumok.Client]:
    with (
        Translator(MODELS / "software-ko-en", replicas=1, threads=1) as one,
        Translator(MODELS / "software-en-de", replicas=1, threads=1) as two,
        serving(one, two) as address,
        jumok.Client(address) as connected,
    ):
        yield connected


KOREAN: dict[str, Any] = {"source_language": "ko", "target_language": "de"}


@pytest.mark.parametrize(
    ("text", "glossary", "expected"),
    [
        ("파일을 삭제하시겠습니까?", {"파일": "Akte"}, "Möchten Sie .*Akte löschen[?]"),
        ("인쇄할 페이지를 선택합니다.", {"페이지": ["Blatt", "Seite"]}, "Wählen Sie .*Blatt aus[.]"),
        ("파일 이름이 너무 깁니다.", {"파일 이름": "Bezeichnung der Akte"}, "Bezeichnung der Akte ist zu lang[.]"),
        (
            "새 창에서 {name} 파일을 여십시오.",
            {"파일": "Akte", "창": "Feld"},
            "Öffnen (?=.*Feld)(?=.*Akte).*[{]name[}].*[.]",
        ),
        ("<b>파일</b>을 <i/>삭제하시겠습니까?", {"파일": "Q&A"}, "(<i/>)?Möchten Sie .*<b>Q&amp;A</b>.* löschen[?]"),
    ],
)
def test_a_sentence_stays_whole_around_terms_over_a_pivot(
    korean_client: jumok.Client, text: str, glossary: dict[str, Any], expected: str
) -> None:
    markup: Literal["html"] | None = "html" if "<" in text else None
    translation = korean_client.translate(text, glossary=glossary, placeholders=True, markup=markup, **KOREAN)
    assert re.fullmatch(expected, translation.text)
    for one in translation.hypotheses[0].terms:
        assert one.satisfied
        target = one.targets[0]
        assert translation.text.count(target.replace("&", "&amp;")) == 1
        if markup is None:
            assert one.source_span is not None
            assert one.target_span is not None
            assert text[slice(*one.source_span)] == one.source
            assert translation.text[slice(*one.target_span)] == target


def test_a_message_over_a_pivot_has_its_terms(korean_client: jumok.Client) -> None:
    text = "{count, plural, one {파일을 삭제하시겠습니까?} other {파일 #개를 삭제하시겠습니까?}}"
    translation = korean_client.translate(text, glossary={"파일": "Akte"}, placeholders=True, **KOREAN)
    assert re.fullmatch(r"[{]count, plural, one [{].*Akte.*[}] other [{].*Akte.*[}][}]", translation.text)
    assert translation.text.count("Akte") == 2


def test_a_stored_glossary_has_the_languages_of_both_ends(
    models: tuple[Translator, Translator], tmp_path: Path
) -> None:
    with (
        serving(*models, glossaries=GlossaryStore(tmp_path / "glossaries")) as address,
        jumok.Client(address) as client,
    ):
        client.glossaries.create("men", {"Mann": "junge Frau"}, **PAIR)
        client.glossaries.create("others", {"Mann": "junge Frau"}, source_language="en", target_language="fr")
        answer = client.translate("Ein Mann", stored_glossary="men", **PAIR)
        assert [one.satisfied for one in answer.hypotheses[0].terms] == [True]
        assert "junge Frau" in answer.text
        with pytest.raises(jumok.InvalidArgumentError, match="no entries"):
            client.translate("Ein Mann", stored_glossary="others", **PAIR)
