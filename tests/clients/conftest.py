"""A scripted service, and a server that offers it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from jumok_proto.v1.translation_pb2_grpc import add_TranslationServiceServicer_to_server
from tests.support.servers.scripted import Scripted


@contextmanager
def served(
    service: Scripted,
    *handlers: grpc.GenericRpcHandler,  # type: ignore[type-arg]  # generic only for type checkers
    address: str = "127.0.0.1:0",
) -> Iterator[str]:
    """Serve on one port; yields the address."""
    server = grpc.server(ThreadPoolExecutor(4), handlers=list(handlers))
    add_TranslationServiceServicer_to_server(service, server)
    port = server.add_insecure_port(address)
    server.start()
    try:
        yield f"{address.rpartition(':')[0]}:{port}"
    finally:
        server.stop(None).wait()


@pytest.fixture
def service() -> Scripted:
    return Scripted()


@pytest.fixture
def address(service: Scripted) -> Iterator[str]:
    with served(service) as address:
        yield address
