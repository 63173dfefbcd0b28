"""Released wheels, the versions that are locked for images, and the workflow of releases.

Compiling takes minutes, so `make wheels` is not run: JUMOK_TEST_WHEELS names the folder of its results. With
JUMOK_TEST_IMAGES, such as ``python:3.11-slim python:3.13-slim``, they are installed in containers of these images.
"""

import base64
import hashlib
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.hang import HANG_S
from tests.support.models.native_operators import COMPILER

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "deploy/build_wheels.py"
CHECK = ROOT / "deploy/check_wheel.py"
LOCKS = ROOT / "deploy/locks"
LIBRARY = "jumok_serve/kernels/libjumok_kernels.so"
IMAGE = {"python_version": "3.11", "python_full_version": "3.11.9", "platform_machine": "x86_64", "extra": ""}
"""Markers of the images, beside those that all machines here have."""
WHEELS = os.environ.get("JUMOK_TEST_WHEELS")
IMAGES = os.environ.get("JUMOK_TEST_IMAGES", "").split()
ENGINE = os.environ.get("JUMOK_TEST_ENGINE", "docker")

compiles = pytest.mark.skipif(COMPILER is None or os.uname().machine != "x86_64", reason="no compiler for x86-64")


def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return loaded


def needed(extras: str) -> Iterator[Requirement]:
    """Yield what the distribution needs with extras, without itself."""
    table = project()["project"]
    for line in [
        *table["dependencies"],
        *(line for extra in extras.split(",") for line in table["optional-dependencies"][extra]),
    ]:
        requirement = Requirement(line)
        if requirement.name == table["name"]:
            yield from needed(",".join(sorted(requirement.extras)))
        else:
            yield requirement


def listed(name: str) -> list[Requirement]:
    """Read the requirements of a file for people, with those that it includes."""
    lines = (LOCKS / name).read_text(encoding="utf-8").splitlines()
    included = [line.removeprefix("-r ") for line in lines if line.startswith("-r ")]
    own = [Requirement(line) for line in lines if not line.startswith(("-r ", "#"))]
    return [*own, *(requirement for other in included for requirement in listed(other))]


WANTED = {
    "build": lambda: [*listed("build.in"), *map(Requirement, project()["build-system"]["requires"])],
    "wheels": lambda: listed("wheels.in"),
    "cpu": lambda: [*needed("serve,http")],
    "cuda": lambda: [*needed("serve-gpu,http"), *listed("cuda.in")],
}


@pytest.mark.parametrize("name", WANTED)
def test_a_lock_has_the_versions_that_are_needed(name: str) -> None:
    text = (LOCKS / f"{name}.txt").read_text(encoding="utf-8")
    assert "://" not in text  # of whichever index pip is configured for
    pins: dict[str, str] = {}
    entries = re.sub(r"\\\n\s+", "", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    for entry in filter(None, entries):
        found = re.fullmatch(r"([a-z0-9-]+)==(\S+) (?:--hash=sha256:[0-9a-f]{64} ?)+", entry)
        assert found is not None, entry
        pins[found[1]] = found[2]
    for requirement in WANTED[name]():
        if requirement.marker is None or requirement.marker.evaluate(IMAGE):
            version = pins.get(canonicalize_name(requirement.name))
            assert version is not None, f"run make lock: {name}.txt lacks {requirement}"
            assert requirement.specifier.contains(version, prereleases=True), f"run make lock: {requirement}, {version}"


def test_contributors_read_why_the_server_needs_each_package() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## Dependencies of the server\n")[2].partition("\n## ")[0]
    named = [name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)]
    assert sorted(named) == sorted({requirement.name for requirement in needed("serve,serve-gpu,http")})


def test_images_and_wheels_take_the_locked_versions() -> None:
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    installed = re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&\n]+", image)
    assert len(installed) == 6
    for command in installed:
        assert any(option in command for option in ("--require-hashes", "--no-index", "--no-build-isolation")), command
    assert set(re.findall(r"/locks/(\w+)\.txt", image)) == {"build", "cpu", "cuda"}
    command = ["make", "-C", ROOT, "--dry-run", "wheels", "ARGS="]
    dry = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S).stdout
    assert "--require-hashes --requirement deploy/locks/wheels.txt\n" in dry
    assert "/bin/python deploy/build_wheels.py \n" in dry


def test_the_release_is_built_and_checked_by_pinned_actions() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action)] == []
    commands = [step["run"] for step in steps if "run" in step]
    assert "make wheels ARGS=--twice" in commands
    scripts = re.findall(r"python (\S+)", "\n".join(commands))
    assert set(scripts) == {"deploy/check_wheel.py"}
    assert all((ROOT / script).exists() for script in scripts)
    named = [line.rpartition(" :: ")[2] for line in project()["project"]["classifiers"] if "Python :: 3." in line]
    assert jobs["check"]["strategy"]["matrix"]["python"] == named
    assert workflow["permissions"] == {"contents": "read"}
    (compared,) = (command for command in commands if "__version__" in command)
    version = runpy.run_path(str(ROOT / "proto/jumok_proto/__init__.py"))["__version__"]
    for tag, code in ((f"v{version}", 0), (f"v{version}.1", 1)):
        environment = os.environ | {"GITHUB_REF_NAME": tag}
        done = subprocess.run(["sh", "-euc", compared], cwd=ROOT, env=environment, capture_output=True, check=False)
        assert done.returncode == code, tag


def digest(data: bytes) -> str:
    """Return a digest as wheels record it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def write_wheel(folder: Path, library: bytes, machine: str = "x86_64") -> Path:
    """Write a wheel for a processor's Linux that holds a library alone."""
    tags = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-linux_{machine}\n"
    files = {
        LIBRARY: library,
        "jumok-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: jumok\nVersion: 1\n",
        "jumok-1.dist-info/WHEEL": tags.encode(),
    }
    record = "jumok-1.dist-info/RECORD"
    lines = [f"{name},sha256={digest(data)},{len(data)}\n" for name, data in files.items()]
    wheel = folder / f"jumok-1-py3-none-linux_{machine}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in (files | {record: "".join([*lines, f"{record},,\n"]).encode()}).items():
            archive.writestr(name, data)
    return wheel


def compiled(folder: Path, source: str, *options: str) -> bytes:
    assert COMPILER is not None
    out = folder / "made.so"
    command = [COMPILER, "-shared", "-fPIC", "-x", "c++", "-", "-x", "none", *options, "-o", str(out)]
    subprocess.run(command, input=source, text=True, check=True, timeout=HANG_S)
    return out.read_bytes()


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    pytest.importorskip("auditwheel", reason="auditwheel is not installed")
    return runpy.run_path(str(BUILD))


@compiles
def test_a_wheel_gets_the_tag_of_the_systems_that_can_use_it(script: dict[str, Any], tmp_path: Path) -> None:
    library = compiled(tmp_path, '#include <cstdlib>\nextern "C" void* Call(int n) { return std::malloc(n); }\n')
    other = bytearray(compiled(tmp_path, 'extern "C" int Call(int n) { return n; }\n', "-nostdlib"))
    other[18] = 183  # as a compiler for AArch64 writes it
    for name, machine, content in (
        ("first", "x86_64", library),
        ("second", "x86_64", library),
        ("other", "aarch64", bytes(other)),
    ):
        (tmp_path / name).mkdir()
        made = script["repair"](write_wheel(tmp_path, content, machine), machine, tmp_path / name)
        assert made == tmp_path / name / f"jumok-1-py3-none-manylinux_2_28_{machine}.whl"
        with zipfile.ZipFile(made) as archive:
            assert archive.read(LIBRARY) == content
            tag = f"\nTag: py3-none-manylinux_2_28_{machine}\n"
            assert tag.encode() in archive.read("jumok-1.dist-info/WHEEL")
    first, second = (path.read_bytes() for path in sorted(tmp_path.glob("*/*x86_64.whl")))
    assert first == second  # the same bytes at any time


@compiles
def test_a_wheel_that_others_cannot_use_is_refused(script: dict[str, Any], tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    other.write_bytes(compiled(tmp_path, 'extern "C" int Other() { return 1; }\n', "-Wl,-soname,libother.so"))
    library = compiled(tmp_path, 'extern "C" int Other();\nint Call() { return Other(); }\n', str(other))
    with pytest.raises(script["BuildError"], match=r"libother\.so"):
        script["repair"](write_wheel(tmp_path, library), "x86_64", tmp_path / "out")


def check(script: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)


def test_a_wheel_that_does_not_install_fails_the_check(tmp_path: Path) -> None:
    wheelhouse = tmp_path / "wheelhouse"
    wheelhouse.mkdir()
    done = check(CHECK, tmp_path / "jumok-1-py3-none-any.whl", "--wheelhouse", wheelhouse)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("check failed: ")
    assert "jumok-1-py3-none-any.whl" in done.stderr


@pytest.mark.parametrize(
    ("script", "arguments"),
    [(CHECK, ("jumok-1-py3-none-any.whl", "--image", "python:3.11-slim")), (ROOT / "deploy/check_image.py", ())],
)
def test_a_missing_engine_is_named(script: Path, arguments: tuple[str, ...]) -> None:
    done = check(script, *arguments, "--engine", "no-such-engine")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "check failed: no engine 'no-such-engine'; name another with --engine\n"


@pytest.fixture(scope="module")
def wheels() -> Path:
    """The folder that make wheels has filled."""
    if WHEELS is None:
        pytest.skip("set JUMOK_TEST_WHEELS to the folder that make wheels has filled")
    return Path(WHEELS).resolve()


@pytest.mark.slow
def test_the_built_wheels_install_and_serve(wheels: Path) -> None:
    lines = (wheels / "SHA256SUMS").read_text(encoding="ascii").splitlines()
    sums = {name: expected for expected, name in (line.split("  ") for line in lines)}
    for name, expected in sums.items():
        assert hashlib.sha256((wheels / name).read_bytes()).hexdigest() == expected
    names = [name for name in sums if name.endswith(".whl")]
    machines = ("x86_64", "aarch64")
    assert {name.partition("-py3-none-")[2] for name in names} == {f"manylinux_2_28_{one}.whl" for one in machines}
    (sources,) = (name for name in sums if name.endswith(".tar.gz"))
    (here,) = (name for name in names if name.endswith(f"_{os.uname().machine}.whl"))
    done = check(
        CHECK, wheels / here, wheels / sources, *(f"--image={image}" for image in IMAGES), f"--engine={ENGINE}"
    )
    assert done.returncode == 0, done.stderr
    for kernels in ("with", "without"):
        assert done.stdout.count(f"served {kernels} native kernels") == max(1, len(IMAGES))


@pytest.mark.slow
def test_the_built_wheels_differ_in_the_library_alone(wheels: Path) -> None:
    machine_of = runpy.run_path(str(ROOT / "hatch_build.py"))["machine_of"]
    digests: dict[str, dict[str, str]] = {}
    for wheel in wheels.glob("*.whl"):
        machine = wheel.stem.partition("manylinux_2_28_")[2]
        with zipfile.ZipFile(wheel) as archive:
            (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
            rows = (line.split(",") for line in archive.read(record).decode().splitlines())
            recorded = {name: coded.removeprefix("sha256=") for name, coded, _ in rows if name != record}
            assert {name for name in archive.namelist() if not name.endswith("/")} == {record, *recorded}
            assert {name: digest(archive.read(name)) for name in recorded} == recorded
            with tempfile.TemporaryDirectory() as folder:
                assert machine_of(Path(archive.extract(LIBRARY, folder))) == machine
        digests[machine] = recorded
    one, other = (digests[machine] for machine in ("x86_64", "aarch64"))
    different = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
    assert {name.rpartition("/")[2] for name in different} == {Path(LIBRARY).name, "WHEEL"}
    assert not [name for name in one if name.endswith((".cc", ".h", ".pyc"))]


@pytest.mark.slow
def test_the_list_of_packages_names_the_release_and_what_is_locked(wheels: Path) -> None:
    listed = json.loads((wheels / "jumok.cdx.json").read_text(encoding="utf-8"))
    version = runpy.run_path(str(ROOT / "proto/jumok_proto/__init__.py"))["__version__"]
    component = listed["metadata"]["component"]
    assert (component["name"], component["version"]) == ("jumok", version)
    lock = (LOCKS / "cpu.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    assert {part["name"]: part["version"] for part in listed["components"]} == pins


def test_a_server_that_is_silent_fails_the_check(tmp_path: Path) -> None:
    check = runpy.run_path(str(CHECK))
    program = tmp_path / "bin/jumok"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(1000)\n", encoding="utf-8")
    program.chmod(0o700)
    check["check_serving"].__globals__["TIMEOUT_S"] = 0.1
    with pytest.raises(check["CheckError"], match="the server did not start"):
        check["check_serving"](tmp_path, kernels=True)
