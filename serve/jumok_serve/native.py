"""The library of native kernels, where it was compiled and can be used."""

import logging
import struct
from functools import cache
from pathlib import Path

import onnxruntime

logger = logging.getLogger(__name__)

LIBRARY = Path(__file__).parent / "kernels/libjumok_kernels.so"
"""ONNX Runtime's custom operators of the domain ``jumok``, which ``hatch_build.py`` compiles when jumok is installed."""

ELF_64 = b"\x7fELF\x02\x01"
"""What begins a library for a processor of 64 bits that is little-endian, as all are that ONNX Runtime has wheels for."""

ELF_SECTIONS = struct.Struct("<40xQ10xHH2x")
"""Of its header: where the table of sections begins, the size of an entry, and their number."""


@cache
def library() -> Path | None:
    """The library, or None where graphs without its operators have to do. Logs which, when it is first called."""
    try:
        _check(LIBRARY)
    except Exception as error:  # ONNX Runtime's have no common class; and whatever it is, a server starts
        logger.info("decoding without native kernels, which takes longer: %s", error)
        return None
    logger.info("decoding with native kernels")
    return LIBRARY


def _check(path: Path) -> None:
    """Load a library as sessions do.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is cut off.
        Exception: what ONNX Runtime raises for what it cannot load, or what is no library of operators.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"they were not compiled; pip install -v says why when it installs jumok, which takes a C++ compiler ({path})"
        )
    size = path.stat().st_size
    with path.open("rb") as stream:
        header = stream.read(ELF_SECTIONS.size)
    if header.startswith(ELF_64) and len(header) == ELF_SECTIONS.size:
        start, entry, entries = ELF_SECTIONS.unpack(header)  # the table ends the file
        if size < start + entry * entries:  # and the process, where the system's loader reads behind the end
            raise ValueError(f"{path} is cut off: it has {size} bytes of {start + entry * entries}; install jumok again")
    onnxruntime.SessionOptions().register_custom_ops_library(str(path))
