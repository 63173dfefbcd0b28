"""Loading of the library of native kernels; a broken library is not used and does no harm."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jumok_serve import Translator, native
from tests.support.models.native_operators import COMPILER

AARCH64 = 183
X86_64 = 62

compiles = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


def compiled(name: str, out: Path) -> bytes:
    """A library with one function that does nothing and succeeds."""
    assert COMPILER is not None
    source = f'extern "C" void* {name}(void*, const void*) {{ return nullptr; }}\n'
    subprocess.run([COMPILER, "-shared", "-fPIC", "-x", "c++", "-", "-o", out], input=source, text=True, check=True)
    return out.read_bytes()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compiled("RegisterCustomOps", tmp_path_factory.mktemp("kernels") / "good.so")


@pytest.fixture
def library_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The path of the library, without a file."""
    path = tmp_path / "libjumok_kernels.so"
    monkeypatch.setattr(native, "LIBRARY", path)
    native.library.cache_clear()
    yield path
    native.library.cache_clear()


@pytest.fixture
def logged_line(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Return the one line that was logged."""
    caplog.set_level(logging.INFO, native.logger.name)

    def line() -> str:
        (record,) = caplog.records
        used = "native kernels are used" in record.getMessage()
        assert record.levelno == (logging.INFO if used or sys.platform != "linux" else logging.WARNING)
        return record.getMessage()

    return line


@compiles
def test_a_library_that_loads_is_used_and_logged_once(
    library_path: Path, good: bytes, logged_line: Callable[[], str]
) -> None:
    library_path.write_bytes(good)
    assert native.library() == native.library() == library_path
    assert logged_line() == "native kernels are used if a bundle has graphs for them"


def test_without_a_library_the_log_names_the_remedy(library_path: Path, logged_line: Callable[[], str]) -> None:
    assert native.library() is native.library() is None
    assert logged_line().startswith("native kernels are not used, and translating takes longer: there is no ")
    assert "install a C++ compiler such as g++, and jumok again" in logged_line()
    assert str(library_path) in logged_line()


def for_another_machine(path: Path, good: bytes) -> None:
    machine = int.from_bytes(good[18:20], "little")
    other = X86_64 if machine == AARCH64 else AARCH64
    path.write_bytes(good[:18] + other.to_bytes(2, "little") + good[20:])


@compiles
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path, _: path.write_bytes(b""), "{path}"),
        (lambda path, _: path.write_bytes(b"\x7fELF\x02\x01"), "{path}"),
        (lambda path, _: path.write_bytes(b"no library\n" * 100), "{path}"),
        (lambda path, _: path.mkdir(), "{path}"),
        (lambda path, _: compiled("RegisterSomething", path), "RegisterCustomOps"),
        (for_another_machine, "{path}"),
    ],
    ids=["empty", "head", "text", "folder", "another library", "another machine"],
)
def test_what_is_no_library_is_not_used(
    library_path: Path, good: bytes, logged_line: Callable[[], str], make: Callable[[Path, bytes], object], said: str
) -> None:
    make(library_path, good)
    assert native.library() is None
    assert said.format(path=library_path) in logged_line()


@compiles
def test_a_library_that_is_cut_off_anywhere_is_not_used(
    library_path: Path, good: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The system's loader would end the process with SIGBUS for most truncated files."""
    caplog.set_level(logging.INFO, native.logger.name)
    sizes = [*range(0, len(good), len(good) // 40), len(good) - 1]
    for size in sizes:
        native.library.cache_clear()
        library_path.write_bytes(good[:size])
        assert native.library() is None
    assert len(caplog.records) == len(sizes)
    assert f"{library_path} is cut off, {len(good) - 1} of {len(good)} bytes; " in caplog.records[-1].getMessage()


@compiles
def test_a_model_translates_beside_a_broken_library(
    library_path: Path, good: bytes, logged_line: Callable[[], str], tiny_bundle: Path
) -> None:
    library_path.write_bytes(good[: len(good) // 2])
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        assert translator.translate("The cat sleeps.").text
    assert "is cut off" in logged_line()
