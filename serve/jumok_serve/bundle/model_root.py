"""The model root: the one folder whose bundles a running server may load."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jumok_proto.errors import BundleNotFoundError, InvalidArgumentError
from jumok_serve.bundle.bundle import read_manifest
from jumok_serve.errors import BundleError
from jumok_serve.manifest.fields import MANIFEST_FILE

MAX_NAME_LENGTH = 255
"""Of a folder, in characters: what file systems allow in bytes."""


class FoundBundle(NamedTuple):
    """A bundle in the root: its folder's name, then what its manifest says, or what is wrong with that."""

    folder: str
    model: str = ""
    version: str = ""
    problem: str = ""


class ModelRoot:
    """Finds bundles by the names of their folders, and nothing outside.

    Args:
        path: of the root; it may be a link, and lead elsewhere from one call to the next.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def find(self, name: str) -> Path:
        """The bundle's folder, links followed, so that it stays the one that was checked.

        Raises:
            InvalidArgumentError: the name is no plain name, or a link that leads out of the root.
            BundleNotFoundError: the root has no such folder.
        """
        if (
            not name
            or len(name) > MAX_NAME_LENGTH
            or name.startswith(".")
            or not name.isprintable()
            or _separates(name)
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
        except (OSError, RuntimeError):  # links in a circle among them
            found = False
        if not found:
            raise BundleNotFoundError.of(name, [bundle.folder for bundle in self.bundles()])
        return folder

    def bundles(self) -> list[FoundBundle]:
        """All bundles, sorted by folder: those folders that hold a manifest, and do not begin with a dot."""
        return sorted(self._bundles())

    def _bundles(self) -> Iterator[FoundBundle]:
        root = self._path.resolve()
        try:
            entries = list(root.iterdir())
        except OSError:
            return
        for entry in entries:
            if entry.name.startswith(".") or not (entry / MANIFEST_FILE).is_file():
                continue
            if not entry.resolve().is_relative_to(root):
                yield FoundBundle(entry.name, problem="a link that leads out of the model root")
                continue
            try:
                manifest = read_manifest(entry)
            except BundleError as error:
                yield FoundBundle(entry.name, problem="; ".join(error.problems))
            else:
                yield FoundBundle(entry.name, manifest.name, manifest.version)


def _separates(name: str) -> bool:
    return "/" in name or "\\" in name
