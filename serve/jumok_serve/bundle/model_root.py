"""Folders of bundles, and private copies of bundles."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from jumok_proto.errors import BundleNotFoundError, InvalidArgumentError, printable
from jumok_serve.bundle.bundle import read_manifest
from jumok_serve.errors import BundleError
from jumok_serve.files import RegularFile, UnusableFileError
from jumok_serve.manifest.parts import MANIFEST_FILE


def copy_bundle(path: str | os.PathLike[str]) -> "TemporaryDirectory[str]":
    """Copy the manifest and the files that it lists into a new temporary folder.

    Raises:
        BundleError: the manifest is invalid, or a file is missing, or there is no space for it.
    """
    folder = Path(path)
    files = read_manifest(folder).files
    try:
        copy = TemporaryDirectory(prefix="jumok-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _not_copied(folder, "it", error) from error
    try:
        for file in (MANIFEST_FILE, *files):
            to = Path(copy.name) / file
            to.parent.mkdir(parents=True, exist_ok=True)
            with RegularFile(folder / file) as source:
                source.copy(to)
    except (OSError, UnusableFileError) as error:
        copy.cleanup()
        raise _not_copied(folder, file, error) from error
    except BaseException:
        copy.cleanup()
        raise
    return copy


def _not_copied(folder: Path, what: str, error: OSError | UnusableFileError) -> BundleError:
    remedy = ": make room in the temporary folder, or set TMPDIR to another" if isinstance(error, OSError) else ""
    return BundleError(folder, [f"{what} cannot be copied: {error}{remedy}"])


logger = logging.getLogger(__name__)

MAX_NAME_LENGTH = 255
"""Characters of a folder's name; file systems allow as many bytes."""


class FoundBundle(NamedTuple):
    """A bundle in the root: folder and model, or the manifest's problem."""

    folder: str
    model: str = ""
    version: str = ""
    problem: str = ""


class ModelRoot:
    """Finds bundles in one folder by their names.

    Args:
        path: the root; if it is a link, its target may change between calls.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def find(self, name: str) -> Path:
        """Return a bundle's folder, links resolved so that later changes are harmless.

        Raises:
            InvalidArgumentError: the name is not a plain name, or is a link out of the root.
            BundleNotFoundError: the root has no such folder.
        """
        if (
            not name
            or len(name) > MAX_NAME_LENGTH
            or name.startswith(".")
            or not name.isprintable()
            or not {"/", "\\"}.isdisjoint(name)
        ):
            raise InvalidArgumentError(
                f"bundle must be the name of a folder in the model root, without a path, got {name!r}", field="bundle"
            )
        try:
            root = self._path.resolve()
            folder = (root / name).resolve()
            if not folder.is_relative_to(root) or folder == root:
                raise InvalidArgumentError(
                    f"bundle {name!r} is a link that leads out of the model root: copy the bundle there", field="bundle"
                )
            found = folder.is_dir()
        except (OSError, RuntimeError):  # such as links in a circle
            found = False
        if not found:
            raise BundleNotFoundError.of(name, [bundle.folder for bundle in self.bundles()])
        return folder

    def bundles(self) -> list[FoundBundle]:
        """Return all bundles by folder name, without names with a leading dot."""
        return sorted(self._bundles())

    def _bundles(self) -> Iterator[FoundBundle]:
        try:
            root = self._path.resolve()
            entries = list(root.iterdir())
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
            logger.warning(
                "the model root %s cannot be read: %s; restore it, or restart with another", self._path, error
            )
            return
        for entry in entries:
            try:
                if not entry.name.startswith(".") and (entry / MANIFEST_FILE).is_file():
                    yield _described(entry, root)
            except (OSError, RuntimeError) as error:
                problem = error.strerror if isinstance(error, OSError) else error
                yield FoundBundle(printable(entry.name), problem=f"cannot be read: {problem}")


def _described(entry: Path, root: Path) -> FoundBundle:
    """Describe a folder of the root; OSError and RuntimeError as it is read."""
    if not entry.name.isprintable():
        return FoundBundle(printable(entry.name), problem="the folder's name is not printable text: rename it")
    if not entry.resolve().is_relative_to(root):
        return FoundBundle(entry.name, problem="a link that leads out of the model root")
    try:
        manifest = read_manifest(entry)
    except BundleError as error:
        return FoundBundle(entry.name, problem="; ".join(error.problems))
    return FoundBundle(entry.name, manifest.name, manifest.version)
