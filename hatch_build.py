"""Compiles the native kernels of `jumok_serve` while the distribution is built or installed.

Nothing needs them: where they cannot be compiled, translating on a CPU takes longer, and that is all. In the
environment, ``JUMOK_NATIVE=required`` makes their absence an error, and ``JUMOK_NATIVE=off`` leaves them out.
"""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilderConfig

FOLDER = "serve/jumok_serve/kernels"
PACKAGE = "jumok_serve/kernels"
LIBRARY = "libjumok_kernels.so"
CHOICES = ("auto", "required", "off")
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast")
OWN_FLAGS = re.compile(r"^// compile: (.+)$", re.MULTILINE)
"""What a source for some x86-64 processors alone says it is compiled with, besides."""


class KernelsError(Exception):
    """Why there is no library."""


class KernelsHook(BuildHookInterface[WheelBuilderConfig]):
    """Brings the library into wheels, and to the sources of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it where it is wanted and possible; a wheel that holds it is one for this platform."""
        choice = os.environ.get("JUMOK_NATIVE") or "auto"
        if choice not in CHOICES:
            self.app.abort(f"JUMOK_NATIVE must be one of {', '.join(CHOICES)}, got {choice!r}")
        folder = Path(self.root, FOLDER)
        try:
            if choice == "off":
                raise KernelsError("JUMOK_NATIVE is off")
            compile_library(folder)
        except (KernelsError, OSError) as error:
            if choice == "required":
                self.app.abort(f"JUMOK_NATIVE is required, but the native kernels were not compiled: {error}")
            if version == "editable":
                (folder / LIBRARY).unlink(missing_ok=True)  # one of older sources would be used
            self.app.display_warning(f"jumok works without native kernels, and translates slower on a CPU: {error}")
            return
        build_data["force_include"][str(folder / LIBRARY)] = f"{PACKAGE}/{LIBRARY}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{re.sub(r'[-.]', '_', sysconfig.get_platform())}"


def compile_library(folder: Path) -> None:
    """Make the library of the sources in a folder, beside them, unless there is one of them already.

    Their digest is its build ID, by which `jumok_serve.native` knows a library of other sources than those beside it.

    Raises:
        KernelsError: there is no compiler for this system, or it fails.
        OSError: the library cannot be written.
    """
    library = folder / LIBRARY
    sources = sorted([*folder.glob("*.cc"), *folder.glob("*.h")])
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).digest()
    flags_ns = Path(__file__).stat().st_mtime_ns
    if library.exists() and library.stat().st_mtime_ns > flags_ns and digest in library.read_bytes():
        return
    if sys.platform != "linux":
        raise KernelsError(f"they are for Linux, and this is {sys.platform}")
    compiler = find_compiler()
    # Beside the library: what is complete takes its name at once, and processes that use an older one keep that.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as build, ThreadPoolExecutor(os.cpu_count()) as pool:
        commands = []
        for source in sorted(folder.glob("*.cc")):
            own = OWN_FLAGS.search(source.read_text(encoding="utf-8"))
            if own is None or platform.machine() == "x86_64":
                made = f"{build}/{source.stem}.o"
                commands.append([*FLAGS, *shlex.split(own[1] if own else ""), "-c", str(source), "-o", made])
        list(pool.map(lambda arguments: run([*compiler, *arguments]), commands))
        objects = [arguments[-1] for arguments in commands]
        build_id = f"-Wl,--build-id=0x{digest.hex()}"
        run([*compiler, "-shared", "-Wl,-z,nodelete", build_id, *objects, "-o", f"{build}/{LIBRARY}"])
        Path(build, LIBRARY).replace(library)


def find_compiler() -> list[str]:
    """The command that ``CXX`` holds, or else the first C++ compiler that is there.

    Raises:
        KernelsError: there is none.
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


def run(command: Sequence[str]) -> None:
    """Run a compiler.

    Raises:
        KernelsError: it fails; with what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise KernelsError(f"{shlex.join(command)} failed with exit code {done.returncode}\n{done.stderr.strip()}")
