"""AdminService: loads, refusals, and the effects on requests and health watchers."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from jumok_proto.v1 import admin_pb2, model_pb2, translation_pb2
from jumok_proto.v1.admin_pb2 import ListBundlesRequest, LoadModelRequest, UnloadModelRequest
from jumok_proto.v1.model_pb2 import GetModelRequest, ListModelsRequest
from jumok_proto.v1.translation_pb2 import TranslateTextRequest
from jumok_serve.errors import BundleError
from jumok_serve.service import Administration, Server
from jumok_serve.service.models.lifecycle import MAX_LOADS
from tests.serve.service.handlers.test_service_corpus import items, opening
from tests.support.hang import HANG_S, until
from tests.support.logs import own_records
from tests.support.servers.fake_model import ONE, FakeModel, failure, hold, manifest, serving, stub_of

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
REQUEST = TranslateTextRequest(model="held", contents=["a"])


class Root:
    """Model root of bundles with manifests only, loaded as fake models."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.loaded: list[FakeModel] = []
        self.load_as: Callable[[str], FakeModel] = lambda version: FakeModel(version=version)
        self.before_load: Callable[[], object] = lambda: None
        for version in ("1", "2", "3"):
            self.add(f"held-{version}", manifest("held", version).model_dump_json())
        self._loop = asyncio.get_running_loop()

    def add(self, folder: str, manifest_json: str) -> None:
        (self.path / folder).mkdir(parents=True)
        (self.path / folder / "manifest.json").write_text(manifest_json, encoding="utf-8")

    def load(self, folder: Path) -> FakeModel:
        self.before_load()

        async def make() -> FakeModel:  # it wants an event loop
            return self.load_as(folder.name.rpartition("-")[2])

        model = asyncio.run_coroutine_threadsafe(make(), self._loop).result(HANG_S)
        self.loaded.append(model)
        return model


@asynccontextmanager
async def administered(
    path: Path, *models: FakeModel, port: int | None = None, **settings: Any
) -> AsyncIterator[tuple[Root, Server, grpc.aio.Channel]]:
    root = Root(path / "root")
    administration = Administration(root=root.path, load=root.load, port=port)
    async with serving(*models, administration=administration, **settings) as (server, channel):
        yield root, server, channel


def load(channel: grpc.aio.Channel, bundle: str) -> Any:
    return stub_of(channel).LoadModel(LoadModelRequest(bundle=bundle))


def unload(channel: grpc.aio.Channel, name: str) -> Any:
    return stub_of(channel).UnloadModel(UnloadModelRequest(name=name))


async def bundles(channel: grpc.aio.Channel) -> Any:
    return (await stub_of(channel).ListBundles(ListBundlesRequest())).bundles


async def states(channel: grpc.aio.Channel) -> list[tuple[str, int]]:
    listed = await stub_of(channel).ListModels(ListModelsRequest())
    return [(model.version, model.state) for model in listed.models]


async def test_a_new_version_takes_requests_and_the_old_one_finishes_those_that_it_has(tmp_path: Path) -> None:
    old = FakeModel(on_submit=hold)
    async with administered(tmp_path, old) as (root, server, channel):
        translate = stub_of(channel).TranslateText
        first = translate(REQUEST)
        accepted = await old.submitted.get()
        answer = await load(channel, "held-2")
        assert (answer.model.version, answer.replaced_version) == ("2", "1")
        assert answer.model.state == model_pb2.MODEL_STATE_SERVING
        assert await states(channel) == [("2", model_pb2.MODEL_STATE_SERVING), ("1", model_pb2.MODEL_STATE_DRAINING)]
        (new,) = root.loaded
        assert (await translate(REQUEST)).translations
        assert new.submitted.qsize() == 1
        assert not old.closed.is_set()
        accepted.complete()
        assert (await first).translations
        await until(old.closed.is_set)
        await server.stop(30)
        assert [held.model for held in server.models.entries()] == [new]
        assert not new.closed.is_set()


async def test_what_cannot_be_loaded_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with administered(tmp_path, FakeModel()) as (root, _, channel):
        messages = []
        for error in (
            BundleError(root.path / "held-2", ["int8/weights.bin: 10 bytes, the manifest says 20"]),
            OSError(errno.ENOSPC, "No space left on device"),
            RuntimeError("a fault of ours"),
        ):
            root.load_as = Mock(side_effect=error)
            refused = await failure(load(channel, "held-2"))
            assert (refused.code, refused.info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "BUNDLE_UNUSABLE")
            messages.append(refused.message)
        assert messages[0] == "bundle held-2: int8/weights.bin: 10 bytes, the manifest says 20"
        assert "No space left on device" in messages[1]
        assert "a fault of ours" in caplog.text
        assert await states(channel) == [("1", model_pb2.MODEL_STATE_SERVING)]
        assert (await stub_of(channel).TranslateText(REQUEST)).translations


async def test_nothing_outside_the_root_is_loaded(tmp_path: Path) -> None:
    async with administered(tmp_path, FakeModel()) as (root, _, channel):
        (tmp_path / "outside").mkdir()
        shutil.copy(root.path / "held-2/manifest.json", tmp_path / "outside")
        (root.path / "linked").symlink_to(tmp_path / "outside")
        (root.path / "itself").symlink_to(root.path)
        (root.path / "circle").symlink_to(root.path / "circle")
        (root.path / "alias").symlink_to(root.path / "held-3")
        (root.path / ".hidden").mkdir()
        names = (
            "",
            ".",
            "..",
            ".hidden",
            "../outside",
            "held-2/",
            "a/b",
            "a\\b",
            "a\0b",
            "a" * 256,
            "linked",
            "itself",
        )
        for name in (*names, str(tmp_path / "outside")):
            refused = await failure(load(channel, name))
            assert (refused.code, refused.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"), name
            assert refused.field == "bundle"
        for name in ("held-9", "circle"):
            refused = await failure(load(channel, name))
            assert (refused.code, refused.info.reason) == (grpc.StatusCode.NOT_FOUND, "BUNDLE_NOT_FOUND")
            assert "available: alias, held-1, held-2, held-3" in refused.resource.description
        assert root.loaded == []
        assert (await load(channel, "alias")).model.version == "3"  # links within are as good as folders


def test_entries_of_the_root_that_cannot_be_read_hide_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with administered(tmp_path, FakeModel()) as (root, _, channel):
            (root.path / "far").symlink_to("a" * 300)
            (root.path / "circle").symlink_to("circle")
            (root.path / "pipe").mkdir()
            os.mkfifo(root.path / "pipe" / "manifest.json")
            (root.path / "held-1" / "manifest.json").unlink()
            (root.path / "held-1" / "manifest.json").symlink_to("a" * 300)
            listed = await bundles(channel)
            assert [(bundle.bundle, bundle.problem) for bundle in listed] == [
                ("far", "cannot be read: File name too long"),
                ("held-1", "cannot be read: File name too long"),
                ("held-2", ""),
                ("held-3", ""),
            ]
            for name in ("far", "HELD-2", "held-2 ", "é" * 255, "held\u20112", "he\u0301ld-2"):
                refused = await failure(load(channel, name))
                assert refused.info.reason == "BUNDLE_NOT_FOUND", name
            for name in ("b" * 4096, "held-2\0", "held-2/../held-3", "\u202eheld-2"):
                refused = await failure(load(channel, name))
                assert refused.info.reason == "INVALID_REQUEST", name
            shutil.rmtree(root.path)
            assert not await bundles(channel)
            root.path.symlink_to(root.path)
            assert not await bundles(channel)
            assert (await failure(load(channel, "held-2"))).info.reason == "BUNDLE_NOT_FOUND"

    asyncio.run(scenario())
    assert "cannot be read" in caplog.text
    assert not [record for record in own_records(caplog) if record.exc_info]


async def test_a_model_that_is_unloaded_finishes_what_it_has_and_is_gone(tmp_path: Path) -> None:
    held = FakeModel(on_submit=hold)
    async with administered(tmp_path, held) as (_, server, channel):
        translate = stub_of(channel).TranslateText
        running = translate(REQUEST)
        accepted = await held.submitted.get()
        unloaded = (await unload(channel, "held")).model
        assert (unloaded.version, unloaded.state) == ("1", model_pb2.MODEL_STATE_DRAINING)
        for request in (REQUEST, ONE):
            refused = await failure(translate(request))
            assert (refused.code, refused.info.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
        assert (await failure(unload(channel, "held"))).code is grpc.StatusCode.NOT_FOUND
        accepted.complete()
        assert (await running).translations
        await until(held.closed.is_set)
        await server.stop(30)
        assert server.models.entries() == []
        assert server.models.counters() == {}
        assert server.models.loads() == {}


async def test_a_corpus_goes_on_with_the_new_version(tmp_path: Path) -> None:
    old = FakeModel(on_submit=hold)
    async with administered(tmp_path, old) as (root, _, channel):
        call = stub_of(channel).TranslateCorpus()
        await call.write(opening("a", model="held"))
        accepted = await old.submitted.get()
        await load(channel, "held-2")
        await call.write(translation_pb2.TranslateCorpusRequest(items=items("b", first=1)))
        (new,) = root.loaded
        await new.submitted.get()
        await until(old.closed.is_set)  # its engine is drained by this, and what it has is answered
        accepted.complete()
        await call.done_writing()
        assert [result.id async for response in call for result in response.results] == [0, 1]


async def test_a_load_goes_on_when_its_caller_leaves_and_the_next_waits_for_it(tmp_path: Path) -> None:
    async with administered(tmp_path) as (root, _, channel):
        began, may_end = threading.Event(), threading.Event()

        def hold_load() -> None:
            began.set()
            assert may_end.wait(HANG_S)

        root.before_load = hold_load
        leaving = load(channel, "held-1")
        await until(began.is_set)
        states = [admin_pb2.BundleState.Name(bundle.state) for bundle in await bundles(channel)]
        assert states == ["BUNDLE_STATE_LOADING", "BUNDLE_STATE_AVAILABLE", "BUNDLE_STATE_AVAILABLE"]
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        began.clear()
        next_load = load(channel, "held-2")
        # As a rule this is taken after it: the load would have begun by now, if it did not wait.
        assert not (await stub_of(channel).ListModels(ListModelsRequest())).models
        assert not began.is_set()
        may_end.set()
        assert (await next_load).replaced_version == "1"


async def test_bundles_are_listed_with_what_is_known_of_them(tmp_path: Path) -> None:
    async with administered(tmp_path, FakeModel(version="2")) as (root, _, channel):
        root.add("broken", "{}")
        (root.path / "no-bundle").mkdir()
        root.add(".partial", "{}")
        listed = await bundles(channel)
        assert [(bundle.bundle, bundle.model, bundle.version, bundle.state) for bundle in listed] == [
            ("broken", "", "", admin_pb2.BUNDLE_STATE_UNUSABLE),
            ("held-1", "held", "1", admin_pb2.BUNDLE_STATE_AVAILABLE),
            ("held-2", "held", "2", admin_pb2.BUNDLE_STATE_LOADED),
            ("held-3", "held", "3", admin_pb2.BUNDLE_STATE_AVAILABLE),
        ]
        assert "no format_version" in listed[0].problem


async def test_health_follows_models(tmp_path: Path) -> None:
    held = FakeModel()
    async with administered(tmp_path, held) as (root, _, channel):
        health = stub_of(channel)

        def watch(service: str) -> Callable[[], Any]:
            answers = aiter(health.Watch(HealthCheckRequest(service=service)))

            async def status() -> int:
                return int((await anext(answers)).status)

            return status

        model, service = watch("models/held"), watch("jumok.v1.TranslationService")
        assert (await model(), await service()) == (SERVING, SERVING)
        await asyncio.to_thread(held.become_ready, False)  # as an engine does
        assert (await model(), await service()) == (NOT_SERVING, NOT_SERVING)
        described = await stub_of(channel).GetModel(GetModelRequest(name="held"))
        assert described.model.state == model_pb2.MODEL_STATE_RECOVERING
        await asyncio.to_thread(held.become_ready, True)
        assert (await model(), await service()) == (SERVING, SERVING)
        await unload(channel, "held")
        assert (await model(), await service()) == (HealthCheckResponse.SERVICE_UNKNOWN, NOT_SERVING)
        await load(channel, "held-2")
        assert (await model(), await service()) == (SERVING, SERVING)
        await asyncio.to_thread(root.loaded[0].become_ready, False)
        assert (await model(), await service()) == (NOT_SERVING, NOT_SERVING)
        assert (await health.Check(HealthCheckRequest())).status == SERVING  # the server itself lives


async def test_counts_go_on_with_a_new_version_and_end_with_the_name(tmp_path: Path) -> None:
    old = FakeModel()
    old.counted.finished = 3
    async with administered(tmp_path, old) as (root, server, channel):
        await load(channel, "held-2")
        root.loaded[0].counted.finished = 4
        assert server.models.counters()["held"].finished == 7
        await server.stop(30)
        assert len(server.models.entries()) == 1
        assert server.models.counters()["held"].finished == 7


async def test_there_is_no_such_service_unless_it_is_configured() -> None:
    async with serving(FakeModel()) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await load(channel, "held-1")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_it_can_have_a_port_of_its_own(tmp_path: Path) -> None:
    async with administered(tmp_path, FakeModel(), port=0) as (_, server, channel):
        assert server.admin_address not in {None, server.address}
        async with grpc.aio.insecure_channel(str(server.admin_address)) as other:
            assert (await load(other, "held-2")).replaced_version == "1"
            assert (await stub_of(channel).TranslateText(REQUEST)).translations
            for refused_there in (load(channel, "held-2"), stub_of(other).TranslateText(REQUEST)):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await refused_there
                assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_bundle_that_is_tried_for_long_holds_up_no_other(tmp_path: Path) -> None:
    """Three of them leave room for a fourth; of those that wait, none is opened once the server stops."""
    root = Root(tmp_path / "root")
    tried, may_end = threading.Semaphore(0), threading.Event()

    def check(folder: Path) -> None:
        if folder.name == "held-1":
            tried.release()
            assert may_end.wait(HANG_S)

    administration = Administration(root=root.path, load=root.load, check=check, cancel_load=may_end.set)
    async with serving(FakeModel(), administration=administration) as (server, channel):
        held = [load(channel, "held-1") for _ in range(MAX_LOADS - 1)]
        for _ in held:
            assert await asyncio.to_thread(tried.acquire, timeout=HANG_S)
        assert (await load(channel, "held-2")).replaced_version == "1"
        assert (await load(channel, "held-3")).replaced_version == "2"
        states = [admin_pb2.BundleState.Name(bundle.state) for bundle in await bundles(channel)]
        assert states == ["BUNDLE_STATE_LOADING", "BUNDLE_STATE_AVAILABLE", "BUNDLE_STATE_LOADED"]
        stopping = asyncio.ensure_future(server.stop(HANG_S))
        for one in held:
            assert (await failure(one)).code is grpc.StatusCode.UNAVAILABLE
        await stopping
        assert len(root.loaded) == 2
