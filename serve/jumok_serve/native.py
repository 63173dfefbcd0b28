"""Native code: the library of kernels, and calls of foreign functions."""

import ctypes
import hashlib
import logging
import struct
import sys
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import onnxruntime
from numpy.typing import NDArray

from jumok_serve.errors import ForeignCodeError

_PASSED = (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)
"""Exceptions that a guard lets pass: they say nothing about the library."""


class ForeignCode:
    """Context that turns every failure of a native library into `ForeignCodeError`.

    Rust libraries raise panics as BaseException. It passes every ``except Exception``, so a call would never be
    answered. Every call of such a library is made within a guard.

    Args:
        library: its name, for the message.
    """

    __slots__ = ("_library",)

    def __init__(self, library: str) -> None:
        self._library = library

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, _PASSED):
            raise ForeignCodeError(f"{self._library} failed: {error}") from error


logger = logging.getLogger(__name__)

LIBRARY = Path(__file__).parent / "kernels/libjumok_kernels.so"
"""Custom operators of ONNX Runtime in the domain ``jumok``, and functions for Python; ``hatch_build.py`` compiles it at
installation."""

ELF_64 = b"\x7fELF\x02\x01"
"""First bytes of a library for little-endian 64-bit processors, the only ones that ONNX Runtime has wheels for."""

ELF_SECTIONS = struct.Struct("<40xQ10xHH2x")
"""Fields of the ELF header: offset of the section table, size of an entry, and number of entries."""


@cache
def library() -> Path | None:
    """Return the library if sessions can use its operators, or None; the first call logs which."""
    try:
        check(LIBRARY)
    except Exception as error:  # ONNX Runtime's errors have no common class, and a server starts after any
        level = logging.WARNING if sys.platform == "linux" else logging.INFO  # elsewhere there is no remedy
        logger.log(level, "native kernels are not used, and translating takes longer: %s", error)
        return None
    logger.info("native kernels are used if a bundle has graphs for them")
    return LIBRARY


def function(name: str, arguments: tuple[Any, ...], *, keep_gil: bool = True) -> Any:
    """Return an int64 function of the library; None without library.

    Functions need no instruction set, so they are there even if sessions cannot use the operators.

    Args:
        arguments: ctypes of its arguments.
        keep_gil: True to keep Python's global lock: for calls of microseconds, waiting for it again costs more.
    """
    return _function(LIBRARY, name, arguments, keep_gil)


@cache
def _function(path: Path, name: str, arguments: tuple[Any, ...], keep_gil: bool) -> Any:
    if not _loads(path):
        return None
    found = getattr((ctypes.PyDLL if keep_gil else ctypes.CDLL)(str(path)), name, None)
    if found is not None:
        found.argtypes, found.restype = arguments, ctypes.c_int64
    return found


@cache
def _loads(path: Path) -> bool:
    try:
        check_file(path)
        ctypes.CDLL(str(path))
    except (OSError, ValueError):  # `library` logs it
        return False
    return True


def address(array: NDArray[Any]) -> int:
    """Return the address of an array's elements."""
    return int(array.ctypes.data)


def pointer(array: Any) -> Any:
    """Return an array's address for calls of a `function`; it keeps an array alive if that is writeable."""
    if array.size and array.flags.writeable:
        return ctypes.byref(ctypes.c_char.from_buffer(array))
    return address(array)


def check(path: Path) -> None:
    """Load a library as sessions do.

    Raises:
        OSError, ValueError: as in `check_file`.
        Exception: from ONNX Runtime, for a file that it cannot load, that has no operators, or that has none for this
            processor.
    """
    check_file(path)
    onnxruntime.SessionOptions().register_custom_ops_library(str(path))


def check_file(path: Path) -> None:
    """Check a library's file, without loading it.

    Raises:
        FileNotFoundError: the file is missing.
        OSError: the file cannot be read.
        ValueError: the file is cut off, or was compiled from other sources than those beside it.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {path}; install a C++ compiler such as g++, and jumok again (pip install -v says why the "
            "kernels are not compiled)"
        )
    content = path.read_bytes()
    size = len(content)
    if content.startswith(ELF_64) and size >= ELF_SECTIONS.size:
        start, entry, entries = ELF_SECTIONS.unpack_from(content)  # the table ends the file
        if size < start + entry * entries:  # the system's loader would read past the end, and crash
            raise ValueError(f"{path} is cut off, {size} of {start + entry * entries} bytes; install jumok again")
    # An editable installation has the sources there; `hatch_build.py` stores their digest in the library.
    sources = sorted([*path.parent.rglob("*.cc"), *path.parent.rglob("*.h")])
    if sources and hashlib.sha256(b"".join(source.read_bytes() for source in sources)).digest() not in content:
        raise ValueError(f"{path} was compiled from other sources than those beside it; install jumok again")
