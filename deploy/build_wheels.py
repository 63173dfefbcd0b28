"""Build wheels with native kernels for all processors: ``python deploy/build_wheels.py [--out dist] [--twice]``.

The compiler is zig, a Python package, which has the libraries of every system: any machine builds all wheels. The
packages of deploy/locks/wheels.txt must be installed. Everything is built from the source distribution, and the same
sources and packages give the same bytes.
"""

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = "jumok_serve/kernels/libjumok_kernels.so"
LOCK = "deploy/locks/cpu.txt"
SBOM = "jumok.cdx.json"
SUMS = "SHA256SUMS"
GLIBC = "2.28"
PROCESSORS = {"x86_64": "x86_64", "aarch64": "generic"}
"""The oldest processor of each kind, in zig's words; sources for newer ones have flags of their own."""
AUDITWHEEL = """
import platform, sys
machine = sys.argv.pop(1)
platform.machine = lambda: machine
from auditwheel.main import main
sys.exit(main())
"""
"""Runs auditwheel for a processor: by itself it takes only the tags of the one that it runs on."""
EPOCH = "1580601600"
"""Time of all files, in seconds since 1970, unless SOURCE_DATE_EPOCH is set: hatchling's default."""


class BuildError(Exception):
    """A wheel that cannot be built, or that other machines cannot use."""


def run(*command: str | Path, **variables: str) -> str:
    """Run this Python with arguments; return its output.

    Raises:
        BuildError: Python fails.
    """
    arguments = [sys.executable, *map(str, command)]
    done = subprocess.run(
        arguments,
        cwd=ROOT,
        env=os.environ | {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", EPOCH)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(f"{shlex.join(arguments)} failed with exit code {done.returncode}:\n{done.stdout.strip()}")
    return done.stdout


def build_sources(out: Path) -> Path:
    """Build the source distribution in a folder; return its file."""
    run("-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT)
    (made,) = out.glob("*.tar.gz")
    return made


def build_wheel(sources: Path, machine: str, out: Path) -> Path:
    """Build the wheel of a processor from the source distribution; return its file.

    Raises:
        BuildError: a failure of a tool, or a wheel that needs more than `GLIBC`.
    """
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sources) as archive:
            archive.extractall(folder, filter="data")
        (tree,) = Path(folder).iterdir()
        target = ["-target", f"{machine}-linux-gnu.{GLIBC}", f"-mcpu={PROCESSORS[machine]}", "-s"]
        run(
            *("-m", "build", "--wheel", "--no-isolation", "--outdir", Path(folder, "built"), tree),
            CXX=shlex.join([sys.executable, "-m", "ziglang", "c++", *target]),
            JUMOK_NATIVE="required",
            ZIG_GLOBAL_CACHE_DIR=str(Path(folder, "zig")),  # objects of an earlier build would hide a difference
            ZIG_LOCAL_CACHE_DIR=str(Path(folder, "zig")),
        )
        (built,) = Path(folder, "built").glob("*.whl")
        return repair(built, machine, out)


def repair(built: Path, machine: str, out: Path) -> Path:
    """Give a wheel the tag of the systems that can use it; return the new file.

    Raises:
        BuildError: the library needs newer systems, or libraries that they may not have.
    """
    platform = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    tag = ("--plat", platform, "--only-plat", "--patcher", "none")
    run("-c", AUDITWHEEL, machine, "repair", *tag, "--wheel-dir", out, built)
    made = out / built.name.replace(f"linux_{machine}", platform)
    with zipfile.ZipFile(made) as archive:
        libraries = [name for name in archive.namelist() if ".so" in Path(name).suffixes]
    if libraries != [LIBRARY]:
        raise BuildError(f"{made.name} holds {', '.join(libraries)}, and must hold {LIBRARY} alone")
    return made


def list_packages(version: str, out: Path) -> Path:
    """Write the CycloneDX list of the packages that a server needs; return its file."""
    made = out / SBOM
    tool = ("-m", "cyclonedx_py", "requirements")
    run(*tool, "--pyproject", "pyproject.toml", "--output-reproducible", "--output-file", made, LOCK)
    listed = json.loads(made.read_text(encoding="utf-8"))
    # The tool takes no version that the build finds.
    listed["metadata"]["component"] |= {"version": version, "purl": f"pkg:pypi/jumok@{version}"}
    made.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    return made


def build(out: Path, machines: list[str]) -> list[Path]:
    """Build the source distribution, the wheels, the list of packages and all checksums in an empty folder."""
    sources = build_sources(out)
    version = sources.name.removesuffix(".tar.gz").rpartition("-")[2]
    made = [sources, *(build_wheel(sources, machine, out) for machine in machines), list_packages(version, out)]
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made)
    (out / SUMS).write_text(sums, encoding="ascii")
    return [*made, out / SUMS]


def main() -> None:
    """Build what is released; exit with code 1 and a reason if any part fails."""
    parser = argparse.ArgumentParser(description="Build the source distribution and wheels with native kernels.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: %(default)s")
    parser.add_argument(
        "--machine", action="append", choices=PROCESSORS, help="processor; may be given twice; default: all"
    )
    parser.add_argument("--twice", action="store_true", help="build everything again, and compare the bytes")
    options = parser.parse_args()
    machines = options.machine or list(PROCESSORS)
    try:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            made = build(Path(first), machines)
            if options.twice:
                for one, other in zip(made, build(Path(second), machines), strict=True):
                    if one.read_bytes() != other.read_bytes():
                        raise BuildError(f"{one.name} has other bytes when it is built again")
            options.out.mkdir(parents=True, exist_ok=True)
            for path in made:
                shutil.copy(path, options.out)
            for path in made:
                print(f"{options.out / path.name}: {path.stat().st_size / 1e6:.1f} MB")
    except BuildError as error:
        sys.exit(f"no wheels: {error}")


if __name__ == "__main__":
    main()
