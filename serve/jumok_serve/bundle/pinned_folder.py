"""The folder of an opened bundle: later reads get the files that were checked, or an error."""

import os
import weakref
from collections.abc import Iterable
from pathlib import Path

from jumok_serve.files import RegularFile, UnusableFileError, identity_of
from jumok_serve.manifest.manifest import FileEntry

_DESCRIPTORS = Path("/proc/self/fd")


class PinnedFolder:
    """A folder that stays the same if it is moved, or if its name leads to another one.

    Args:
        folder: the folder.

    Attributes:
        path: path of the same folder, whatever its name.

    Raises:
        OSError: the folder cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, descriptor)
        pinned = _DESCRIPTORS / str(descriptor)
        self.path = pinned if pinned.exists() else folder
        self._checked: dict[str, tuple[FileEntry, tuple[int, ...]]] = {}

    def check(self, file: str, entry: FileEntry) -> None:
        """Compare a file with its entry in the manifest, and remember it.

        Raises:
            UnusableFileError: the file differs, or is no regular file of this folder.
        """
        path = self.path / file
        try:
            if not path.exists():
                raise UnusableFileError("missing")
            if not path.resolve().is_relative_to(self.path.resolve()):
                raise UnusableFileError("a link that leads outside of the bundle")
            with RegularFile(path) as opened:
                if opened.size != entry.size:
                    raise UnusableFileError(f"{opened.size} bytes, the manifest says {entry.size}")
                sha256 = opened.sha256()
        except (OSError, RuntimeError) as exc:  # RuntimeError: links in a circle
            raise UnusableFileError(f"cannot be read: {exc.strerror if isinstance(exc, OSError) else exc}") from exc
        if sha256 != entry.sha256:
            raise UnusableFileError(f"damaged: SHA-256 is {sha256}, the manifest says {entry.sha256}")
        self._checked[file] = entry, opened.identity

    def changed(self, files: Iterable[str]) -> list[str]:
        """List files that changed since they were checked."""
        return [f"{file}: changed while the bundle was in use" for file in files if not self._is_unchanged(file)]

    def _is_unchanged(self, file: str) -> bool:
        entry, identity = self._checked[file]
        try:
            if identity_of(os.stat(self.path / file)) == identity:
                return True
            self.check(file, entry)  # a link or new permissions change the numbers and not the content
        except (OSError, UnusableFileError):
            return False
        return True
