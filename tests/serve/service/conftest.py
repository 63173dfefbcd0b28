"""Fixtures of tests of the service: a server of the tiny model, certificates, and the root logger."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from jumok_serve import Translator
from tests.support.servers.certificates import Authority
from tests.support.servers.in_process_server import serving


@pytest.fixture(scope="module")
def served(tiny_bundle: Path) -> Iterator[tuple[str, Translator]]:
    """The address of a server of the tiny model, and the model."""
    with Translator(tiny_bundle, precision="fp32", threads=1) as translator, serving(translator) as address:
        yield address, translator


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
