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
    copy = TemporaryDirectory(prefix="jumok-", ignore_cleanup_errors=True)
    try:
        for file in (MANIFEST_FILE, *files):
            to = Path(copy.name) / file
            to.parent.mkdir(parents=True, exist_ok=True)
            with RegularFile(folder / file) as source:
                source.copy(to)
    except (OSError, UnusableFileError) as error:
        copy.cleanup()
        raise BundleError(folder, [f"{file} cannot be copied: {error}"]) from error
    except BaseException:
        copy.cleanup()
        raise
    return copy
