"""A translator of the tiny model, and its server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jumok_serve.translator import Translator
from tests.support.servers.http_server import Served, serving_http


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator


@pytest.fixture(scope="module")
def served(translator: Translator) -> Iterator[Served]:
    """A server without tokens."""
    with serving_http(translator) as served:
        yield served
