"""The folder of an opened bundle: later reads get the files that were checked, or an error."""

import hashlib
import os
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path

from jumok_proto.errors import BundleNotLoadedError
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
        self._name = folder.name
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

    def mapped(self, file: str) -> "MappedFile":
        """Watch over a checked file that is mapped into memory.

        Raises:
            OSError: the file cannot be opened.
        """
        entry, (_, _, size, modified, _) = self._checked[file]
        return MappedFile(self.path / file, f"bundle {self._name}", entry.sha256, (size, modified))

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


class MappedFile:
    """A file whose content others see as they overwrite it in place; other files of its name change nothing.

    Args:
        of: the thing that it belongs to, for errors.
        sha256: hash of its content.
        state: its size and the time of its last change, in ns, when it had this content.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, of: str, sha256: str, state: tuple[int, int]) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self._descriptor)
        self._path, self._of, self._sha256, self._state = path, of, sha256, state
        self._lock = threading.Lock()
        self._overwritten = False

    def check(self) -> None:
        """Refuse results that may come from other content.

        Raises:
            BundleNotLoadedError: the file was overwritten; it stays refused.
        """
        state = os.fstat(self._descriptor)
        if self._overwritten or (state.st_size, state.st_mtime_ns) != self._state:
            self._check_content((state.st_size, state.st_mtime_ns))

    def _check_content(self, state: tuple[int, int]) -> None:
        with self._lock:
            if not self._overwritten and state != self._state:
                with open(self._descriptor, "rb", closefd=False, buffering=0) as stream:
                    stream.seek(0)
                    self._overwritten = hashlib.file_digest(stream, "sha256").hexdigest() != self._sha256
                self._state = state
            if self._overwritten:
                raise BundleNotLoadedError(
                    f"{self._of} is not as it was opened, load it again: {self._path.name} was overwritten in place"
                )
