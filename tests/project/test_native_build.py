"""Compilation of the native kernels: when it runs, from the right sources, and messages if it cannot.

`tests/project/test_packaging.py` builds whole wheels with and without it.
"""

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jumok_serve import native
from tests.support.models.native_operators import COMPILER

ROOT = Path(__file__).parents[2]
HEADER = "constexpr int kAnswer = 42;\n"
SOURCE = """#include "answer.h"
extern "C" __attribute__((visibility("default"))) int Answer() { return kAnswer; }
extern "C" int Hidden() { return kAnswer; }
"""
REGISTER_SOURCE = """
extern "C" __attribute__((visibility("default"))) void* RegisterCustomOps(void*, const void*) { return nullptr; }
"""
USABLE_SOURCE = """
extern "C" __attribute__((visibility("default"))) long jumok_has_kernels() { return 1; }
"""
FAST_SOURCE = """// For processors that have it.
// compile for x86_64: -mavx2 -DFAST=7
#if !defined(__AVX2__)
#error "without its flags"
#endif
extern "C" __attribute__((visibility("default"))) int Fast() { return FAST; }
"""
PLACE_SOURCE = 'extern "C" __attribute__((visibility("default"))) const char* const place = __FILE__;\n'

compiles = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
on_x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the compiler is for another processor")


@dataclass
class Tree:
    """A distribution with small kernels, and the build data of the last build."""

    root: Path
    module: Any
    patch: pytest.MonkeyPatch
    captured: pytest.CaptureFixture[str]
    build_data: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.root / "serve/jumok_serve/kernels"

    @property
    def library(self) -> Path:
        return self.folder / "libjumok_kernels.so"

    def build(self, version: str = "standard") -> bool:
        """Run the build hook; True if the wheel gets the library."""
        hook = self.module.KernelsHook(str(self.root), {}, None, None, str(self.root / "dist"), "wheel")
        before = {"force_include": {}, "pure_python": True}
        self.build_data = {"force_include": {}, "pure_python": True}
        hook.initialize(version, self.build_data)
        return self.build_data != before

    def said(self) -> str:
        """Return what has been written since this was asked before."""
        return "".join(self.captured.readouterr())

    def load(self) -> ctypes.CDLL:
        """Build the library, and load it."""
        assert self.build()
        return ctypes.CDLL(str(self.library))

    def check_none(self, reason: str, *versions: str) -> None:
        """Check that the build goes on without the library, unless it is required; reason: a regular expression."""
        assert not self.build()
        assert re.search(f"jumok works without native kernels, and translates slower on a CPU: .*{reason}", self.said())
        self.check_required(reason, "standard", *versions)

    def check_required(self, reason: str, *versions: str) -> None:
        """Check that the build fails if the library is required."""
        self.patch.setenv("JUMOK_NATIVE", "required")
        for version in versions:
            with pytest.raises(SystemExit) as ended:
                self.build(version)
            assert ended.value.code == 1
            message = f"JUMOK_NATIVE is required, but the native kernels cannot be used: .*{reason}"
            assert re.search(message, self.said())


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Tree:
    for name in ("CXX", "JUMOK_NATIVE"):
        monkeypatch.delenv(name, raising=False)
    specification = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    tree = Tree(tmp_path, module, monkeypatch, capfd)
    tree.folder.mkdir(parents=True)
    (tree.folder / "answer.h").write_text(HEADER, encoding="utf-8")
    (tree.folder / "sources").mkdir()
    (tree.folder / "sources/answer.cc").write_text(SOURCE, encoding="utf-8")
    (tree.folder / "sources/entry.cc").write_text(REGISTER_SOURCE + USABLE_SOURCE, encoding="utf-8")
    return tree


def spoiling_compiler(folder: Path, spoil: str) -> Path:
    """A compiler that changes the library ``$1`` which it has linked."""
    folder.mkdir()
    compiler = folder / "c++"
    spoils = f'case " $* " in *" -shared "*) shift $(($# - 1)); {spoil} ;; esac'
    compiler.write_text(f'#!/bin/sh\n{COMPILER} "$@" || exit\n{spoils}\n', encoding="utf-8")
    compiler.chmod(0o755)
    return compiler


def for_processor(number: int) -> str:
    """Commands that name another processor in a library."""
    return f"printf '\\{number:o}' | dd of=\"$1\" bs=1 seek=18 conv=notrunc 2>/dev/null"


@compiles
def test_the_library_holds_what_is_exported(tree: Tree) -> None:
    library = tree.load()
    assert tree.build_data["force_include"] == {str(tree.library): "jumok_serve/kernels/libjumok_kernels.so"}
    assert not tree.build_data["pure_python"]
    assert tree.build_data["tag"] == f"py3-none-linux_{os.uname().machine}"
    assert library.Answer() == 42
    assert not hasattr(library, "Hidden")
    assert {path.name for path in tree.folder.iterdir()} == {"sources", "answer.h", "libjumok_kernels.so"}
    assert tree.said() == ""


@compiles
@on_x86_64
@pytest.mark.parametrize(
    "source", [FAST_SOURCE, FAST_SOURCE.replace(" for x86_64", "").replace("-mavx2", "-D__AVX2__")]
)
def test_a_source_has_its_own_flags_for_one_processor_or_for_all(tree: Tree, source: str) -> None:
    (tree.folder / "fast.cc").write_text(source, encoding="utf-8")
    assert tree.load().Fast() == 7


@compiles
@on_x86_64
def test_compilers_that_do_not_know_the_flags_leave_such_sources_out(tree: Tree) -> None:
    """With none of such sources the library would have no kernels."""
    source = FAST_SOURCE.replace("-mavx2", "-mavx3").replace("Fast", "Faster")
    (tree.folder / "faster.cc").write_text(source, encoding="utf-8")
    assert not tree.build()
    assert "knows none of the instruction sets that they are for" in tree.said()
    (tree.folder / "fast.cc").write_text(FAST_SOURCE, encoding="utf-8")
    library = tree.load()
    assert library.Fast() == 7
    assert not hasattr(library, "Faster")


@compiles
@pytest.mark.parametrize("usable", [0, 1])
def test_required_kernels_have_to_be_for_this_processor(tree: Tree, usable: int) -> None:
    """Otherwise the library is installed for its functions."""
    source = REGISTER_SOURCE + USABLE_SOURCE.replace("return 1", f"return {usable}")
    (tree.folder / "sources/entry.cc").write_text(source, encoding="utf-8")
    assert tree.build()
    if usable:
        tree.patch.setenv("JUMOK_NATIVE", "required")
        assert tree.build()
    else:
        tree.check_required("this processor has no instruction set that they are for", "standard")


@compiles
def test_compilers_for_other_machines_leave_such_sources_out(tree: Tree) -> None:
    (tree.folder / "fast.cc").write_text(FAST_SOURCE, encoding="utf-8")
    tree.patch.setenv("CXX", f"{COMPILER} -U__x86_64__")
    library = tree.load()
    assert library.Answer() == 42
    assert not hasattr(library, "Fast")


@compiles
@pytest.mark.parametrize("version", ["standard", "editable"])
def test_it_is_compiled_again_only_when_a_source_has_changed(tree: Tree, version: str) -> None:
    assert tree.build(version)
    first = tree.library.stat()
    with tree.patch.context() as patch:
        patch.setenv("PATH", "")  # without a compiler
        assert tree.build(version)
    assert tree.library.stat() == first
    (tree.folder / "answer.h").write_text("constexpr int kAnswer = 43;\n", encoding="utf-8")
    os.utime(tree.folder / "answer.h", ns=(0, 0))  # an old file from elsewhere
    assert tree.build(version)
    assert tree.library.stat().st_ino != first.st_ino
    assert ctypes.CDLL(str(tree.library)).Answer() == 43


@pytest.fixture
def served(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The tree's library as the server's."""
    monkeypatch.setattr(native, "LIBRARY", tree.library)
    native.library.cache_clear()
    yield tree.library
    native.library.cache_clear()


@compiles
def test_a_library_of_other_sources_is_not_used(tree: Tree, served: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert tree.build("editable")
    assert native.library() == served
    (tree.folder / "answer.h").write_text("constexpr int kAnswer = 43;\n", encoding="utf-8")
    native.library.cache_clear()
    with caplog.at_level("INFO", native.logger.name):
        assert native.library() is None
    assert f"{served} was compiled from other sources than those beside it; install jumok again" in caplog.text
    assert tree.build("editable")
    native.library.cache_clear()
    assert native.library() == served


@compiles
def test_cxx_names_the_compiler_and_its_arguments(tree: Tree) -> None:
    (tree.folder / "answer.h").write_text("constexpr int kAnswer = ANSWER;\n", encoding="utf-8")
    tree.patch.setenv("CXX", f"{COMPILER} -DANSWER=6")
    assert tree.load().Answer() == 6


@compiles
def test_the_library_is_the_same_from_any_folder(tree: Tree, tmp_path: Path) -> None:
    (tree.folder / "sources/place.cc").write_text(PLACE_SOURCE, encoding="utf-8")
    other = shutil.copytree(tree.folder, tmp_path / "another/folder")
    tree.module.compile_library(tree.folder)
    tree.module.compile_library(other)
    assert ctypes.c_char_p.in_dll(ctypes.CDLL(str(tree.library)), "place").value == b"./sources/place.cc"
    assert (other / tree.library.name).read_bytes() == tree.library.read_bytes()


@compiles
@on_x86_64
def test_a_library_for_another_processor_gets_its_tag_and_is_no_use_here(tree: Tree, tmp_path: Path) -> None:
    tree.patch.setenv("CXX", str(spoiling_compiler(tmp_path / "cross", for_processor(183))))
    tree.patch.setenv("JUMOK_NATIVE", "required")
    assert tree.build()  # a wheel, which other machines install
    assert tree.build_data["tag"] == "py3-none-linux_aarch64"
    tree.check_required("they are for aarch64, and this is x86_64", "editable")
    tree.patch.delenv("CXX")
    assert tree.build()  # with this machine's compiler again
    assert tree.build_data["tag"] == "py3-none-linux_x86_64"


@compiles
@on_x86_64
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ('truncate --size=-1 "$1"', r"libjumok_kernels\.so is cut off: \d+ of \d+ bytes"),
        ('truncate --size=50 "$1"', r"libjumok_kernels\.so is cut off: 50 of \d+ bytes"),
        ('truncate --size=9 "$1"', "is no library for x86_64 or aarch64"),
        (for_processor(183), "they are for aarch64, and this is x86_64"),
        (for_processor(40), "is no library for x86_64 or aarch64"),
        ('sed -i s/RegisterCustomOps/registercustomops/ "$1"', "has no function RegisterCustomOps"),
        ('sed -i s/jumok_has_kernels/jumok_has_kernelz/ "$1"', "has no function jumok_has_kernels"),
    ],
)
def test_a_library_that_cannot_be_used_is_not_packed(tree: Tree, tmp_path: Path, spoil: str, reason: str) -> None:
    folder = spoiling_compiler(tmp_path / "spoils", spoil).parent
    tree.patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    tree.check_none(reason, "editable")


@compiles
@on_x86_64
@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[:-1],
        lambda content: b"not " + content,
        lambda content: content[:18] + b"\xb7" + content[19:],
    ],
)
def test_a_damaged_library_is_compiled_again(tree: Tree, spoil: Callable[[bytes], bytes]) -> None:
    assert tree.build()
    content = tree.library.read_bytes()
    tree.library.write_bytes(spoil(content))
    tree.patch.setenv("JUMOK_NATIVE", "required")
    assert tree.build("editable")
    assert tree.library.read_bytes() == content


@compiles
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("void Missing();\nvoid Call() { Missing(); }\n", r"failed with exit code 1\n(.*\n)*.*\bMissing\(\)"),
        (
            "const int broken = [] { __builtin_trap(); return 1; }();\n",
            "this system does not load the library: exit code -",
        ),
    ],
)
def test_a_library_that_does_not_load_is_no_library(tree: Tree, source: str, reason: str) -> None:
    (tree.folder / "broken.cc").write_text(source, encoding="utf-8")
    tree.check_none(reason)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"CXX": "no-such-compiler"}, "there is no compiler 'no-such-compiler', which CXX names"),
        ({"PATH": ""}, "there is no C++ compiler (c++, g++, clang++): install one, or name it with CXX"),
    ],
)
def test_without_a_compiler_there_is_no_library(tree: Tree, variables: dict[str, str], reason: str) -> None:
    for name, value in variables.items():
        tree.patch.setenv(name, value)
    tree.check_none(f"{re.escape(reason)}\n$")


@compiles
def test_sources_that_do_not_compile_leave_the_rest_to_be_installed(tree: Tree) -> None:
    assert tree.build()
    (tree.folder / "sources/answer.cc").write_text('#error "as the test has it"\n', encoding="utf-8")
    assert not tree.build()
    assert "as the test has it" in tree.said()
    assert tree.library.exists()
    assert not tree.build("editable")
    assert {path.name for path in tree.folder.iterdir()} == {"sources", "answer.h"}


@compiles
def test_it_can_be_left_out(tree: Tree) -> None:
    assert tree.build()
    tree.patch.setenv("JUMOK_NATIVE", "off")
    assert not tree.build()
    assert "JUMOK_NATIVE is off" in tree.said()
    assert tree.library.exists()
    assert not tree.build("editable")
    assert not tree.library.exists()


def test_a_choice_that_is_none_is_refused(tree: Tree) -> None:
    tree.patch.setenv("JUMOK_NATIVE", "maybe")
    with pytest.raises(SystemExit):
        tree.build()
    assert "JUMOK_NATIVE must be one of auto, required, off, got 'maybe'" in tree.said()


def test_older_python_is_refused_at_once(tree: Tree) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    oldest = ".".join(map(str, tree.module.OLDEST_PYTHON))
    assert project["project"]["requires-python"] == f">={oldest}"
    assert "custom" in project["tool"]["hatch"]["metadata"]["hooks"]
    hook = tree.module.PythonHook(str(ROOT), {})
    hook.update({})
    tree.patch.setattr(tree.module, "OLDEST_PYTHON", (4, 7))
    with pytest.raises(SystemExit, match=r"jumok needs Python 4\.7 or newer, and this is 3\.\d+\.\d+\S* \("):
        hook.update({})


def test_make_names_the_python_that_is_too_old(tmp_path: Path) -> None:
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    for python, named in ((str(old), f", not '{old}'"), ("", "")):
        command = ["make", "--directory", str(ROOT), "demo", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert f"jumok needs Python 3.11 or newer{named}; name one: make PYTHON=/path/to/python" in done.stderr
    assert not (tmp_path / "venv").exists()
