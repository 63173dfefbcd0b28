"""A scripted service, and a server that offers it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from jumok_proto.v1.translation_pb2_grpc import add_TranslationServiceServicer_to_server
from tests.support.servers.scripted import Scripted


@pytest.fixture
def service() -> Scripted:
    return Scripted()


@pytest.fixture
def address(service: Scripted) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    add_TranslationServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()
