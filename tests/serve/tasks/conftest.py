"""Translators that the tests of a module share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jumok_serve import Translator
from tests.support.models.variants import edited, multilingual


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator


@pytest.fixture(scope="module")
def polyglot(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Translator]:
    """The tiny model with more languages."""
    bundle = edited(tiny_bundle, tmp_path_factory.mktemp("bundle") / "multilingual", multilingual)
    with Translator(bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator
