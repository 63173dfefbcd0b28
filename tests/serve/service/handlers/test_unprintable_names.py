"""Folders and files with names that are no UTF-8 or hold line ends: every answer and every log has them escaped."""

import asyncio
import logging
import os
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest

from jumok_proto.error_conversion import status_to_proto
from jumok_proto.errors import Details, Resource
from jumok_proto.v1 import admin_pb2
from jumok_serve.bundle.bundle import Bundle
from jumok_serve.errors import BundleError
from tests.serve.service.handlers.test_admin import administered, bundles, load
from tests.support.logs import own_records
from tests.support.servers.fake_model import FakeModel, failure, manifest

NAMES = list(map(os.fsdecode, [b"b\xff", b"c\ndata", b"d\x1b[2J", "e\u2028".encode()]))
ESCAPED = [name.encode("unicode_escape").decode() for name in NAMES]


async def test_bundles_are_listed_and_not_found_whatever_their_names(tmp_path: Path) -> None:
    async with administered(tmp_path, FakeModel(version="2")) as (root, _, channel):
        for name in NAMES:
            root.add(name, manifest("held", "7").model_dump_json())
        listed = {bundle.bundle: bundle for bundle in await bundles(channel)}
        for name in ESCAPED:
            assert listed[name].state == admin_pb2.BUNDLE_STATE_UNUSABLE
            assert "rename it" in listed[name].problem
        assert listed["held-2"].state == admin_pb2.BUNDLE_STATE_LOADED
        for name in ("nowhere", ESCAPED[0]):
            refused = await failure(load(channel, name))
            assert refused.code is not grpc.StatusCode.INTERNAL
            assert all(one.isprintable() for one in refused.message)


def test_a_bundle_is_refused_for_files_of_any_name(
    tiny_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for path in tiny_bundle.iterdir():
        (bundle / path.name).symlink_to(path)
    for name in NAMES:
        (bundle / name).write_bytes(b"")
    with pytest.raises(BundleError) as refused:
        Bundle.open(bundle)
    for name in ESCAPED:
        assert any(problem.startswith(f"{name}: not listed") for problem in refused.value.problems)
    str(refused.value).encode()

    async def scenario() -> None:
        async with administered(tmp_path, FakeModel(version="2")) as (root, _, channel):
            root.load_as = Mock(side_effect=BundleError(root.path, [f"{name}: not listed" for name in NAMES]))
            failed = await failure(load(channel, "held-1"))
            assert failed.code is grpc.StatusCode.FAILED_PRECONDITION
            for name in ESCAPED:
                assert name in failed.message

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert all(record.name == "jumok_serve.service.models.lifecycle" for record in own_records(caplog))


def test_a_status_is_utf_8_whatever_an_error_says() -> None:
    resource = Resource(type="jumok.v1.Model", name="\udcff", description="available: \udcfe")
    status = status_to_proto(grpc.StatusCode.NOT_FOUND, "no \udcff", Details(reason="ANY", resource=resource))
    assert status.message == "no \\udcff"
    assert b"available: \\udcfe" in status.SerializeToString()
