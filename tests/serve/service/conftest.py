"""Fixtures of tests of the service: a server of the tiny model, certificates, and the root logger."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import jumok
from jumok_serve import Translator
from tests.support.hang import HANG_S
from tests.support.servers.certificates import Authority
from tests.support.servers.in_process_server import serving


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, precision="fp32", threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def address(translator: Translator) -> Iterator[str]:
    """The address of a server of the model."""
    with serving(translator) as served:
        yield served


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[jumok.Client]:
    with jumok.Client(address, timeout_s=HANG_S) as connected:
        yield connected


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, which has its handlers and level again after the test."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield root
    root.handlers = before
    root.setLevel(level)
