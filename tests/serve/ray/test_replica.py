"""A replica without Ray: its RPCs as methods, its bundles, its HTTP application; and settings of applications."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from jumok_proto.v1.translation_pb2 import (
    CorpusItem,
    CorpusSettings,
    StreamTranslateTextRequest,
    TranslateCorpusRequest,
    TranslateCorpusResponse,
    TranslateTextRequest,
    TranslateTextResponse,
)
from jumok_serve.cli.settings import Configuration
from jumok_serve.errors import BundleError, ConfigurationError
from jumok_serve.manifest.manifest import Manifest
from jumok_serve.ray import app
from jumok_serve.ray.deployment import Replica
from jumok_serve.translator import Translator
from tests.support.servers.ray_proxy import RayContext


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo the replica's setting of the root logger, which a process has for itself otherwise."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


class Caller:
    """A caller's part of a context."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return []


@asynccontextmanager
async def replica_of(bundle: Path, version: str | None = None) -> AsyncIterator[Any]:
    """Construct a replica as Ray does, and destruct it."""
    manifest = Manifest.model_validate_json((bundle / "manifest.json").read_bytes())
    replica: Any = object.__new__(Replica)
    values = {"bundles": [bundle], "replicas": 1, "threads": 1, "trusted_bundles": True}
    settings = Configuration.model_validate(values)
    try:
        await replica.__init__(settings, {manifest.name: version or manifest.version})
        yield replica
    finally:
        replica.__del__()


async def test_each_rpc_is_a_method(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, threads=1) as translator:
        expected = translator.translate("a man", beam_size=1).text

    async def items() -> AsyncIterator[bytes]:
        settings = CorpusSettings()
        settings.options.beam_size = 1
        yield TranslateCorpusRequest(settings=settings, items=[CorpusItem(id=1, content="a man")]).SerializeToString()
        yield TranslateCorpusRequest(items=[CorpusItem(id=2, content="a man")]).SerializeToString()

    async with replica_of(tiny_bundle) as replica:
        one = TranslateTextRequest(contents=["a man"])
        one.options.beam_size = 1
        response = await replica.TranslateText(one.SerializeToString(), grpc_context=RayContext(Caller()))
        assert isinstance(response, TranslateTextResponse)
        assert response.translations[0].hypotheses[0].text == expected
        text = StreamTranslateTextRequest(content="a man", options=one.options).SerializeToString()
        updates = [each async for each in replica.StreamTranslateText(text, grpc_context=RayContext(Caller()))]
        assert updates[-1].stable_text == expected
        found: list[tuple[int, str]] = []
        async for answer in replica.TranslateCorpus(items(), grpc_context=RayContext(Caller())):
            assert isinstance(answer, TranslateCorpusResponse)
            found += [(each.id, each.translation.hypotheses[0].text) for each in answer.results]
        assert found == [(1, expected), (2, expected)]
        replica.check_health()


async def test_http_is_an_application_with_a_lifespan(tiny_bundle: Path) -> None:
    def check_http(application: Any) -> None:
        with TestClient(application) as client:
            assert client.get("/languages").json()

    async with replica_of(tiny_bundle) as replica:
        await asyncio.to_thread(check_http, replica.__serve_build_asgi_app__())


async def test_a_bundle_that_is_missing_or_of_another_version_stops_a_replica(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        ValueError, match=r"version \S+ on this machine, and the application was built with 0\.9: copy one"
    ):
        await replica_of(tiny_bundle, "0.9").__aenter__()
    broken = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, broken)
    next(broken.glob("**/*.onnx")).unlink()
    with pytest.raises(BundleError, match="bundle"):
        await replica_of(broken).__aenter__()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_text": 3}, "max_text: no such setting"),
        ({"port": 1}, "port: leave it out, Ray's proxies have the ports"),
        ({"model_root": "."}, "model_root: leave it out, a call reaches one replica"),
        ({"max_texts": "many"}, "max_texts = 'many'"),
        ({"http_port": 8080}, "http_port: leave it out"),
        ({"max_connections_of_address": 9}, "max_connections_of_address: leave it out, Ray's proxies"),
        ({"num_replicas": 0}, "num_replicas: Input should be greater than 0"),
        ({"upscale_delay_s": -1}, "upscale_delay_s: Input should be greater than or equal to 0"),
        ({"num_replicas": 3, "max_replicas": 2}, "max_replicas is 2, less than num_replicas, 3"),
    ],
)
def test_wrong_settings_of_an_application_are_named(settings: dict[str, Any], message: str, tiny_bundle: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        app({"bundles": str(tiny_bundle), **settings})


def test_an_application_needs_its_bundles(tmp_path: Path) -> None:
    with pytest.raises((ConfigurationError, BundleError), match="missing"):
        app({"bundles": str(tmp_path / "missing")})
