"""A translator that the tests of a module share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jumok_serve.translator import Translator


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        yield translator
