"""Names of several servers, whose addresses change while a client has them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import jumok
from jumok_serve.service import Server
from tests.faults.tools.name_server import NameServer
from tests.support.servers.fake_model import FakeModel

NAME = "jumok.default.svc.cluster.local"
WITHIN_S = 20.0
"""Less than the 30 seconds between two look-ups that gRPC leaves by itself."""


@asynccontextmanager
async def at(host: str, port: int) -> AsyncIterator[Server]:
    """Serve a fake model at an address of this machine."""
    server = Server([FakeModel()], host=host, port=port)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


def test_a_client_finds_the_new_addresses_of_a_name_as_soon_as_the_old_are_gone() -> None:
    async def scenario() -> int:
        async with NameServer.opened(NAME) as (names, resolver):
            async with at("127.0.0.2", 0) as first:
                port = int(first.address.rpartition(":")[2])
                names.addresses = ["127.0.0.2"]
                client = jumok.AsyncClient(f"dns://{resolver}/{NAME}:{port}", timeout_s=WITHIN_S, max_attempts=100)
                assert (await client.translate("a")).text == "A"
            async with client, at("127.0.0.3", port):
                names.addresses = ["127.0.0.3"]
                assert (await client.translate("b")).text == "B"
            return names.questions

    assert asyncio.run(scenario()) >= 2


def test_the_name_server_knows_one_name_alone() -> None:
    async def scenario() -> None:
        async with NameServer.opened(NAME) as (names, resolver), at("127.0.0.2", 0) as server:
            names.addresses = ["127.0.0.2"]
            port = server.address.rpartition(":")[2]
            async with jumok.AsyncClient(f"dns://{resolver}/other.{NAME}:{port}", max_attempts=1) as client:
                with pytest.raises(jumok.UnavailableError):
                    await client.translate("a")
            assert names.questions == 0

    asyncio.run(scenario())
