"""A private copy of a bundle, whose files others do not overwrite."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from jumok_serve.bundle.bundle import read_manifest
from jumok_serve.errors import BundleError
from jumok_serve.files import RegularFile, UnusableFileError
from jumok_serve.manifest.fields import MANIFEST_FILE


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
