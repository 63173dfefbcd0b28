"""The library of native operators, where it was compiled and can be used."""

import logging
from functools import cache
from pathlib import Path

import onnxruntime

logger = logging.getLogger(__name__)

LIBRARY = Path(__file__).parent / "kernels/libjumok_kernels.so"
"""ONNX Runtime's custom operators of the domain ``jumok``."""


@cache
def library() -> Path | None:
    """The library, or None where graphs without its operators have to do; the log says why."""
    try:
        if not LIBRARY.exists():
            raise FileNotFoundError(f"there is no {LIBRARY}")
        onnxruntime.SessionOptions().register_custom_ops_library(str(LIBRARY))
    except Exception as error:  # ONNX Runtime's exceptions have no class of their own in common
        logger.info("decoding without native operators, which takes longer: %s", error)
        return None
    return LIBRARY
