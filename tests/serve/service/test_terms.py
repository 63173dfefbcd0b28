"""Terms over gRPC: all calls, the SDK and the command line as in process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jumok
from jumok_proto.v1 import translation_pb2
from jumok_serve import Translator
from jumok_serve.service.handlers.translation_service import (
    MAX_REQUEST_ENTRIES,
    RequestTerms,
    request_placeholders,
    request_terms,
    terms_reader,
)
from jumok_serve.text.terms.glossary import PLACEHOLDERS, Glossary
from tests.support.command import run_here
from tests.support.memory import memory_of
from tests.support.servers.in_process_server import check_idle

TEXT = "The old woman and the dog in the park."
GLOSSARY = {"dog": "Hund", "old woman": ["alte Frau", "Frau"]}
TERMS: dict[str, Any] = {"glossary": GLOSSARY, "do_not_translate": ["par*"], "placeholders": ["braces"]}
SHORT: dict[str, Any] = {"beam_size": 3, "max_length": 20}


def test_all_calls_equal_the_translator(client: jumok.Client, translator: Translator) -> None:
    expected = translator.translate(TEXT, **TERMS, **SHORT)
    assert [term.source for term in expected.hypotheses[0].terms] == ["old woman", "dog", "park"]
    assert [term.satisfied for term in expected.hypotheses[0].terms][:2] == [True, True]
    assert expected.beam_size == 8
    assert client.translate(TEXT, **TERMS, **SHORT) == expected
    *updates, last = client.translate_stream(TEXT, **TERMS, **SHORT)
    assert last.translation == expected
    assert all(expected.text.startswith(update.text) for update in updates)
    results = list(client.translate_iter([TEXT, "A girl.", TEXT], **TERMS, **SHORT))
    assert [results[0].translation, results[2].translation] == [expected, expected]
    assert results[1].translation == translator.translate("A girl.", **SHORT)
    check_idle(translator)


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"glossary": {"": "a"}}, "glossary", "a source term is empty"),
        ({"glossary": {"a": " "}}, "glossary", "a target term of 'a' is empty"),
        ({"glossary": {"A": "x", "a": "y"}}, "glossary", "two entries match 'a'"),
        ({"glossary": {"a\tb": "x"}}, "glossary", "has a tab"),
        ({"glossary": {"a": []}}, "glossary", "needs 1 to 8 target terms"),
        ({"glossary": {str(n): "a" for n in range(MAX_REQUEST_ENTRIES + 1)}}, "glossary", "at most 1000 entries"),
        ({"glossary": {str(n): "a" for n in range(100_000)}}, "", "send several requests"),
        ({"glossary": {"dog": "Hund"}, "sample": True}, "options", "terms need a search"),
        ({"do_not_translate": ["*"]}, "do_not_translate", "matches any word"),
        ({"glossary": "a=b"}, "glossary", "must map source terms"),
        ({"glossary": {"a": 1}}, "glossary", "needs a target term"),
        ({"placeholders": ["tags"]}, "placeholders", "unknown kind 'tags'"),
        ({"placeholders": "url"}, "placeholders", "must be True, False or a sequence"),
    ],
)
def test_terms_that_are_refused(
    client: jumok.Client, translator: Translator, options: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(jumok.JumokError, match=message) as error:
        client.translate(TEXT, **options)
    if field:
        assert isinstance(error.value, jumok.InvalidArgumentError)
        assert error.value.field == field
    check_idle(translator)


def test_an_unknown_kind_and_equal_entries_of_a_request_are_refused() -> None:
    entries = [translation_pb2.GlossaryEntry(source="a", targets=[target]) for target in "bc"]
    terms = request_terms(translation_pb2.Glossary(entries=entries))
    assert terms is not None
    with pytest.raises(jumok.InvalidArgumentError, match="two entries match 'a'"):
        terms.find("a")
    copied = translation_pb2.DoNotTranslate(kinds=[99])  # type: ignore[list-item]
    placeholders = request_placeholders(copied, every_kind=False)
    assert placeholders is not None
    with pytest.raises(jumok.InvalidArgumentError, match="unknown kind of placeholders 99"):
        placeholders.find("a")
    assert request_placeholders(copied, every_kind=True) is PLACEHOLDERS


def terms_of(number: int, entries: int) -> RequestTerms:
    glossary = translation_pb2.Glossary(
        entries=[translation_pb2.GlossaryEntry(source=f"{number} {one}", targets=["a" * 250]) for one in range(entries)]
    )
    terms = request_terms(glossary)
    assert isinstance(terms, RequestTerms)
    return terms


def test_terms_of_many_requests_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text of each request asks for its terms; requests with equal ones share them."""
    read = []

    def counted(entries: dict[str, tuple[str, ...]]) -> Glossary:
        read.append(entries)
        return Glossary(entries)

    monkeypatch.setattr("jumok_serve.service.handlers.translation_service.Glossary", counted)
    read_terms = terms_reader()
    for _ in range(3):
        for number in range(60):
            assert read_terms(terms_of(number, 20)).finder.find(f"a {number} 7") != []
    assert len(read) == 60


def test_memory_of_terms_of_many_requests() -> None:
    most = 2**20

    def filled(read_terms: Callable[[RequestTerms], object]) -> object:
        for number in range(20):
            read_terms(terms_of(number, 250))
            read_terms(terms_of(1, 250))
        return read_terms

    assert 0.5 * most < memory_of(lambda: filled(terms_reader(most)))[0] < 1.1 * most
    read_terms = terms_reader(most)
    first = read_terms(terms_of(0, 250))
    filled(read_terms)
    again = read_terms(terms_of(1, 250))
    assert again is read_terms(terms_of(1, 250))
    assert read_terms(terms_of(0, 250)) is not first


def test_no_terms() -> None:
    assert request_terms(translation_pb2.Glossary()) is None
    assert request_placeholders(translation_pb2.DoNotTranslate(), every_kind=False) is None


def test_the_command_line(address: str, translator: Translator, tiny_bundle: Path, tmp_path: Path) -> None:
    glossary = tmp_path / "terms.tsv"
    glossary.write_text("# our terms\nold woman\talte Frau\tFrau\n\n", encoding="utf-8")
    options = ["--term", "dog=Hund", "--glossary", str(glossary), "--do-not-translate", "par*"]
    options += ["--placeholder", "braces", "--beam-size", "3", "--max-length", "20", "--json"]
    expected = translator.translate(TEXT, **TERMS, **SHORT)
    for place in (("--server", address), ("--bundle", tiny_bundle, "--precision", "fp32")):
        done = run_here("translate", *place, *options, TEXT)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)["hypotheses"][0]
        assert answer["text"] == expected.text
        assert [term["source"] for term in answer["terms"]] == ["old woman", "dog", "park"]
        assert (b"lacks the term" in done.stderr) is (not all(t.satisfied for t in expected.hypotheses[0].terms))


@pytest.mark.parametrize(
    ("content", "option", "message"),
    [
        ("a\tb\nc\n", None, "terms.tsv: line 2 needs a source term, a tab and a target term"),
        ("a\t\n", None, "terms.tsv: line 1 has an empty term"),
        ("\tb\n", None, "terms.tsv: line 1 has an empty term"),
        ("a\tb\nA\tc\n", None, "terms.tsv: line 2 has the source term of line 1, 'A'"),
        ("a\tb\n", "dog", "--term 'dog' needs a term, = and its translation"),
        ("a\tb\n", "=dog", "--term '=dog' needs"),
        ("\udcff", None, "cannot be read as UTF-8"),
    ],
)
def test_terms_that_the_command_line_refuses(tmp_path: Path, content: str, option: str | None, message: str) -> None:
    glossary = tmp_path / "terms.tsv"
    glossary.write_bytes(content.encode("utf-8", "surrogateescape"))
    more = [] if option is None else ["--term", option]
    done = run_here("translate", "--server", "localhost:1", "--glossary", glossary, *more, "a")
    assert done.returncode == 2
    assert message in done.stderr.decode()
