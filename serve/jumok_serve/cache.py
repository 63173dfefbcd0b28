"""The user's cache folder: verdicts on bundles, and bundles imported by name."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import platformdirs

CACHE_VARIABLE = "JUMOK_CACHE"
"""Environment variable with the folder of jumok's cache."""
EXAMPLE = "Helsinki-NLP/opus-mt-en-de"
"""A name for messages."""
PREFIX = "hf:"
"""Beginning of texts that are names in any case."""
_PART = r"(?![.-])(?!\S*(?:--|\.\.))[\w.-]{1,96}"
_REVISION = r"(?!\S*(?:\.\.|//))\w[\w./-]{0,254}"
_HUB_NAME = re.compile(rf"(?P<name>{_PART}/{_PART})(?:@(?P<revision>{_REVISION}))?", re.ASCII)
_MANIFEST = "manifest.json"


def cache_folder() -> Path:
    """Return JUMOK_CACHE, or else the system's folder for caches of ``jumok``.

    Raises:
        RuntimeError: there is no home folder.
    """
    folder = Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("jumok", appauthor=False))
    if folder.parts[:1] == ("~",):
        raise RuntimeError(f"there is no home folder for a cache: set {CACHE_VARIABLE}")
    return folder


@dataclass(frozen=True)
class HubName:
    """Name of a model on the Hugging Face Hub.

    Attributes:
        name: organization or user, and model, as in ``Helsinki-NLP/opus-mt-en-de``.
        revision: branch, tag or commit; None: the main branch.
    """

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    @property
    def bundle(self) -> Path:
        """Folder of the bundle in the cache, if the model was imported."""
        revision = "" if self.revision is None else f"@{quote(self.revision, safe='')}"
        return _bundles() / f"{self.name}{revision}"

    def is_cached(self) -> bool:
        """True if the model was imported."""
        return (self.bundle / _MANIFEST).is_file()


def parse_hub_name(text: str) -> HubName | None:
    """Parse ``ORG/NAME``, ``ORG/NAME@REVISION`` or either after ``hf:``; None for other texts.

    Without ``hf:``, a path into an existing folder is no name.
    """
    found = _HUB_NAME.fullmatch(text.removeprefix(PREFIX))
    if found is None or (not text.startswith(PREFIX) and Path(text).parent.exists()):
        return None
    revision = found["revision"]
    return HubName(found["name"], None if revision == "main" else revision)


def cached_models() -> Iterator[HubName]:
    """Iterate over the names of imported models, in order."""
    for manifest in sorted(_bundles().glob(f"*/*/{_MANIFEST}")):
        name = parse_hub_name(PREFIX + unquote(manifest.parent.relative_to(_bundles()).as_posix()))
        if name is not None and name.bundle == manifest.parent:
            yield name


def bundle_size(name: HubName) -> int:
    """Return the bytes of an imported model's bundle."""
    return sum(file.stat().st_size for file in name.bundle.rglob("*") if file.is_file())


def remove(name: HubName) -> None:
    """Remove an imported model; servers that use it keep their open files."""
    shutil.rmtree(name.bundle)
    with suppress(OSError):  # another model of the organization is there
        name.bundle.parent.rmdir()


def _bundles() -> Path:
    return cache_folder() / "bundles"
