"""Download of models from the Hugging Face Hub, verified against its hashes."""

import errno
import hashlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from huggingface_hub import HfApi, constants, errors, snapshot_download, try_to_load_from_cache
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils.tqdm import disable_progress_bars

from jumok_export.errors import ExportError
from jumok_serve.cache import HubName, cache_folder

_FILES = re.compile(r"[^/]+\.(json|safetensors|model|spm|txt|ya?ml|npz)|(pytorch_model|model|lex)[^/]*\.bin", re.ASCII)
"""Files of formats that are imported, none in a folder; not those of other frameworks, nor of training."""
_SAFETENSORS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")
_SAME_WEIGHTS = re.compile(r"pytorch_model.*\.bin(\.index\.json)?")
"""Weights that are not needed beside safetensors."""
_TRANSPORT: type[Exception] = getattr(errors, "HTTPError", OSError)
"""Error of the library's HTTP client: no answer, or a status that is an error."""
_TIMEOUT_S = 30.0
_CHUNK = 2**20


class HubError(ExportError):
    """A model cannot be downloaded."""


def download(name: HubName, progress: Callable[[str], None]) -> Path:
    """Download a model's files of one commit into Hugging Face's cache.

    Returns the folder. Files that are there already are not downloaded again, and a lost connection is resumed. If the
    hub cannot be reached, or HF_HUB_OFFLINE is set, an earlier download is used. The token is that of
    ``hf auth login`` or HF_TOKEN.

    Raises:
        HubError: no such model or revision, no access, no connection, no space, or content that differs from the hub's.
    """
    if not sys.stderr.isatty():
        disable_progress_bars()
    with _explained(name):
        try:
            info = HfApi().model_info(name.name, revision=name.revision, files_metadata=True, timeout=_TIMEOUT_S)
        except errors.HfHubHTTPError:
            raise
        except (_TRANSPORT, errors.OfflineModeIsEnabled) as error:
            return _earlier_download(name, error, progress)
        files = _needed(info.siblings or ())
        missing = [file for file in files if not _is_there(name, file, info.sha)]
        size = sum(file.size or 0 for file in missing)
        progress(f"downloading {name}, commit {info.sha}: {len(missing)} of {len(files)} files, {size / 1e6:.1f} MB")
        _check_space(name, size)
        started = time.monotonic()
        folder = Path(snapshot_download(name.name, revision=name.revision, allow_patterns=_patterns(files)))
        if folder.name != info.sha:
            raise HubError(f"{name} changed at the hub while it was downloaded: run the command again")
        progress(f"verifying the files, downloaded in {time.monotonic() - started:.1f} s")
        for file in missing:
            _verify(folder / file.rfilename, file)
    return folder


@contextmanager
def import_lock(name: HubName, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock on a model's import; waits for another process that has it."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / str(name).replace("/", "--"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another process that imports {name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _explained(name: HubName) -> Iterator[None]:
    """Turn the library's errors into errors with a remedy."""
    hub = constants.ENDPOINT
    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(
            f"{name} is gated: accept its terms at {hub}/{name.name}, and log in by `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"{name.name} is not at {hub}, or it is private: check the name, or log in by `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{name.name} has no revision {name.revision!r}: name a branch, a tag or a commit") from error
    except (_TRANSPORT, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise HubError(
                f"there is no space for {name} in {constants.HF_HUB_CACHE} ({error.strerror}): free some, or set "
                "HF_HOME to another folder"
            ) from error
        raise HubError(f"{name} cannot be downloaded from {hub}: {_first_line(error)}") from error


def _earlier_download(name: HubName, error: Exception, progress: Callable[[str], None]) -> Path:
    offline = isinstance(error, errors.OfflineModeIsEnabled)
    reason = "HF_HUB_OFFLINE is set" if offline else f"{constants.ENDPOINT} cannot be reached ({_first_line(error)})"
    try:
        folder = snapshot_download(
            name.name, revision=name.revision, local_files_only=True, allow_patterns=["config.json"]
        )
    except errors.LocalEntryNotFoundError:
        remedy = "unset it once" if offline else "connect once"
        raise HubError(f"{name} was not downloaded before, and {reason}: {remedy}, or name a local folder") from error
    progress(f"{reason}: importing the earlier download in {folder}")
    return Path(folder)


def _needed(siblings: Sequence[RepoSibling]) -> list[RepoSibling]:
    files = [file for file in siblings if _FILES.fullmatch(file.rfilename)]
    if any(_SAFETENSORS.fullmatch(file.rfilename) for file in files):
        files = [file for file in files if not _SAME_WEIGHTS.fullmatch(file.rfilename)]
    return files


def _patterns(files: Sequence[RepoSibling]) -> list[str]:
    """Patterns of fnmatch that match only these names."""
    return [re.sub(r"([\[*?])", r"[\1]", file.rfilename) for file in files]


def _is_there(name: HubName, file: RepoSibling, commit: str | None) -> bool:
    return isinstance(try_to_load_from_cache(name.name, file.rfilename, revision=commit), str)


def _check_space(name: HubName, size: int) -> None:
    folder = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(parent for parent in (folder, *folder.parents) if parent.exists())).free
    if size > free:
        raise HubError(
            f"{name} takes {size / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free in {folder}: free some, or set "
            "HF_HOME to another folder"
        )


def _verify(path: Path, file: RepoSibling) -> None:
    """Compare a file with the hub's hash, and remove a different one."""
    lfs: Any = file.lfs
    if lfs is not None:
        expected, digest = lfs.sha256, hashlib.sha256()
    elif file.blob_id is not None:
        expected, digest = file.blob_id, hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        return
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise HubError(f"{file.rfilename} was damaged on its way, and is removed: run the command again")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
