"""Detected languages over gRPC: routing to models and over pivots, in all calls, SDK and command line."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import jumok
from jumok_proto.conversion import response_to_proto
from jumok_serve import GlossaryEntries, GlossaryStore, Translator, rank_languages
from jumok_serve.service.handlers import translation_service
from jumok_serve.text.detection import Source, unchanged
from jumok_serve.text.terms.glossary_file import GlossaryFile
from jumok_serve.text.terms.store import LoadedGlossaries
from tests.support.calls import noted_calls
from tests.support.clients import await_
from tests.support.command import run, run_here
from tests.support.models.variants import directed, edited
from tests.support.servers.in_process_server import check_idle, serving

GERMAN = "Ein Mann und eine alte Frau sitzen auf der Straße."
ENGLISH = "A man and an old woman are sitting in the street."
FRENCH = "Un homme et une vieille femme sont assis dans la rue."
SPANISH = "Un hombre y una mujer están sentados en la calle."
KEPT = ["***", FRENCH]
TEXTS = [GERMAN, ENGLISH, *KEPT, "Zwei junge Männer mit einem Hund.", "Two young men with a dog."]
LANGUAGES = ["de", "en", "en", "fr", "de", "en"]
SHORT: dict[str, Any] = {"beam_size": 2, "max_length": 8}
AUTO: dict[str, Any] = {"source_language": "auto", "target_language": "fr", **SHORT}
PEOPLE = [GlossaryEntries(tsv="man\tTyp", source_language=one, target_language="fr") for one in ("de", "en")]


@pytest.fixture(scope="module")
def models(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Translator]]:
    folder = tmp_path_factory.mktemp("bundles")
    with ExitStack() as stack:
        opened = []
        for one, other in (("de", "en"), ("en", "fr"), ("en", "de")):
            bundle = edited(tiny_bundle, folder / f"{one}-{other}", directed(one, other))
            opened.append(stack.enter_context(Translator(bundle, precision="fp32", threads=1)))
        yield opened


@pytest.fixture(scope="module")
def address(models: list[Translator]) -> Iterator[str]:
    with serving(*models) as served:
        yield served


@pytest.fixture(autouse=True)
def idle(models: list[Translator]) -> Iterator[None]:
    """Each test leaves idle engines."""
    yield
    for model in models:
        check_idle(model)


def expected(client: jumok.Client, **options: Any) -> list[jumok.Translation]:
    """Translations into French with the languages given; texts to keep are their own."""
    return [
        unchanged(text, Source(language, 0, is_translated=False), "fr")
        if text in KEPT
        else client.translate(text, source_language=language, target_language="fr", **options, **SHORT)
        for text, language in zip(TEXTS, LANGUAGES, strict=True)
    ]


def compare(found: list[jumok.Translation], wanted: list[jumok.Translation]) -> None:
    assert [(one.text, one.model, one.source_language) for one in found] == [
        (one.text, one.model, one.source_language) for one in wanted
    ]
    assert [one.pivot for one in found] == [one.pivot for one in wanted]
    ranked = [rank_languages(text, ["de", "en", "fr"]) for text in TEXTS]
    assert [one.source_confidence for one in found] == [
        pytest.approx(languages[0].confidence) if languages else 0.0 for languages in ranked
    ]


def test_texts_go_to_the_models_of_their_languages(client: jumok.Client) -> None:
    wanted = expected(client)
    assert [one.pivot is not None for one in wanted] == [True, False, False, False, True, False]
    compare(client.translate(TEXTS, **AUTO), wanted)
    compare([client.translate(text, **AUTO) for text in TEXTS], wanted)
    results = client.translate_iter(TEXTS, **AUTO)
    compare([result.translation for result in results], wanted)
    streams = [list(client.translate_stream(text, **AUTO))[-1].translation for text in TEXTS]
    compare([one for one in streams if one is not None], wanted)


def test_prefixes_stay_with_their_texts(client: jumok.Client) -> None:
    prefixes = [f"{number} " for number in range(len(TEXTS))]
    found = client.translate(TEXTS, target_prefix=prefixes, **AUTO)
    wanted = [
        text
        if text in KEPT
        else client.translate(
            text, source_language=language, target_language="fr", target_prefix=prefix, split_sentences=False, **SHORT
        ).text
        for text, language, prefix in zip(TEXTS, LANGUAGES, prefixes, strict=True)
    ]
    assert [one.text for one in found] == wanted


def test_responses_to_texts_of_several_languages_are_made_in_a_thread(
    client: jumok.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of their tokens is not known."""
    threads = list[str]()

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return response_to_proto(*arguments)

    monkeypatch.setattr(translation_service, "response_to_proto", noted)
    assert len(client.translate(TEXTS, **AUTO)) == len(TEXTS)
    assert [name.partition("_")[0] for name in threads] == ["asyncio"]


def test_a_call_reads_its_glossaries_once_for_each_language(
    models: list[Translator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored one too, although none is kept between calls."""
    store = GlossaryStore(tmp_path)
    store.create("", "people", PEOPLE)
    read = noted_calls(monkeypatch, GlossaryFile, "content")
    parsed = noted_calls(monkeypatch, translation_service, "request_terms")
    monkeypatch.setattr(LoadedGlossaries, "_keep", lambda self, key, made: self._known.update({key: made}))
    auto: dict[str, Any] = {**AUTO, "stored_glossary": "people", "glossary": {"old woman": "Frau"}}
    with serving(*models, glossaries=store) as address, jumok.Client(address) as client:
        found = list(client.translate_iter(TEXTS * 4, **auto))
        assert [one.translation.source_language for one in found] == LANGUAGES * 4
        assert sorted(number for _, number in read) == [0, 1]
        client.translate(TEXTS * 4, **auto)
        assert sorted(number for _, number in read) == [0, 0, 1, 1]
        assert [glossary.entries[0].source for glossary, *_ in parsed] == ["old woman"] * 2


async def test_corpora_that_wait_for_memory_of_glossaries_hold_none(
    models: list[Translator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is memory for one, and each corpus needs two in turn."""
    monkeypatch.setattr("jumok_serve.text.terms.store.MAX_LOADED_BYTES", 2)
    store = GlossaryStore(tmp_path)
    store.create("", "people", PEOPLE)
    with serving(*models, glossaries=store) as address:
        async with jumok.AsyncClient(address) as client, asyncio.timeout(100):

            async def corpus(texts: list[str]) -> list[str]:
                results = client.translate_iter(texts, stored_glossary="people", **AUTO)
                return [one.translation.source_language or "" async for one in results]

            found = await asyncio.gather(corpus(TEXTS), corpus(TEXTS[::-1]))
            assert list(found) == [LANGUAGES, LANGUAGES[::-1]]


def test_a_named_model_takes_its_own_languages(client: jumok.Client) -> None:
    translation = client.translate(ENGLISH, source_language="auto", model="tiny-en-fr", **SHORT)
    assert (translation.source_language, translation.model) == ("en", "tiny-en-fr")
    kept = client.translate(FRENCH, source_language="auto", model="tiny-en-fr", **SHORT)
    assert (kept.text, kept.source_language, kept.target_language, kept.model) == (FRENCH, "fr", "fr", "")
    with pytest.raises(jumok.InvalidArgumentError, match=r"is in German \(de\).* from English \(en\) only"):
        client.translate(GERMAN, source_language="auto", model="tiny-en-fr", **SHORT)


def test_languages_without_a_route_are_refused_by_name(client: jumok.Client) -> None:
    texts = [*TEXTS, SPANISH]
    match = r"is in Spanish \(es\), but 'auto' translates into French \(fr\) from English \(en\), German \(de\) only"
    with pytest.raises(jumok.InvalidArgumentError, match=rf"^texts\[6\] {match}") as error:
        client.translate(texts, **AUTO)
    assert error.value.field == "contents[6]"
    with pytest.raises(jumok.InvalidArgumentError, match=match):
        list(client.translate_stream(SPANISH, **AUTO))
    results = list(client.translate_iter(texts, **AUTO))
    assert str(results[-1].error).startswith("text is in Spanish (es)")
    assert [one.translation.source_language for one in results[:-1]] == LANGUAGES
    (kept,) = client.translate([SPANISH], copy_unreadable=True, **AUTO)
    assert (kept.text, kept.source_language, kept.target_language) == (SPANISH, "es", "fr")


def test_texts_of_a_file_stay_or_are_reported(client: jumok.Client, tmp_path: Path) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_text("\n\n".join([ENGLISH, FRENCH, SPANISH]), encoding="utf-8")
    result = client.translate_file(source, target, source_language="auto", target_language="fr", **SHORT)
    assert target.read_text(encoding="utf-8").split("\n\n")[1:] == [FRENCH, SPANISH]
    assert [(one.language, one.text_count, round(one.confidence)) for one in result.languages] == [
        ("en", 1, 1),
        ("fr", 1, 1),
    ]
    ((line, problem),) = [(one.line, str(one.error)) for one in result.problems]
    assert (line, problem.partition(",")[0]) == (5, "text is in Spanish (es)")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, jumok.InvalidArgumentError, "name a model, or both languages"),
        ({"target_language": "es"}, jumok.LanguageNotFoundError, "no model translates from 'auto' to 'es'"),
        ({"target_language": "fr", "model": "x"}, jumok.ModelNotFoundError, "'x' is not loaded"),
        ({"target_language": "fr", "beam_size": 99}, jumok.InvalidArgumentError, "beam_size"),
        ({"target_language": "fr", "stored_glossary": "x"}, jumok.JumokError, "keeps no glossaries|takes one model"),
    ],
)
def test_requests_that_are_refused(
    client: jumok.Client, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    for call, given in ((client.translate, TEXTS), (client.translate_iter, TEXTS), (client.translate_stream, GERMAN)):
        with pytest.raises(error, match=message):
            list(call(given, source_language="auto", **options))  # type: ignore[arg-type]


def test_errors_name_the_text_of_the_request(client: jumok.Client) -> None:
    texts = [*TEXTS, "A man. " * 200]
    with pytest.raises(jumok.InvalidArgumentError, match=r"texts\[6\]") as error:
        client.translate(texts, source_language="auto", target_language="fr", split_sentences=False)
    assert error.value.field == "contents[6]"
    with pytest.raises(jumok.InvalidArgumentError, match="one for each of 2 texts"):
        client.translate(["a", "b"], source_language="auto", target_language="fr", target_prefix=["a"])
    results = list(client.translate_iter(texts, source_language="auto", target_language="fr", split_sentences=False))
    assert [result.error is None for result in results] == [True] * 6 + [False]


def test_detection_alone(client: jumok.Client, address: str) -> None:
    one = client.detect_language(GERMAN)
    assert one[0].language == "de"
    assert one == [pytest.approx(each) for each in rank_languages(GERMAN, ["en", "de", "fr"])] or one[0][1] > 0.9
    found = [each[0].language if each else None for each in client.detect_language([*TEXTS, SPANISH])]
    assert found == ["de", "en", None, "fr", "de", "en", "es"]
    with pytest.raises(jumok.InvalidArgumentError, match="at most 1024 texts"):
        client.detect_language(["a"] * 1025)
    with pytest.raises(jumok.InvalidArgumentError, match="at most 100000 characters"):
        client.detect_language("a" * 100_001)
    assert await_("detect_language", address, [GERMAN]) == [one]


def test_the_command_line(address: str, client: jumok.Client) -> None:
    at = ("--server", address)
    detected = run_here("detect", *at, GERMAN, ENGLISH, "12")
    assert [line.split("\t")[0] for line in detected.stdout.decode().splitlines()] == ["de", "en", "und"]
    lines = run("detect", *at, given=f"{ENGLISH}\n\n{GERMAN}\n".encode())
    assert [line.split("\t")[0] for line in lines.stdout.decode().splitlines()] == ["en", "und", "de"]
    options = ("--source-language", "auto", "--target-language", "fr", "--max-length", "8", "--json")
    done = run_here("translate", *at, *options, GERMAN, ENGLISH)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["source_language"] for answer in answers] == ["de", "en"]
    assert [answer["source_confidence"] > 0.9 for answer in answers] == [True, True]
    unclear = run_here("translate", *at, *options, "Ort", FRENCH)
    assert b"text 1 was taken for" in unclear.stderr
    assert b"text 2 is fr or has no words, and was not translated" in unclear.stderr
    wrong = run("detect", *at, given=b"a\n\xff\n")
    assert (wrong.returncode, b"line 2: byte 1: 0xff is not UTF-8" in wrong.stderr) == (1, True)
