"""Glossaries of DeepL's API, version 2 and 3, by its official client, unmodified."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepl
import pytest
from deepl.api_data import MultilingualGlossaryDictionaryEntries as Entries

from jumok_serve import GlossaryEntries, GlossaryStore
from jumok_serve.http.apis import deepl_glossaries
from jumok_serve.service.auth.tokens import TokenFile
from jumok_serve.translator import Translator
from tests.serve.http.conftest import ThreadsOf
from tests.support.models.variants import directed, edited
from tests.support.servers.http_server import Served, call, serving_http
from tests.support.servers.tokens import token_file

TERMS = {"dog": "Vierbeiner", "blue shirt": "Blauhemd"}
TEXT = "a dog in a blue shirt"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GlossaryStore:
    return GlossaryStore(tmp_path_factory.mktemp("glossaries"))


@pytest.fixture(scope="module")
def french(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Translator]:
    """The tiny model under the name of another pair."""
    bundle = edited(tiny_bundle, tmp_path_factory.mktemp("french") / "bundle", directed("en", "fr"))
    with Translator(bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator


@pytest.fixture(scope="module")
def keeping(translator: Translator, french: Translator, store: GlossaryStore) -> Iterator[Served]:
    """A server of two pairs that keeps glossaries."""
    with serving_http(translator, french, glossaries=store) as served:
        yield served


@pytest.fixture
def client(keeping: Served, store: GlossaryStore) -> deepl.DeepLClient:
    for known in store.list(""):
        store.delete("", known.id)
    return deepl.DeepLClient("any", server_url=keeping.url)


def translated(client: deepl.DeepLClient, glossary: Any, target: str = "DE") -> str:
    found = client.translate_text(TEXT, source_lang="EN", target_lang=target, glossary=glossary)
    assert isinstance(found, deepl.TextResult)
    return found.text


def test_life_of_a_glossary(client: deepl.DeepLClient) -> None:
    pairs = [(one.source_lang, one.target_lang) for one in client.get_glossary_languages()]
    assert pairs == [("en", "de"), ("en", "fr")]
    made = client.create_glossary("pets", "EN", "DE", TERMS)
    assert (made.name, made.ready, made.source_lang, made.target_lang) == ("pets", True, "EN", "DE")
    assert made.entry_count == 2
    assert all(term in translated(client, made) for term in TERMS.values())
    assert all(term in translated(client, made.glossary_id) for term in TERMS.values())
    assert vars(client.get_glossary(made.glossary_id)) == vars(made)
    assert [vars(one) for one in client.list_glossaries()] == [vars(made)]
    assert client.get_glossary_entries(made) == TERMS
    client.delete_glossary(made)
    for missing in (client.get_glossary, client.get_glossary_entries, client.delete_glossary):
        with pytest.raises(deepl.GlossaryNotFoundException):
            missing(made.glossary_id)
    with pytest.raises(deepl.DeepLException, match="Not found") as caught:
        translated(client, made.glossary_id)
    assert caught.value.http_status_code == 404
    assert client.list_glossaries() == []


def test_csv_with_quotes_and_languages(client: deepl.DeepLClient) -> None:
    rows = '"blue, big",Großblau,EN,DE\r\n#dog,"Der ""Hund"""\n\na\u2028b,c\n'
    made = client.create_glossary_from_csv("rows", "EN", "DE", rows)
    assert made.entry_count == 3
    answer = client.get_glossary_entries
    with pytest.raises(ValueError, match="separator"):
        answer(made)  # the client splits at U+2028 too
    client.delete_glossary(made)
    made = client.create_glossary_from_csv("rows", "EN", "DE", rows.partition("\n\n")[0])
    assert answer(made) == {"blue, big": "Großblau", "#dog": 'Der "Hund"'}


def test_life_of_a_glossary_of_several_pairs(client: deepl.DeepLClient) -> None:
    made = client.create_multilingual_glossary(
        "pets", [Entries("EN", "DE", TERMS), Entries("en", "fr", {"dog": "Katze"})]
    )
    assert [(one.source_lang, one.target_lang, one.entry_count) for one in made.dictionaries] == [
        ("EN", "DE", 2),
        ("EN", "FR", 1),
    ]
    assert "Vierbeiner" in translated(client, made)
    assert "Katze" in translated(client, made, "FR")
    assert client.list_glossaries() == []  # version 2 knows glossaries of one pair
    with pytest.raises(deepl.DeepLException, match="several dictionaries: use /v3/glossaries"):
        client.get_glossary(made.glossary_id)
    assert [one.glossary_id for one in client.list_multilingual_glossaries()] == [made.glossary_id]
    assert client.update_multilingual_glossary_name(made, "animals").name == "animals"
    merged = Entries("EN", "DE", {"Dog": "Köter", "man": "Kerl"})
    changed = client.update_multilingual_glossary_dictionary(made, merged)
    assert [one.entry_count for one in sorted(changed.dictionaries, key=lambda one: one.target_lang)] == [3, 1]
    (entries,) = client.get_multilingual_glossary_entries(made, "EN", "DE").dictionaries
    assert str(entries.entries) == "Dog\tKöter\nblue shirt\tBlauhemd\nman\tKerl\n"
    replaced = client.replace_multilingual_glossary_dictionary(made, Entries("EN", "FR", {"man": "Homme"}))
    assert replaced.entry_count == 1
    (entries,) = client.get_multilingual_glossary_entries(made, "EN", "FR").dictionaries
    assert str(entries.entries) == "man\tHomme\n"
    client.delete_multilingual_glossary_dictionary(made, source_lang="EN", target_lang="FR")
    (left,) = client.get_multilingual_glossary(made.glossary_id).dictionaries
    assert left.target_lang == "DE"
    with pytest.raises(deepl.DeepLException, match="no such dictionary"):
        client.delete_multilingual_glossary_dictionary(made, source_lang="EN", target_lang="FR")
    client.delete_multilingual_glossary(made)
    with pytest.raises(deepl.GlossaryNotFoundException):
        client.get_multilingual_glossary(made.glossary_id)


@pytest.mark.parametrize(("source", "target"), [("EN", "DE"), ("En", "dE"), ("en", "de")])
def test_dictionaries_of_other_spellings_are_the_same(
    source: str, target: str, client: deepl.DeepLClient, store: GlossaryStore
) -> None:
    tsv = "dog\tHund\ncat\tKatze\tKater\n"
    store.create("", "pets", [GlossaryEntries(tsv=tsv, source_language=source, target_language=target)])
    (made,) = client.list_multilingual_glossaries()
    client.update_multilingual_glossary_dictionary(made, Entries("en", "DE", {"man": "Mann"}))
    (entries,) = client.get_multilingual_glossary_entries(made, "EN", "de").dictionaries
    assert str(entries.entries) == "dog\tHund\ncat\tKatze\nman\tMann\n"
    assert "cat\tKatze\tKater\n" in store.entries("", "pets", "en", "de").tsv
    replaced = client.replace_multilingual_glossary_dictionary(made, Entries("EN", "DE", TERMS))
    assert replaced.entry_count == 2
    client.update_multilingual_glossary_dictionary(made, Entries("EN", "FR", TERMS))
    client.delete_multilingual_glossary_dictionary(made, source_lang="en", target_lang="de")
    assert [one.target_lang for one in client.get_multilingual_glossary(made.glossary_id).dictionaries] == ["FR"]


def test_many_small_dictionaries_are_read_together_in_a_thread(
    client: deepl.DeepLClient, threads_of: ThreadsOf
) -> None:
    threads = threads_of(deepl_glossaries, "_written")
    lines = "".join(f"w{number}\tv{number}\n" for number in range(100))
    given = [{"source_lang": "en", "target_lang": "de", "entries": lines} for _ in range(50)]
    refused = call(f"{client.server_url}/v3/glossaries", {"name": "many", "dictionaries": given})
    assert refused.status == 400  # the store takes a pair once
    assert (len(threads), len(set(threads))) == (50, 1)
    made = client.create_glossary("large", "EN", "DE", {f"word {number}": f"Wort {number}" for number in range(2000)})
    threads.clear()
    assert client.get_glossary_entries(made)["word 7"] == "Wort 7"
    assert client.get_multilingual_glossary_entries(made.glossary_id, "EN", "DE").dictionaries[0]
    assert len(threads) == 2
    assert all(name.startswith("parsed") for name in threads)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"entries": "dog\n"}, "entries: line 1 needs"),
        ({"entries": "a\tb\n\ndog\tHund\tKöter"}, "entries: line 3 needs"),
        ({"entries": "dog\t "}, "entries: line 1 has an empty term"),
        ({"entries": "dog\tHund\nDOG\tKöter"}, "entries: the source term 'DOG' comes twice"),
        ({"entries": '"dog,Hund', "entries_format": "csv"}, "entries: "),
        ({"entries": "dog,Hund,EN", "entries_format": "csv"}, "entries: row 1 needs"),
        ({"entries": "\n"}, "entries: none is given"),
        ({"entries_format": "xml"}, "entries_format must be tsv or csv"),
        ({"entries": ["dog\tHund"]}, "entries must be a string"),
        ({"target_lang": "JA"}, "no model translates from 'en' to 'JA'"),
        ({"source_lang": None}, "the field source_lang is missing"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": None}, "the field name is missing"),
    ],
)
def test_bad_glossaries_are_refused_by_field(client: deepl.DeepLClient, fields: dict[str, object], words: str) -> None:
    good = {"name": "pets", "source_lang": "EN", "target_lang": "DE", "entries": "dog\tHund", "entries_format": "tsv"}
    url = client.server_url
    answer = call(f"{url}/v2/glossaries", {**good, **fields})
    assert (answer.status, words in answer.content["message"]) == (400, True), answer
    dictionary = {name: value for name, value in {**good, **fields}.items() if name != "name"}
    answer = call(f"{url}/v3/glossaries", {"name": {**good, **fields}["name"], "dictionaries": [dictionary]})
    assert (answer.status, words in answer.content["message"]) == (400, True), answer
    assert client.list_glossaries() == []


@pytest.mark.parametrize("dictionaries", [[], "all", [1], [[]], {"a": 1}, [{}], [{"source_lang": "EN"}] * 101])
def test_wrong_dictionaries_have_a_message(client: deepl.DeepLClient, dictionaries: object) -> None:
    answer = call(f"{client.server_url}/v3/glossaries", {"name": "pets", "dictionaries": dictionaries})
    assert answer.status == 400
    assert answer.content["message"]


def test_translations_with_a_glossary_that_does_not_fit(client: deepl.DeepLClient) -> None:
    made = client.create_glossary("pets", "EN", "DE", TERMS)
    url = f"{client.server_url}/v2/translate"
    request = {"text": [TEXT], "source_lang": "EN", "target_lang": "FR"}
    for fields, words in (
        ({"glossary_id": made.glossary_id}, "no entries from en to fr"),
        ({"glossary_ids": [made.glossary_id, "other"]}, "glossary_ids: one glossary"),
        ({"glossary_id": made.glossary_id, "source_lang": None}, "source_lang: name it"),
        ({"glossary_id": 7}, "glossary_id must be a string"),
    ):
        answer = call(url, {**request, **fields})
        assert (answer.status, words in answer.content["message"]) == (400, True), answer
    one = call(url, {**request, "target_lang": "DE", "glossary_ids": [made.glossary_id]})
    assert "Vierbeiner" in one.content["translations"][0]["text"]
    taken = call(f"{client.server_url}/v3/glossaries/{made.glossary_id}", {"name": "x" * 200}, method="PATCH")
    assert (taken.status, "name" in taken.content["message"]) == (400, True)


def test_entries_with_alternatives_give_the_first(client: deepl.DeepLClient, store: GlossaryStore) -> None:
    made = client.create_glossary("pets", "EN", "DE", {"dog": "Hund"})
    several = GlossaryEntries(tsv="dog\tHund\tKöter\n", source_language="en", target_language="de")
    store.update("", made.glossary_id, dictionaries=[several])
    assert client.get_glossary_entries(made) == {"dog": "Hund"}


def test_each_key_has_its_own(translator: Translator, store: GlossaryStore, tmp_path: Path) -> None:
    file, secrets = token_file(tmp_path, "weblate", "other")
    with serving_http(translator, tokens=TokenFile(file), glossaries=store) as served:
        mine, other = (deepl.DeepLClient(secret, server_url=served.url) for secret in secrets)
        glossary = mine.create_glossary("pets", "EN", "DE", TERMS)
        assert "Vierbeiner" in translated(mine, glossary)
        assert other.list_glossaries() == []
        assert other.list_multilingual_glossaries() == []
        with pytest.raises(deepl.GlossaryNotFoundException):
            other.get_glossary(glossary.glossary_id)
        with pytest.raises(deepl.AuthorizationException):
            deepl.DeepLClient("wrong", server_url=served.url).list_glossaries()


def test_a_server_without_a_folder_has_none(served: Served) -> None:
    client = deepl.DeepLClient("any", server_url=served.url)
    assert client.get_glossary_languages() == []
    assert client.list_glossaries() == []
    with pytest.raises(deepl.DeepLException, match="glossaries") as caught:
        client.create_glossary("pets", "EN", "DE", TERMS)
    assert caught.value.http_status_code == 400
