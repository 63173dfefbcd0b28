"""What is read from files, and read again when they change."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from jumok_serve.errors import CredentialsError

logger = logging.getLogger(__name__)

Content = TypeVar("Content")
State = tuple[tuple[int, int, int] | None, ...]


class Watched(Generic[Content]):
    """Files that are looked at whenever somebody asks; from any thread.

    Files that cannot be used, such as a certificate whose key is not there yet, leave what was read before in force.

    Args:
        paths: the files.
        read: reads them all; raises CredentialsError or OSError where they cannot be used.

    Raises:
        CredentialsError: they cannot be used now.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], Content]) -> None:
        self._paths = paths
        self._read = read
        self._reading = threading.Lock()
        self._state = self._look()
        try:
            self._content = read()
        except OSError as error:
            raise CredentialsError(f"cannot read {error.filename}: {error.strerror}") from error

    def get(self) -> Content:
        """What the files hold, or held when they last could be used."""
        with self._reading:
            state = self._look()
            if state != self._state:
                self._state = state
                try:
                    self._content = self._read()
                except (CredentialsError, OSError) as error:
                    logger.warning("%s; what was read before stays in force", error)
                else:
                    logger.info("read %s again", ", ".join(map(str, self._paths)))
            return self._content

    def _look(self) -> State:
        """What changes whenever a file is written or replaced."""
        return tuple(map(_look, self._paths))


def _look(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
