"""The protocol of readers, and readers by name."""

import random
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast


class Reader(Protocol):
    """A reader of strangers' bytes."""

    def read(self, data: bytes) -> None:
        """Read bytes; raises only for a fault of the server."""

    def seeds(self) -> Sequence[bytes]:
        """Return inputs that fuzzing begins with."""

    def mutate(self, data: bytes, source: random.Random) -> bytes | None:
        """Change data by what is known of its form; None: change it as bytes."""


def load(name: str, bundle: Path) -> Reader:
    """Import a reader by ``MODULE:READER``, and make it."""
    module, _, kind = name.partition(":")
    return cast("Reader", getattr(import_module(module), kind)(bundle))
