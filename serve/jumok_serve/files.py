"""Files of unknown origin, read within bounds: regular files only, never a pipe or a device."""

import hashlib
import json
import os
import shutil
import stat
from errno import ELOOP, ENODEV, ENXIO
from io import BufferedReader
from pathlib import Path
from typing import Any, Self

MOST_JSON_BYTES = 256 * 2**20
"""Bytes of a JSON file, such as a large vocabulary."""
_SPARSE_BYTES = 16 * 2**20
"""Size from which a file with little data is refused."""
_SPARSE_FACTOR = 8
_CHUNK = 2**20
_BLOCK = 512
"""Bytes of a block in `os.stat_result.st_blocks`."""


class UnusableFileError(ValueError):
    """A file's content cannot be used; the message continues the file's name."""


class RegularFile:
    """A regular file, opened for reading.

    Args:
        follow_links: False to refuse a link in the place of the file.

    Attributes:
        size: bytes.
        identity: numbers that change with the content.

    Raises:
        UnusableFileError: no regular file, or one that is nearly all holes.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], *, follow_links: bool = True) -> None:
        # Opening a pipe would wait for its writer without O_NONBLOCK.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow_links else os.O_NOFOLLOW)
        try:
            self._descriptor = os.open(path, flags)
        except OSError as error:
            if error.errno in (ENXIO, ENODEV):  # a socket, or a device without a driver
                raise UnusableFileError("is not a regular file") from error
            if error.errno == ELOOP and not follow_links:
                raise UnusableFileError("is a link") from error
            raise
        try:
            state = os.fstat(self._descriptor)
            self._check_kind(state)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.size = state.st_size
        self.identity = identity_of(state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def _check_kind(self, state: os.stat_result) -> None:
        if not stat.S_ISREG(state.st_mode):
            raise UnusableFileError("is not a regular file")
        size, on_disk = state.st_size, state.st_blocks * _BLOCK
        little = size >= _SPARSE_BYTES and on_disk * _SPARSE_FACTOR < size
        if little and os.lseek(self._descriptor, 0, os.SEEK_HOLE) < size:  # some file systems count no blocks
            raise UnusableFileError(f"is sparse: {size} bytes, {on_disk} of them on disk")

    def stream(self) -> BufferedReader:
        """Return a stream of the content, from its beginning; it ends with this object."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return open(self._descriptor, "rb", closefd=False)

    def sha256(self) -> str:
        """Return the SHA-256 of the content."""
        with self.stream() as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def copy(self, to: Path) -> None:
        """Copy the content to a new file."""
        with self.stream() as stream, to.open("xb") as copy:
            shutil.copyfileobj(stream, copy, _CHUNK)

    def read(self, limit: int) -> bytes:
        """Return the content.

        Raises:
            UnusableFileError: more than `limit` bytes.
        """
        if self.size > limit:
            raise UnusableFileError(f"is too large: {self.size} bytes, at most {limit} are read")
        with self.stream() as stream:
            content = stream.read(self.size)
        if len(content) < self.size:
            raise UnusableFileError("has been cut off while it was read")
        return content


def read_file(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read a regular file.

    Raises:
        UnusableFileError: no regular file, or more than `limit` bytes.
        OSError: the file cannot be read.
    """
    with RegularFile(path) as file:
        return file.read(limit)


def parse_json(content: bytes) -> Any:
    """Parse JSON.

    Raises:
        UnusableFileError: no JSON, or nested too deeply.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
        raise UnusableFileError(f"is not JSON: {error}") from error


def identity_of(state: os.stat_result) -> tuple[int, ...]:
    """Return the numbers of a file's state that change with its content."""
    return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
