"""Stored glossaries over gRPC: SDK, command line, tokens, and requests that name one."""

import asyncio
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

import jumok
from jumok_proto.glossaries import StoredGlossary
from jumok_proto.v1.glossary_pb2 import CreateGlossaryRequest, GetGlossaryEntriesRequest, ListGlossariesRequest
from jumok_proto.v1.glossary_pb2 import GlossaryEntries as ProtoEntries
from jumok_proto.v1.translation_pb2 import Glossary, TranslateTextRequest
from jumok_serve import GlossaryEntries, GlossaryStore, Translator
from jumok_serve.service.handlers.glossary_service import MAX_READING
from tests.support.clients import Call, await_, wait
from tests.support.command import run, run_here, serve
from tests.support.hang import HANG_S, until
from tests.support.logs import own_records
from tests.support.servers.fake_model import FakeModel, failure, stub_of
from tests.support.servers.fake_model import serving as serving_fake
from tests.support.servers.in_process_server import check_idle, serving
from tests.support.servers.losing_proxy import losing_proxy
from tests.support.servers.tokens import bearer, tokens_of

TEXT = "The old woman and the dog in the park."
TERMS = {"dog": "Hund", "old woman": ["alte Frau", "Frau"]}
SHORT: dict[str, Any] = {"beam_size": 3, "max_length": 20}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GlossaryStore:
    return GlossaryStore(tmp_path_factory.mktemp("glossaries"))


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path, store: GlossaryStore) -> Iterator[Translator]:
    with Translator(tiny_bundle, precision="fp32", threads=1, glossaries=store) as opened:
        yield opened


@pytest.fixture(scope="module")
def address(translator: Translator, store: GlossaryStore) -> Iterator[str]:
    with serving(translator, glossaries=store) as served:
        yield served


def test_a_stored_glossary_equals_its_entries_in_all_calls(client: jumok.Client, translator: Translator) -> None:
    expected = translator.translate(TEXT, glossary=TERMS, **SHORT)
    made = client.glossaries.create("people", TERMS)
    assert made.dictionaries[0].entry_count == 2
    for name in ("people", made.id):
        assert client.translate(TEXT, stored_glossary=name, **SHORT) == expected
    *_, last = client.translate_stream(TEXT, stored_glossary="people", **SHORT)
    assert last.translation == expected
    results = client.translate_iter([TEXT, TEXT], stored_glossary="people", **SHORT)
    assert [result.translation for result in results] == [expected, expected]
    assert translator.translate(TEXT, stored_glossary="people", **SHORT) == expected
    client.glossaries.delete("people")
    check_idle(translator)


async def test_one_change_is_checked_at_a_time_also_if_its_call_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    go_on = threading.Event()
    create = GlossaryStore.create

    def held(self: GlossaryStore, owner: str, name: str, dictionaries: Sequence[GlossaryEntries]) -> StoredGlossary:
        begun.append(name)
        assert go_on.wait(HANG_S)
        return create(self, owner, name, dictionaries)

    monkeypatch.setattr(GlossaryStore, "create", held)
    async with serving_fake(FakeModel(), glossaries=GlossaryStore(tmp_path)) as (_, channel):
        stub = stub_of(channel)

        def make(name: str) -> Any:
            return stub.CreateGlossary(CreateGlossaryRequest(name=name, dictionaries=[ProtoEntries(tsv="a\tb")]))

        first = make("first")
        await until(lambda: begun == ["first"])
        first.cancel()
        second = make("second")
        assert not (await stub.ListGlossaries(ListGlossariesRequest())).glossaries  # reads do not wait
        assert begun == ["first"]
        go_on.set()
        assert (await second).glossary.name == "second"
        kept = (await stub.ListGlossaries(ListGlossariesRequest())).glossaries
        assert sorted(one.name for one in kept) == ["first", "second"]


async def test_entries_that_were_read_do_not_pile_up_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    go_on = threading.Event()
    entries = GlossaryStore.entries

    def held(self: GlossaryStore, owner: str, name: str, source: str, target: str) -> GlossaryEntries:
        begun.append(name)
        assert go_on.wait(HANG_S)
        return entries(self, owner, name, source, target)

    monkeypatch.setattr(GlossaryStore, "entries", held)
    store = GlossaryStore(tmp_path)
    store.create("", "pets", [GlossaryEntries(tsv="a\tb\n")])
    async with serving_fake(FakeModel(), glossaries=store) as (server, channel):
        stub = stub_of(channel)
        calls = [stub.GetGlossaryEntries(GetGlossaryEntriesRequest(glossary="pets")) for _ in range(3 * MAX_READING)]
        await until(lambda: len(begun) == MAX_READING)
        assert [one.name for one in (await stub.ListGlossaries(ListGlossariesRequest())).glossaries] == ["pets"]
        assert len(begun) == MAX_READING
        calls.pop(0).cancel()  # its thread goes on
        await until(lambda: server.open_calls == len(calls))
        assert [one.name for one in (await stub.ListGlossaries(ListGlossariesRequest())).glossaries] == ["pets"]
        assert len(begun) == MAX_READING
        go_on.set()
        assert {(await call).entries.tsv for call in calls} == {"a\tb\n"}


def test_entries_of_a_request_come_before_stored_ones(client: jumok.Client) -> None:
    client.glossaries.create("both", TERMS)
    terms = client.translate(TEXT, glossary={"the dog": "Vieh"}, stored_glossary="both", **SHORT).hypotheses[0].terms
    assert [(term.source, term.targets) for term in terms] == [
        ("old woman", ("alte Frau", "Frau")),
        ("the dog", ("Vieh",)),
    ]
    client.glossaries.delete("both")


@pytest.mark.parametrize("call", [wait, await_])
def test_the_sdk_keeps_glossaries(address: str, call: Call) -> None:
    languages: dict[str, Any] = {"source_language": "en", "target_language": "de"}
    made = call("glossaries.create", address, "pets", "# ours\ndog\tHund\n", **languages)
    assert call("glossaries.list", address) == [made] == [call("glossaries.get", address, "pets")]
    assert call("glossaries.entries", address, made.id) == {"dog": ("Hund",)}
    changed = call("glossaries.update", address, "pets", {"#1": "Nr. 1"}, **languages)
    assert (changed.id, changed.created) == (made.id, made.created)
    assert call("glossaries.entries", address, "pets", source_language="en-GB") == {"#1": ("Nr. 1",)}
    with pytest.raises(jumok.InvalidArgumentError, match="'pets' is stored already") as used:
        call("glossaries.create", address, "pets", {"a": "b"})
    assert used.value.field == "name"
    assert call("glossaries.delete", address, made.id) == changed
    assert call("glossaries.list", address) == []
    with pytest.raises(jumok.GlossaryNotFoundError, match="no glossary 'pets' is stored; available: none"):
        call("glossaries.get", address, "pets")


@pytest.mark.parametrize("method", ["CreateGlossary", "UpdateGlossary", "DeleteGlossary"])
def test_a_change_whose_answer_is_lost_is_made_once(address: str, method: str) -> None:
    with losing_proxy(address, method) as (proxy, lost), jumok.Client(proxy) as client:
        made = client.glossaries.create("lost", {"dog": "Hund"})
        changed = client.glossaries.update("lost", {"cat": "Katze"})
        assert changed.id == made.id
        assert client.glossaries.list() == [changed]
        assert client.glossaries.delete("lost") == changed
        assert client.glossaries.list() == []
        with pytest.raises(jumok.GlossaryNotFoundError):
            client.glossaries.delete("lost")
        assert lost


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("a\tb\nc\n", "line 2 needs a source term"),
        ("dog\tHund\nDog\tKöter\n", "line 2 has the source term of line 1"),
        ({"a": ""}, "line 1 has an empty term"),
        ({"a": []}, "line 1 needs a source term"),
        ({"a": "b\tc"}, "entries: the term 'b.tc' has a tab"),
        ({1: "b"}, "must be a str, got int"),
        (["a"], "entries: must map source terms to target terms, got list"),
        ("\udcff\ta", "lone surrogate"),
    ],
)
def test_entries_that_are_refused(client: jumok.Client, entries: Any, message: str) -> None:
    with pytest.raises(jumok.InvalidArgumentError, match=message):
        client.glossaries.create("wrong", entries)
    assert client.glossaries.list() == []


def test_requests_whose_glossary_does_not_fit(
    client: jumok.Client, translator: Translator, store: GlossaryStore
) -> None:
    store.create("", "french", [GlossaryEntries(tsv="dog\tchien", source_language="en", target_language="fr")])
    with pytest.raises(jumok.InvalidArgumentError, match="'french' has no entries from en to de; it has en to fr"):
        client.translate(TEXT, stored_glossary="french")
    with pytest.raises(jumok.GlossaryNotFoundError, match="no glossary 'unknown' is stored; available: french"):
        list(client.translate_iter([TEXT], stored_glossary="unknown"))
    with pytest.raises(jumok.InvalidArgumentError, match="stored_glossary: must be a str, got int"):
        client.translate(TEXT, stored_glossary=1)  # type: ignore[call-overload]
    with pytest.raises(jumok.GlossaryNotFoundError):
        translator.translate(TEXT, stored_glossary="unknown")
    store.delete("", "french")
    check_idle(translator)


def test_servers_and_translators_without_a_folder(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, precision="fp32", threads=1) as translator, serving(translator) as address:
        with jumok.Client(address) as client:
            for refused in (client.glossaries.list, lambda: client.translate("a", stored_glossary="b")):
                with pytest.raises(jumok.GlossariesUnavailableError, match="start it with --glossaries FOLDER"):
                    refused()
        with pytest.raises(jumok.GlossariesUnavailableError, match="give it the parameter glossaries"):
            translator.translate("a", stored_glossary="b")


async def test_each_token_has_its_own_glossaries(tmp_path: Path) -> None:
    tokens, secrets = tokens_of(tmp_path, one="translate", two="translate", operator="admin")
    one, two, operator = map(bearer, secrets.values())
    store = GlossaryStore(tmp_path / "glossaries")
    store.create("one", "pets", [GlossaryEntries(tsv="a\tb")])
    request = TranslateTextRequest(contents=["a"], glossary=Glossary(stored="pets"))
    async with serving_fake(FakeModel(), tokens=tokens, glossaries=store) as (_, channel):
        stub = stub_of(channel)
        for owner, names in ((one, ["pets"]), (two, [])):
            listed = await stub.ListGlossaries(ListGlossariesRequest(), metadata=owner)
            assert [glossary.name for glossary in listed.glossaries] == names
        assert await stub.TranslateText(request, metadata=one)
        refused = await failure(stub.TranslateText(request, metadata=two))
        assert refused.info.reason == "GLOSSARY_NOT_FOUND"
        refused = await failure(stub.ListGlossaries(ListGlossariesRequest(), metadata=operator))
        assert refused.info.reason == "NOT_ALLOWED"


def test_the_command_line(tiny_bundle: Path, tmp_path: Path) -> None:
    terms = tmp_path / "pets.tsv"
    terms.write_text("dog\tHund\n\ncat\tKatze\tKater\n", encoding="utf-8")
    with serve(tiny_bundle, "--precision", "fp32", "--glossaries", tmp_path / "kept") as (_, address):
        at = ("--server", address)
        languages = ("--source-language", "en", "--target-language", "de")
        made = run_here("glossary", "create", "pets", terms, *languages, *at)
        assert made.stdout.decode().startswith("pets\t")
        assert made.stdout.decode().endswith("\ten to de: 2\n")
        assert run_here("glossary", "list", *at).stdout == made.stdout
        assert run_here("glossary", "show", "pets", *at).stdout.decode() == "dog\tHund\ncat\tKatze\tKater\n"
        again = run_here("glossary", "create", "pets", "-", *languages, *at, given=b"dog\tDogge\n")
        assert (again.returncode, b"'pets' is stored already" in again.stderr) == (1, True)
        replaced = run_here("glossary", "create", "pets", "-", "--replace", *languages, *at, given=b"dog\tDogge\n")
        assert replaced.stdout.split(b"\t")[1] == made.stdout.split(b"\t")[1]
        answer = run_here("translate", *at, "--glossary", "pets", "--term", "man=Mann", "--json", "A dog and a man.")
        assert answer.returncode == 0, answer.stderr
        assert b'"Dogge"' in answer.stdout
        assert b'"Mann"' in answer.stdout
        missing = run_here("translate", *at, "--glossary", "other", "A dog.")
        assert b"no glossary 'other' is stored; available: pets" in missing.stderr
        new = run_here("glossary", "create", "new", "-", "--replace", *at, given=b"dog\tDogge\n")
        assert new.stdout.decode().endswith("\tany to any: 1\n")
        assert run_here("glossary", "delete", "pets", *at).stdout == b"deleted pets\n"
        wrong = run_here("glossary", "create", "wrong", "-", *at, given=b"dog\n")
        assert (wrong.returncode, b"line 1 needs a source term" in wrong.stderr) == (1, True)
        empty = run_here("glossary", "create", "empty", "-", *at, given=b"# none\n\n")
        assert (empty.returncode, b"- has no entries" in empty.stderr) == (2, True)
    assert len(list((tmp_path / "kept" / "shared").iterdir())) == 1


def test_names_that_the_command_line_refuses(tiny_bundle: Path) -> None:
    for options in (
        ("--bundle", tiny_bundle, "--glossary", "pets"),
        ("--server", "localhost:1", "--glossary", "a/b.tsv"),
    ):
        done = run_here("translate", *options, "A dog.")
        assert done.returncode == 2
        assert b"no such file; servers alone keep glossaries by name" in done.stderr


def test_a_folder_that_cannot_be_made(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("serve", tiny_bundle, "--port", "0", "--glossaries", tmp_path / "file" / "kept")
    assert done.returncode == 2
    assert b"--glossaries: the folder" in done.stderr
    assert b"choose another" in done.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_folder_that_cannot_be_written_is_a_reason_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing stays of the change, and the next one succeeds."""

    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    async def scenario() -> None:
        async with serving_fake(FakeModel(), glossaries=GlossaryStore(tmp_path)) as (_, channel):
            stub = stub_of(channel)
            request = CreateGlossaryRequest(name="pets", dictionaries=[ProtoEntries(tsv="a\tb")])
            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", full)
                refused = await failure(stub.CreateGlossary(request))
            assert (refused.code, refused.info.reason) == (
                grpc.StatusCode.FAILED_PRECONDITION,
                "GLOSSARIES_UNAVAILABLE",
            )
            assert f"{os.strerror(number)}; make room there, or let the server read and write it" in refused.message
            assert [*(tmp_path / "shared").iterdir()] == []
            made = (await stub.CreateGlossary(request)).glossary
            assert [*(await stub.ListGlossaries(ListGlossariesRequest())).glossaries] == [made]

    asyncio.run(scenario())
    assert not [record for record in own_records(caplog) if record.exc_info]
    assert "the folder of glossaries cannot be used" in caplog.text


async def test_a_folder_that_is_gone_is_named_by_all_calls(tmp_path: Path) -> None:
    folder = tmp_path / "glossaries"
    async with serving_fake(FakeModel(), glossaries=GlossaryStore(folder)) as (_, channel):
        folder.rmdir()
        refused = [
            await failure(stub_of(channel).ListGlossaries(ListGlossariesRequest())),
            await failure(
                stub_of(channel).TranslateText(TranslateTextRequest(contents=["a"], glossary=Glossary(stored="pets")))
            ),
        ]
        for one in refused:
            assert one.info.reason == "GLOSSARIES_UNAVAILABLE"
            assert "No such file or directory" in one.message
            assert str(tmp_path) not in one.message
