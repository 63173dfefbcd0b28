"""Kernels of every instruction set against the portable ones, here and on emulated processors; `make kernels-qemu`.

JUMOK_TEST_WHEELS names a folder that `make wheels` has filled: the libraries in its wheels are then tested as well.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from jumok_serve import native
from tests.support.hang import HANG_S
from tests.support.models.native_operators import COMPILER, needs_library

pytestmark = pytest.mark.xdist_group("driver")  # so that one process alone compiles it
ROOT = Path(__file__).parents[3]
KERNELS = ROOT / "serve/jumok_serve/kernels"
DRIVER = Path(__file__).with_name("kernels_driver.cc")
CROSS_COMPILER = "aarch64-linux-gnu-g++"
WHEELS = os.environ.get("JUMOK_TEST_WHEELS")
LIBRARIES = [
    "compiled",
    pytest.param("released", marks=pytest.mark.skipif(WHEELS is None, reason="JUMOK_TEST_WHEELS names no folder")),
]
INSTRUCTION_SETS = {"x86_64": {"avx512_vnni", "avx_vnni", "avx2"}, "aarch64": {"neon", "neon_i8mm"}}
OWN_SOURCES = ("isa/overflow_groups.cc", "operators/packed_weights.cc", "runtime/arena.cc")
"""Sources of kernels that the driver needs, as the library does not export them."""
FUNCTIONS_ALONE = """
import ctypes, sys
import numpy as np
from jumok_serve import native
assert native.library() is None
place = native.function("jumok_place", (ctypes.c_void_p,) * 3 + (ctypes.c_int64,) * 3 + (ctypes.c_void_p,))
visible, places = np.ones((1, 2, 4), np.bool_), np.zeros((1, 2), np.int64)
zeros = np.zeros((1, 2), np.int64)
print(place(*map(native.address, (visible, zeros, zeros)), 1, 2, 4, native.address(places)), places.tolist())
"""


def compiled_driver(folder: Path, compiler: str) -> Path:
    made = folder / "driver"
    sources = [DRIVER, *(KERNELS / name for name in OWN_SOURCES)]
    flags = ["-std=c++17", "-O2", "-pthread", f"-I{KERNELS}", f"-I{DRIVER.parent}"]
    subprocess.run([compiler, *flags, *sources, "-ldl", "-o", made], check=True, timeout=HANG_S)
    return made


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    return compiled_driver(tmp_path_factory.mktemp("driver"), COMPILER)


def released_library(machine: str, folder: Path) -> Path:
    """Library of the wheel for a processor, in a folder."""
    assert WHEELS is not None
    (wheel,) = Path(WHEELS).glob(f"*_{machine}.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"jumok_serve/kernels/{native.LIBRARY.name}", folder))


@pytest.fixture(scope="module", params=LIBRARIES)
def x86_64(request: pytest.FixtureRequest, driver: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A driver and a library for x86-64."""
    if os.uname().machine != "x86_64":
        pytest.skip("the library is for another processor")
    if request.param == "released":
        return [str(driver), str(released_library("x86_64", tmp_path_factory.mktemp("released")))]
    return [str(driver), str(native.LIBRARY)]


@pytest.fixture(scope="module", params=LIBRARIES)
def aarch64(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A driver and a library for AArch64."""
    if shutil.which(CROSS_COMPILER) is None:
        pytest.skip(f"there is no {CROSS_COMPILER}")
    folder = tmp_path_factory.mktemp("aarch64")
    driver = str(compiled_driver(folder, CROSS_COMPILER))
    if request.param == "released":
        return [driver, str(released_library("aarch64", folder))]
    build = [sys.executable, str(ROOT / "hatch_build.py"), str(folder), "-O1"]
    subprocess.run(build, cwd=ROOT, env={**os.environ, "CXX": CROSS_COMPILER}, check=True, timeout=HANG_S)
    return [driver, str(folder / native.LIBRARY.name)]


def results_of(command: Sequence[str | Path]) -> str:
    """Run the driver; return its standard output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def emulator(machine: str) -> str:
    found = shutil.which(f"qemu-{machine}")
    if found is None:
        pytest.skip(f"there is no qemu-{machine}")
    return found


@needs_library
def test_instruction_sets_agree_with_portable_kernels(driver: Path) -> None:
    """Those that this processor lacks are skipped; some kernels are for this machine."""
    found = results_of([driver, native.LIBRARY])
    assert ": int8 products: 0 ulps" in found


@needs_library
def test_the_driver_refuses_instruction_sets_that_are_missing(driver: Path) -> None:
    done = subprocess.run([driver, native.LIBRARY, "none"], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 1
    assert "does not have all instruction sets that are named" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(WHEELS is None, reason="JUMOK_TEST_WHEELS names no folder")
def test_released_libraries_have_all_instruction_sets(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A compiler may leave out those that it does not know; the library of this processor runs as it is."""
    machine = os.uname().machine
    found = results_of([request.getfixturevalue("driver"), released_library(machine, tmp_path)])
    assert set(re.findall(r"^(\w+): ", found, re.MULTILINE)) == INSTRUCTION_SETS[machine]


@pytest.mark.slow
@needs_library
@pytest.mark.parametrize(("cpu", "needed"), [("Haswell", ["avx2"]), ("Nehalem", [])])
def test_emulated_x86_64(x86_64: list[str], cpu: str, needed: list[str]) -> None:
    found = results_of([emulator("x86_64"), "-cpu", cpu, *x86_64, *needed])
    assert "avx512_vnni: skipped" in found
    assert ("avx2: skipped" in found) == (not needed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpu", "needed"), [("max", ["neon", "neon_i8mm"]), ("neoverse-n1", ["neon"]), ("cortex-a72", [])]
)
def test_emulated_aarch64(aarch64: list[str], cpu: str, needed: list[str]) -> None:
    """Processors with i8mm, with dot products, and without either."""
    found = results_of([emulator("aarch64"), "-cpu", cpu, "-L", "/usr/aarch64-linux-gnu", *aarch64, *needed])
    for name in ("neon", "neon_i8mm"):
        assert (f"{name}: int8 products: 0 ulps" in found) == (name in needed)
        assert (f"{name}: skipped" in found) == (name not in needed)


@needs_library
def test_functions_are_there_without_an_instruction_set() -> None:
    """As on a processor that the operators are not for; the log says so."""
    command = [sys.executable, "-c", FUNCTIONS_ALONE]
    environment = {**os.environ, "JUMOK_TEST_KERNELS": "none"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1 [[0, 1]]"
    assert "native kernels are not used" in done.stderr
