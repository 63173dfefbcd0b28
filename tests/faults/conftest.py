"""A translator of a small model, for the scenarios in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jumok_serve.translator import Translator


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, threads=1) as opened:
        yield opened
