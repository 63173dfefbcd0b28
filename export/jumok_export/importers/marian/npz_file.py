"""Marian's NumPy model files, `.npz`: arrays alone, never objects."""

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from jumok_export.importers.archives import check_inflated
from jumok_export.importers.marian.stored import CONFIGURATION, MarianFile, Stored
from jumok_proto.errors import printable
from jumok_serve.files import RegularFile, UnusableFileError

MOST_CONFIGURATION_BYTES = 2**24
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(path: Path) -> MarianFile:
    """Read a NumPy model file.

    Raises:
        UnusableFileError: another file, a damaged one, or pickled objects; the message continues the file's name.
        OSError: the file cannot be opened.
    """
    items: dict[str, Stored] = {}
    configuration = ""
    with RegularFile(path) as file:
        size = file.size
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            check_inflated(members, size)
            for member in members:
                name = printable(member.filename.removesuffix(".npy"))
                with archive.open(member) as stream:
                    array = _read(name, stream, member.file_size)
                if name == CONFIGURATION:
                    text = array.tobytes()[:MOST_CONFIGURATION_BYTES]
                    configuration = text.rstrip(b"\0").decode("utf-8", "replace")
                elif array.dtype.kind == "f":
                    items[name] = array.astype(np.float32, copy=False)
                else:
                    raise UnusableFileError(f"has {name} in the type {array.dtype}: only floats are read")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise UnusableFileError(f"is damaged, or no .npz file: {error}; download it again") from error
    return MarianFile(items=items, configuration=configuration)


def _read(name: str, stream: IO[bytes], size: int) -> NDArray[Any]:
    """Read one array; its header must say the size that the archive says."""
    try:
        version = npy.read_magic(stream)
        read_header = _HEADERS.get(version)
        if read_header is None:
            raise ValueError(f"version {version} of the format is unknown")
        shape, by_column, dtype = read_header(stream)
    except ValueError as error:
        raise UnusableFileError(f"is damaged: {name} is no array: {error}") from error
    if dtype.hasobject:
        raise UnusableFileError(f"has pickled objects in {name}, which are never loaded: get the model elsewhere")
    needed = math.prod(shape) * dtype.itemsize
    if needed != size - stream.tell():
        raise UnusableFileError(f"is damaged: {name} has the shape {shape} and {size - stream.tell()} bytes")
    values: NDArray[Any] = np.frombuffer(stream.read(needed), dtype)
    return values.reshape(shape, order="F" if by_column else "C")
