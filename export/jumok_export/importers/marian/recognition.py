"""Recognition of Marian's model files by their names and first bytes."""

import zipfile
from pathlib import Path

FILES = "a .npz or .bin file of Marian, its vocabularies (.spm or .yml), and maybe decoder.yml and lex.*.bin"
_SUFFIXES = (".npz", ".bin")
_BEGINNINGS = ("special:model.yml", "encoder_", "Wemb")
"""Beginnings of the names of arrays in a .npz file."""
_VERSION = bytes([1, 0, 0, 0, 0, 0, 0, 0])
"""First bytes of a .bin file."""


def is_marian(path: Path) -> bool:
    """True for a model file of Marian, or a folder with one."""
    files = [path] if path.is_file() else path.iterdir() if path.is_dir() else ()
    return any(is_model(file) for file in files)


def is_model(path: Path) -> bool:
    """True for a model file of Marian, damaged or not."""
    if path.suffix not in _SUFFIXES or not path.is_file():
        return False
    try:
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return any(name.startswith(_BEGINNINGS) for name in archive.namelist())
        with path.open("rb") as stream:
            begin = stream.read(8)
    except (OSError, zipfile.BadZipFile):
        # A truncated .npz has lost its table of contents.
        return path.suffix == ".npz" and "model" in path.name
    return begin == _VERSION or (path.name.startswith("model") and "intgemm" in path.name)
