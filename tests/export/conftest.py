"""What the tests of several files need: checkpoints' tokenizers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from .tokenizer_checkpoints import CHECKPOINTS, write


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes the tokenizer of a kind of checkpoint in a fresh folder, with a config.json."""

    def fresh(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        save, config = CHECKPOINTS[kind]
        save(folder)
        write(folder / "config.json", config)
        return folder

    return fresh
