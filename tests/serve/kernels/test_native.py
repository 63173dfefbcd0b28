"""What of a library of native kernels is used; and that whatever else lies in its place is not, and stops nothing."""

import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jumok_serve import Translator, native

COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
AARCH64 = 183
X86_64 = 62

compiles = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


def compiled(name: str, out: Path) -> bytes:
    """A library with one function of a name, which does nothing and succeeds."""
    assert COMPILER is not None
    source = f'extern "C" void* {name}(void*, const void*) {{ return nullptr; }}\n'
    subprocess.run([COMPILER, "-shared", "-fPIC", "-x", "c++", "-", "-o", out], input=source, text=True, check=True)
    return out.read_bytes()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compiled("RegisterCustomOps", tmp_path_factory.mktemp("kernels") / "good.so")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the library is looked for, and nothing is yet."""
    path = tmp_path / "libjumok_kernels.so"
    monkeypatch.setattr(native, "LIBRARY", path)
    native.library.cache_clear()
    yield path
    native.library.cache_clear()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Gives the one line that was logged."""
    caplog.set_level(logging.INFO, native.logger.name)

    def line() -> str:
        (record,) = caplog.records
        broken = "install jumok again" in record.getMessage()
        assert record.levelno == (logging.WARNING if broken else logging.INFO)
        return record.getMessage()

    return line


@compiles
def test_what_loads_is_used_and_said_once(place: Path, good: bytes, told: Callable[[], str]) -> None:
    place.write_bytes(good)
    assert native.library() == native.library() == place
    assert told() == "native kernels are used, where a bundle has graphs for them"


def test_where_nothing_was_compiled_it_says_what_it_takes(place: Path, told: Callable[[], str]) -> None:
    assert native.library() is native.library() is None
    assert told().startswith("native kernels are not used, and translating takes longer: there is no ")
    assert "C++ compiler" in told()
    assert str(place) in told()


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x02\x01", b"no library\n" * 100])
def test_what_is_no_library_is_not_used(place: Path, told: Callable[[], str], content: bytes) -> None:
    place.write_bytes(content)
    assert native.library() is None
    assert str(place) in told()


def test_a_folder_is_not_used(place: Path, told: Callable[[], str]) -> None:
    place.mkdir()
    assert native.library() is None
    assert str(place) in told()


@compiles
def test_a_library_that_is_cut_off_anywhere_is_not_used(
    place: Path, good: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The system's loader would end the process with SIGBUS for most of these."""
    caplog.set_level(logging.INFO, native.logger.name)
    sizes = [*range(0, len(good), len(good) // 40), len(good) - 1]
    for size in sizes:
        native.library.cache_clear()
        place.write_bytes(good[:size])
        assert native.library() is None
    assert len(caplog.records) == len(sizes)
    assert f"{place} is cut off, {len(good) - 1} of {len(good)} bytes; " in caplog.records[-1].getMessage()


@compiles
def test_a_library_of_something_else_is_not_used(place: Path, told: Callable[[], str]) -> None:
    compiled("RegisterSomething", place)
    assert native.library() is None
    assert "RegisterCustomOps" in told()


@compiles
def test_a_library_for_another_machine_is_not_used(place: Path, good: bytes, told: Callable[[], str]) -> None:
    machine = int.from_bytes(good[18:20], "little")
    other = X86_64 if machine == AARCH64 else AARCH64
    place.write_bytes(good[:18] + other.to_bytes(2, "little") + good[20:])
    assert native.library() is None
    assert str(place) in told()


@compiles
def test_a_model_translates_beside_a_broken_library(
    place: Path, good: bytes, told: Callable[[], str], tiny_bundle: Path
) -> None:
    place.write_bytes(good[: len(good) // 2])
    with Translator(tiny_bundle, precision="fp32", replicas=1, threads=1) as translator:
        assert translator.translate("The cat sleeps.").text
    assert "is cut off" in told()
