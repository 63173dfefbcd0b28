"""Compiles the native kernels of `jumok_serve` when the distribution is built or installed; checks Python's version.

Kernels are optional: without them translation on a CPU is slower. In the environment, ``JUMOK_NATIVE=required`` makes
their absence an error, and ``JUMOK_NATIVE=off`` leaves them out. ``CXX`` may name a compiler for another processor;
`deploy/build_wheels.py` makes wheels so.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilderConfig
from hatchling.metadata.plugin.interface import MetadataHookInterface

FOLDER = "serve/jumok_serve/kernels"
PACKAGE = "jumok_serve/kernels"
LIBRARY = "libjumok_kernels.so"
CHOICES = ("auto", "required", "off")
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast")
MACHINES = {62: "x86_64", 183: "aarch64"}
"""Processors by their number in ELF files; a compiler defines ``__x86_64__`` or ``__aarch64__``."""
ELF_64 = b"\x7fELF\x02\x01"
ELF_HEADER = struct.Struct("<6s12xH20xQ10xHH2x")
"""Fields of a 64-bit ELF header: first bytes, processor, and the table of sections: its offset, the size of an entry,
the number of entries."""
ENTRY_POINTS = ("RegisterCustomOps", "jumok_has_kernels")
"""Functions that a usable library exports: ONNX Runtime's entry, and the check of the processor."""
LOAD = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
for name in sys.argv[2:]:
    library[name]
print(library.jumok_has_kernels())
"""
EMPTY = ("-x", "c++", os.devnull)
"""Arguments of a compiler for an empty source."""
OLDEST_PYTHON = (3, 11)
"""The same as `requires-python` in pyproject.toml."""
OWN_FLAGS = re.compile(r"^// compile(?: for (\w+))?: (.+)$", re.MULTILINE)
"""Further flags of a source, and the kind of processor that it is for, if not for all. Of several lines for one
kind, the first counts that the compiler knows."""


class PythonHook(MetadataHookInterface):
    """Refuses an older Python at once; pip would first look for versions of all dependencies, for minutes."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Check the version of Python; the metadata stays unchanged."""
        if sys.version_info < OLDEST_PYTHON:
            found = f"this is {platform.python_version()} ({sys.executable})"
            sys.exit(f"jumok needs Python {'.'.join(map(str, OLDEST_PYTHON))} or newer, and {found}")


class KernelsError(Exception):
    """The library cannot be compiled."""


class KernelsHook(BuildHookInterface[WheelBuilderConfig]):
    """Adds the library to wheels, and to the sources of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library if possible; a wheel with it is for this platform only."""
        choice = os.environ.get("JUMOK_NATIVE") or "auto"
        if choice not in CHOICES:
            self.app.abort(f"JUMOK_NATIVE must be one of {', '.join(CHOICES)}, got {choice!r}")
        folder = Path(self.root, FOLDER)
        try:
            if choice == "off":
                raise KernelsError("JUMOK_NATIVE is off")
            compile_library(folder)
            machine = machine_of(folder / LIBRARY)
            if machine == platform.machine():
                if not check(folder / LIBRARY) and choice == "required":
                    raise KernelsError("this processor has no instruction set that they are for")
            elif version == "editable" or not os.environ.get("CXX"):
                raise KernelsError(f"they are for {machine}, and this is {platform.machine()}")
        except (KernelsError, OSError) as error:
            if choice == "required":
                self.app.abort(f"JUMOK_NATIVE is required, but the native kernels cannot be used: {error}")
            if version == "editable":
                (folder / LIBRARY).unlink(missing_ok=True)  # a library of older sources would be used
            self.app.display_warning(f"jumok works without native kernels, and translates slower on a CPU: {error}")
            return
        build_data["force_include"][str(folder / LIBRARY)] = f"{PACKAGE}/{LIBRARY}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{machine}"


def compile_library(folder: Path) -> None:
    """Compile the sources under a folder to a library in it, unless the library is up to date and whole.

    Its build ID is the digest of the sources, by which `jumok_serve.native` refuses a library of other sources.

    Raises:
        KernelsError: no compiler for this system, or a failure of the compiler.
        OSError: the library cannot be written.
    """
    library = folder / LIBRARY
    sources = sorted([*folder.rglob("*.cc"), *folder.rglob("*.h")])
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).digest()
    flags_ns = Path(__file__).stat().st_mtime_ns
    if library.exists() and library.stat().st_mtime_ns > flags_ns and digest in library.read_bytes():
        with suppress(KernelsError):  # a library that is cut off is compiled again
            if machine_of(library) == (target(find_compiler()) if os.environ.get("CXX") else platform.machine()):
                return
    if sys.platform != "linux":
        raise KernelsError(f"they are for Linux, and this is {sys.platform}")
    compiler = find_compiler()
    # In the same folder, so that the new library replaces the old one atomically under running processes.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as build:
        link_flags = [f"-Wl,--build-id=0x{digest.hex()}", "-Wl,-z,defs"]  # no symbol that only the loader would miss
        compile_to(Path(build, LIBRARY), folder, [*compiler, *FLAGS], link_flags)
        Path(build, LIBRARY).replace(library)


def compile_to(library: Path, folder: Path, compiler: Sequence[str], link_flags: Sequence[str] = ()) -> None:
    """Compile the sources under a folder that suit the compiler and its processor, and link them to a library.

    Raises:
        KernelsError: the compiler fails.
    """
    commands: list[list[str]] = []
    known: list[bool] = []  # of sources for one instruction set each
    machine = target(compiler)
    for source in sorted(folder.rglob("*.cc")):
        own_flags: list[str] | None = []
        lines = OWN_FLAGS.findall(source.read_text(encoding="utf-8"))
        if any(processor for processor, _ in lines):
            flags = [shlex.split(own) for processor, own in lines if processor == machine]
            if not flags:
                continue
            own_flags = next((own for own in flags if knows(compiler, own)), None)
            known.append(own_flags is not None)
        elif lines:
            own_flags = shlex.split(lines[0][1])
        if own_flags is None:
            continue
        made = f"{library.parent}/{len(commands)}.o"
        paths = [f"-I{folder}", f"-ffile-prefix-map={folder}=."]  # the same bytes from any folder
        commands.append([*compiler, *own_flags, *paths, "-c", str(source), "-o", made])
    if known and not any(known):
        raise KernelsError(f"{shlex.join(compiler)} knows none of the instruction sets that they are for")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, commands))
    run([*compiler, "-shared", "-Wl,-z,nodelete", *link_flags, *(made for *_, made in commands), "-o", str(library)])


def knows(compiler: Sequence[str], flags: Sequence[str]) -> bool:
    """True if a compiler knows all flags; an older one may not."""
    try:
        run([*compiler, *flags, *EMPTY, "-E"])
    except KernelsError:
        return False
    return True


def find_compiler() -> list[str]:
    """Find the command in ``CXX``, or else the first installed C++ compiler.

    Raises:
        KernelsError: no compiler.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        if shutil.which(named[0]) is None:
            raise KernelsError(f"there is no compiler {named[0]!r}, which CXX names")
        return named
    for name in COMPILERS:
        if shutil.which(name) is not None:
            return [name]
    raise KernelsError(f"there is no C++ compiler ({', '.join(COMPILERS)}): install one, or name it with CXX")


def target(compiler: Sequence[str]) -> str:
    """Return the processor that a compiler is for, as `platform.machine` names it; empty if it is another.

    Raises:
        KernelsError: the compiler fails.
    """
    defined = run([*compiler, *EMPTY, "-dM", "-E"]).split()
    return next((machine for machine in MACHINES.values() if f"__{machine}__" in defined), "")


def machine_of(library: Path) -> str:
    """Return the processor that a library is for, as `platform.machine` names it; the library is not loaded.

    Raises:
        KernelsError: no ELF file of a known processor, a file that is cut off, or one without the `ENTRY_POINTS`.
    """
    content = library.read_bytes()
    magic, number, table, entry, entries = ELF_HEADER.unpack_from(content.ljust(ELF_HEADER.size, b"\0"))
    machine = MACHINES.get(number)
    if magic != ELF_64 or machine is None:
        raise KernelsError(f"{library} is no library for {' or '.join(MACHINES.values())}")
    size = max(ELF_HEADER.size, table + entry * entries)  # the table ends the file
    if len(content) < size:
        raise KernelsError(f"{library} is cut off: {len(content)} of {size} bytes")
    missing = [name for name in ENTRY_POINTS if f"\0{name}\0".encode() not in content]
    if missing:
        raise KernelsError(f"{library} has no function {' and no function '.join(missing)}")
    return machine


def check(library: Path) -> bool:
    """Load a library, in a process of its own; True if it has kernels for this processor, and not only functions.

    Raises:
        KernelsError: the reason of the system's loader.
    """
    command = [sys.executable, "-c", LOAD, str(library), *ENTRY_POINTS]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise KernelsError(f"this system does not load the library: {reason}")
    return done.stdout.strip() == "1"


def run(command: Sequence[str]) -> str:
    """Run a compiler; return its output.

    Raises:
        KernelsError: its failure, with its messages.
    """
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise KernelsError(f"{shlex.join(command)} failed with exit code {done.returncode}\n{done.stderr.strip()}")
    return done.stdout


def main() -> None:
    """Compile the library to a folder with further flags: ``hatch_build.py FOLDER FLAGS...``."""
    folder, *flags = sys.argv[1:] or ["--help"]
    if folder.startswith("-"):
        sys.exit("usage: hatch_build.py FOLDER FLAGS...")
    Path(folder).mkdir(parents=True, exist_ok=True)
    try:
        compile_to(Path(folder, LIBRARY), Path(FOLDER), [*find_compiler(), *FLAGS, *flags])
    except KernelsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
