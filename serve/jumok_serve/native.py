"""The library of native kernels, where it was compiled and can be used."""

import ctypes
import hashlib
import logging
import struct
from functools import cache
from pathlib import Path
from typing import Any

import onnxruntime
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

LIBRARY = Path(__file__).parent / "kernels/libjumok_kernels.so"
"""Custom operators of ONNX Runtime's, in the domain ``jumok``, and functions for Python; an installation compiles them,
by ``hatch_build.py``."""

ELF_64 = b"\x7fELF\x02\x01"
"""How a library begins for a little-endian processor of 64 bits; ONNX Runtime has wheels for no other."""

ELF_SECTIONS = struct.Struct("<40xQ10xHH2x")
"""Of its header: where the table of sections begins, the size of an entry, and their number."""


@cache
def library() -> Path | None:
    """The library, or None where graphs without its operators have to do. Logs which, when it is first called."""
    try:
        check(LIBRARY)
    except Exception as error:  # ONNX Runtime's have no common class; and whatever it is, a server starts
        level = logging.WARNING if isinstance(error, ValueError) else logging.INFO  # the installation is broken, or old
        logger.log(level, "native kernels are not used, and translating takes longer: %s", error)
        return None
    logger.info("native kernels are used, where a bundle has graphs for them")
    return LIBRARY


def function(name: str, arguments: tuple[Any, ...], *, alone: bool = True) -> Any:
    """A function of the library's that takes such arguments and returns an int64; None where it is not there.

    Args:
        name: of the function.
        arguments: their types.
        alone: no other thread runs Python meanwhile. To wait for the interpreter's lock afterwards takes longer than
            what is over in microseconds.
    """
    path = library()
    return None if path is None else _function(path, name, arguments, alone)


@cache
def _function(path: Path, name: str, arguments: tuple[Any, ...], alone: bool) -> Any:
    found = getattr((ctypes.PyDLL if alone else ctypes.CDLL)(str(path)), name, None)
    if found is not None:
        found.argtypes, found.restype = arguments, ctypes.c_int64
    return found


def address(array: NDArray[Any]) -> int:
    """Where the elements of an array lie."""
    return int(array.ctypes.data)


def pointer(array: Any) -> Any:
    """The same, to be handed to a `function` at once: NumPy's own way takes far longer where memory is busy."""
    if array.size and array.flags.writeable:
        return ctypes.byref(ctypes.c_char.from_buffer(array))
    return address(array)


def check(path: Path) -> None:
    """Load a library as sessions do.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is cut off, or lies beside sources and is not of these.
        Exception: what ONNX Runtime raises for what it cannot load, or what is no library of operators.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}; jumok compiles it when it is installed where there is a C++ compiler, and "
            "pip install -v says why not"
        )
    content = path.read_bytes()
    size = len(content)
    if content.startswith(ELF_64) and size >= ELF_SECTIONS.size:
        start, entry, entries = ELF_SECTIONS.unpack_from(content)  # the table ends the file
        if size < start + entry * entries:  # and the process, where the system's loader reads behind the end
            raise ValueError(f"{path} is cut off, {size} of {start + entry * entries} bytes; install jumok again")
    # An editable installation has the sources there, and `hatch_build.py` has left their digest in the library.
    sources = sorted([*path.parent.glob("*.cc"), *path.parent.glob("*.h")])
    if sources and hashlib.sha256(b"".join(source.read_bytes() for source in sources)).digest() not in content:
        raise ValueError(f"{path} was compiled from other sources than those beside it; install jumok again")
    onnxruntime.SessionOptions().register_custom_ops_library(str(path))
