"""The protocol of readers."""

import random
from collections.abc import Sequence
from typing import Protocol


class Reader(Protocol):
    """A reader of strangers' bytes."""

    def read(self, data: bytes) -> None:
        """Read bytes; raises only for a fault of the server."""

    def seeds(self) -> Sequence[bytes]:
        """Return inputs that fuzzing begins with."""

    def mutate(self, data: bytes, source: random.Random) -> bytes | None:
        """Change data by what is known of its form; None: change it as bytes."""
