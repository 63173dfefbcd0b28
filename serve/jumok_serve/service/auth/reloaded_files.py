"""Files whose content is read again after a change."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from jumok_serve.errors import CredentialsError

logger = logging.getLogger(__name__)

Content = TypeVar("Content")
FileState = tuple[int, int, int] | None  # modification time in ns, size, inode


class ReloadedFiles(Generic[Content]):
    """Content of files, checked for changes at every ``get``; thread-safe.

    If changed files are unusable, e.g. a certificate without its new key, the previous content stays in force.

    Args:
        read: reads all files; raises CredentialsError or OSError if they are unusable.

    Raises:
        CredentialsError: the files are unusable now.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], Content]) -> None:
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()
        self._states = self._current_states()
        try:
            self._content = read()
        except OSError as error:
            raise CredentialsError(f"cannot read {error.filename}: {error.strerror}") from error

    def get(self) -> Content:
        """Current content, or the last usable one."""
        with self._lock:
            states = self._current_states()
            if states != self._states:
                self._states = states
                try:
                    self._content = self._read()
                except (CredentialsError, OSError) as error:
                    logger.warning("%s; the previous content stays in force", error)
                else:
                    logger.info("read %s again", ", ".join(map(str, self._paths)))
            return self._content

    def _current_states(self) -> tuple[FileState, ...]:
        return tuple(map(_state, self._paths))


def _state(path: Path) -> FileState:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
