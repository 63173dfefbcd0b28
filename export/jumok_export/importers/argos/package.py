"""The zip of an Argos Translate package, unpacked within bounds."""

import json
import re
import shutil
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from jumok_export.importers.archives import check_inflated
from jumok_export.importers.huggingface.errors import CheckpointError
from jumok_serve.files import UnusableFileError

METADATA, PIECES, BPE, MODEL = "metadata.json", "sentencepiece.model", "bpe.model", "model"
_NEEDED = re.compile(rf"{METADATA}|{PIECES}|{BPE}|{MODEL}/[^/]+")
"""Files that an import reads; those for splitting sentences are left out."""
_SPLITTERS = ("minisbd", "stanza", "spacy")
"""Folders of the package's sentence splitters, in the order in which Argos Translate takes them."""
_MOST_MEMBERS = 100_000
_MOST_METADATA_BYTES = 2**20
_CHUNK = 2**20


@dataclass(frozen=True, kw_only=True)
class Package:
    """An unpacked package.

    Attributes:
        folder: folder with the package's files.
        metadata: content of metadata.json.
        splitter: name of the sentence splitter that the package has; None: none.
    """

    folder: Path
    metadata: Mapping[str, Any]
    splitter: str | None


def unpack(path: Path, folder: Path) -> Package:
    """Unpack the files of a package that an import needs.

    Args:
        path: an .argosmodel file, or the folder of an installed package, which is used where it is.
        folder: empty folder for the files.

    Raises:
        CheckpointError: no package, names that leave it, or a bomb; lists all problems.
        OSError: there is no space.
    """
    if path.is_dir():
        splitter = next((name for name in _SPLITTERS if (path / name).is_dir()), None)
        return Package(folder=path, metadata=_metadata(path), splitter=splitter)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            root = _check(members)
            check_inflated(members, path.stat().st_size)
            splitter = next(
                (name for name in _SPLITTERS if any(one.filename.startswith(f"{root}{name}/") for one in members)), None
            )
            for member in members:
                name = member.filename.removeprefix(root)
                if member.filename.startswith(root) and _NEEDED.fullmatch(name):
                    _write(archive, member, folder / name)
    except UnusableFileError as error:
        raise CheckpointError([f"{path.name} {error}"]) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise CheckpointError([f"{path.name} is no zip of a package, or is damaged: {error}"]) from error
    return Package(folder=folder, metadata=_metadata(folder), splitter=splitter)


def _check(members: list[zipfile.ZipInfo]) -> str:
    """Check all members; returns the package's folder, with which their names begin."""
    if len(members) > _MOST_MEMBERS:
        raise CheckpointError([f"the package has {len(members)} files, at most {_MOST_MEMBERS} are read"])
    counts = Counter(member.filename for member in members)
    problems = [f"{name!r} is there {count} times" for name, count in counts.items() if count > 1]
    for member in members:
        parts = PurePosixPath(member.filename).parts
        if ".." in parts or member.filename.startswith("/") or "\\" in member.filename or ":" in member.filename:
            problems.append(f"{member.filename!r} leaves the package's folder")
        elif stat.S_ISLNK(member.external_attr >> 16):
            problems.append(f"{member.filename!r} is a link")
    if problems:
        raise CheckpointError(problems[:10])
    roots = [member.filename.removesuffix(METADATA) for member in members if _is_metadata(member.filename)]
    if len(roots) != 1:
        raise CheckpointError([f"the package has {len(roots) or 'no'} files named {METADATA}, it must have one"])
    return roots[0]


def _is_metadata(name: str) -> bool:
    return PurePosixPath(name).name == METADATA and len(PurePosixPath(name).parts) <= 2


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    """Write a member's content, of no more bytes than it says."""
    path.parent.mkdir(exist_ok=True)
    with archive.open(member) as stream, path.open("xb") as file:
        shutil.copyfileobj(stream, file, _CHUNK)  # zipfile ends at the stated size, and compares the checksum


def _metadata(folder: Path) -> Mapping[str, Any]:
    path = folder / METADATA
    if not path.is_file() or path.stat().st_size > _MOST_METADATA_BYTES:
        raise CheckpointError([f"{METADATA} is missing or too large"])
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError([f"{METADATA} is not JSON: {error}"]) from error
    if not isinstance(content, dict):
        raise CheckpointError([f"{METADATA} must hold an object"])
    return content
