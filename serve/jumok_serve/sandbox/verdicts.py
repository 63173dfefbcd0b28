"""Good verdicts of trials, in the user's cache folder."""

import logging
from pathlib import Path

from jumok_serve.cache import cache_folder

logger = logging.getLogger(__name__)


class Verdicts:
    """Names of bundles that a trial found good, one empty file each.

    Without a writable folder nothing is kept.

    Args:
        folder: the folder; None: ``verdicts`` in the cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def is_good(self, key: str) -> bool:
        """True if the key was kept."""
        try:
            return (self._path() / key).is_file()
        except (OSError, RuntimeError):  # there is no home folder
            return False

    def keep(self, key: str) -> None:
        """Keep a key, if the folder is writable."""
        try:
            folder = self._path()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / key).touch(mode=0o600)
        except (OSError, RuntimeError) as error:
            logger.debug("the verdict on a bundle is not kept: %s", error)

    def _path(self) -> Path:
        return cache_folder() / "verdicts" if self._folder is None else self._folder
