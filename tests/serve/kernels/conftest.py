"""Tests another library of kernels if JUMOK_TEST_LIBRARY names one, such as that of `make kernels-asan`."""

import os
from pathlib import Path

from jumok_serve import native

if library := os.environ.get("JUMOK_TEST_LIBRARY"):
    native.LIBRARY = Path(library).resolve()
    native.library.cache_clear()
