"""Bounds on zip archives of unknown origin."""

import zipfile
from collections.abc import Iterable

from jumok_serve.files import UnusableFileError

MOST_RATIO = 20
"""Largest ratio of the content to the archive; weights have hardly more than 2, and vocabularies 5."""
MOST_SMALL_BYTES = 64 * 2**20
"""Size of the content up to which the ratio does not matter."""


def check_inflated(members: Iterable[zipfile.ZipInfo], archive_bytes: int) -> None:
    """Refuse an archive that would unpack to far more than its size.

    Raises:
        UnusableFileError: it would; the message continues the file's name.
    """
    inflated = sum(member.file_size for member in members)
    if inflated > max(MOST_SMALL_BYTES, MOST_RATIO * archive_bytes):
        raise UnusableFileError(f"would unpack from {archive_bytes} to {inflated} bytes; get the model elsewhere")
