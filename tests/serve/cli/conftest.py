"""A server process and a translator of the tiny model, and the arguments for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jumok_serve.translator import Translator
from tests.support.command import serve

Places = dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def server(tiny_bundle: Path) -> Iterator[str]:
    with serve(tiny_bundle) as (_, address):
        yield address


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def places(server: str, tiny_bundle: Path) -> Places:
    """Arguments of a command that translates with the server, or with the bundle."""
    return {"server": ("--server", server), "bundle": ("--bundle", str(tiny_bundle))}
