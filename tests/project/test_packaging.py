"""The built wheel in environments of its own: what its extras install, and what works with just that.

Packages come from the index that pip is configured for. ``[serve-gpu]`` is large, so it is tested where
JUMOK_TEST_SERVE_GPU is set.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from jumok_serve import native
from jumok_serve.translator import Translator
from tests.project.test_wheels import LIBRARY
from tests.support.hang import HANG_S
from tests.support.models.native_operators import COMPILER

ROOT = Path(__file__).parents[2]
TEXTS = ["The cat sleeps.", "A bird sings in the tree."]
SDK = {"jumok", "grpcio", "protobuf", "googleapis-common-protos", "typing-extensions"}
"""The bare distribution's packages; the last is grpcio's own need."""
KERNELS = "serve/jumok_serve/kernels"

pytestmark = pytest.mark.xdist_group("packaging")  # so that everything is installed once


@dataclass(frozen=True)
class Environment:
    """A virtual environment, without pip."""

    folder: Path

    def run(self, *command: str | Path, code: int = 0) -> str:
        """Run one of its programs from an empty folder; give what it wrote, and check the exit code."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        program, *arguments = map(str, command)
        done = subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=work,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == code, done.stdout
        assert "Traceback" not in done.stdout
        return done.stdout

    @property
    def variables(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}

    @property
    def packages(self) -> set[str]:
        """Names of the installed distributions, as an index spells them."""
        program = (
            "import importlib.metadata as m, json; print(json.dumps([d.metadata['Name'] for d in m.distributions()]))"
        )
        names: list[str] = json.loads(self.run("python", "-c", program))
        return {re.sub(r"[-_.]+", "-", name).lower() for name in names}

    @contextmanager
    def serve(self, bundle: Path, *options: str) -> Iterator[str]:
        """Serve a bundle with its ``jumok``; gives the address, and checks that SIGTERM ends it well."""
        command: list[str | Path] = [self.folder / "bin/jumok", "serve", bundle, "--port=0", "--threads=1", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/", env=self.variables) as server:
            try:
                assert server.stdout is not None
                serving = re.match(r"serving on (\S+): ", server.stdout.readline())
                assert serving is not None
                yield serving[1]
                server.send_signal(signal.SIGTERM)
                assert server.wait(HANG_S) == 0
            finally:
                server.kill()


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    out = tmp_path_factory.mktemp("sdist")
    build(ROOT, out, "--sdist")
    (only,) = out.iterdir()
    return only


@pytest.fixture(scope="session")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that was built from the source distribution, with this checkout's library if there is one."""
    root = unpack(sources, tmp_path_factory.mktemp("unpacked"))
    assert not (root / KERNELS / native.LIBRARY.name).exists()
    if native.LIBRARY.exists():  # compiling the same sources again would take minutes
        shutil.copy(native.LIBRARY, root / KERNELS)
    out = tmp_path_factory.mktemp("wheel")
    build(root, out, "--wheel", "--no-isolation")
    (only,) = out.iterdir()
    return only


@pytest.fixture(scope="session")
def wheelhouse(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all packages that the extra ``serve`` needs, and those that a build needs."""
    folder = tmp_path_factory.mktemp("packages") / "wheelhouse"
    check_wheel(sources, "--wheelhouse", folder, "--fill")
    return folder


def build(source: Path, out: Path, *options: str, **variables: str) -> None:
    command = [sys.executable, "-m", "build", *options, "--outdir", str(out), str(source)]
    environment = {name: value for name, value in os.environ.items() if name not in ("CXX", "JUMOK_NATIVE")}
    done = subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def unpack(sources: Path, folder: Path) -> Path:
    """Unpack the source distribution; return its root."""
    subprocess.run(["tar", "-xf", sources, "-C", folder], check=True)
    (root,) = folder.iterdir()
    return root


def check_wheel(*arguments: str | Path) -> str:
    """Run the check of a distribution; return what it printed."""
    command = [sys.executable, ROOT / "deploy/check_wheel.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(folder: Path, *what: str) -> Environment:
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet", *what]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return Environment(folder)


@pytest.fixture(scope="session")
def bare(wheel: Path, wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return install(tmp_path_factory.mktemp("bare"), "--no-index", f"--find-links={wheelhouse}", str(wheel))


@pytest.fixture(scope="session")
def with_serve(wheel: Path, wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return install(tmp_path_factory.mktemp("serve"), "--no-index", f"--find-links={wheelhouse}", f"{wheel}[serve]")


@pytest.fixture(scope="session")
def expected(tiny_bundle: Path) -> list[str]:
    """The translations of TEXTS, as this environment makes them."""
    with Translator(tiny_bundle, threads=1) as translator:
        return [translation.text for translation in translator.translate(TEXTS)]


def test_the_wheel_holds_the_four_rooms_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"jumok_proto", "jumok", "jumok_serve", "jumok_export"}
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert "jumok_proto/v1/translation.proto" in names
    page = ROOT / "serve/jumok_serve/http/playground/static"
    assert {f"jumok_serve/http/playground/static/{path.name}" for path in page.iterdir()} <= set(names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def kernels(wheel: Path) -> list[str]:
    """List the kernel files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if "/kernels/" in name]


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_with_a_compiler_the_wheel_holds_native_kernels_for_its_platform(wheel: Path) -> None:
    assert kernels(wheel) == [LIBRARY]
    assert wheel.name.endswith(f"-py3-none-linux_{os.uname().machine}.whl")


def test_without_the_wheel_is_for_every_platform(sources: Path, tmp_path: Path) -> None:
    build(unpack(sources, tmp_path), tmp_path, "--wheel", "--no-isolation", JUMOK_NATIVE="off")
    (pure,) = tmp_path.glob("*.whl")
    assert kernels(pure) == []
    assert pure.name.endswith("-py3-none-any.whl")


@pytest.mark.slow
def test_the_source_distribution_serves_without_a_compiler(sources: Path, wheelhouse: Path) -> None:
    printed = check_wheel(sources, "--wheelhouse", wheelhouse)
    assert "served without native kernels, and the log says so" in printed


def test_the_source_distribution_holds_the_kernels_sources(sources: Path) -> None:
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    held = {name for name in names if name.startswith(f"{KERNELS}/")}
    assert "hatch_build.py" in names
    assert held == {str(path.relative_to(ROOT)) for path in (ROOT / KERNELS).rglob("*") if path.suffix in {".cc", ".h"}}
    assert any(name.endswith(".cc") for name in held)


def test_the_sdk_needs_three_packages(bare: Environment) -> None:
    assert SDK - {"typing-extensions"} <= bare.packages <= SDK
    assert bare.run("python", "-W", "error", "-c", "import jumok") == ""


def test_without_click_the_command_says_what_to_install(bare: Environment) -> None:
    assert "pip install 'jumok[cli]'" in bare.run("jumok", code=2)
    assert "pip install 'jumok[cli]'" in bare.run("python", "-m", "jumok", "translate", "The cat sleeps.", code=2)


def test_the_bare_sdk_calls_a_real_server(
    bare: Environment, with_serve: Environment, tiny_bundle: Path, expected: list[str]
) -> None:
    program = (
        "import json, sys, jumok\n"
        f"with jumok.Client(sys.argv[1], timeout_s={HANG_S}) as client:\n"
        "    print(json.dumps([translation.text for translation in client.translate(sys.argv[2:])]))\n"
    )
    with with_serve.serve(tiny_bundle) as address:
        assert json.loads(bare.run("python", "-c", program, address, *TEXTS)) == expected


def test_the_server_needs_neither_torch_nor_onnx(with_serve: Environment) -> None:
    packages = with_serve.packages
    assert {"onnxruntime", "sentencepiece", "tokenizers", "click"} <= packages
    assert packages.isdisjoint(
        {"torch", "onnx", "onnxscript", "lightning", "sacrebleu", "transformers", "onnxruntime-gpu"}
    )


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_the_installed_server_uses_native_kernels(with_serve: Environment) -> None:
    program = "from jumok_serve.native import library; print(library())"
    assert with_serve.run("python", "-c", program).endswith(f"site-packages/{LIBRARY}\n")


def test_the_installed_commands_translate(with_serve: Environment, tiny_bundle: Path, expected: list[str]) -> None:
    with with_serve.serve(tiny_bundle) as address:
        assert with_serve.run("jumok", "translate", "--server", address, *TEXTS).splitlines() == expected
    assert with_serve.run("jumok", "translate", "--bundle", tiny_bundle, *TEXTS).splitlines() == expected
    assert "tiny-en-de" in with_serve.run("jumok", "inspect", tiny_bundle)


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("train config.toml --out run", "serve,export"),
        ("export run --out bundle", "serve,export"),
        ("import checkpoint --out bundle", "serve,import"),
        ("add-native BUNDLE --out bundle", "serve,export"),
        ("ensemble BUNDLE BUNDLE --out bundle", "serve,export"),
        ("evaluate BUNDLE --source SOURCE --reference SOURCE", "serve,evaluate"),
        ("attention sleeps --bundle BUNDLE --out attention.png", "plot"),
        ("serve BUNDLE --http-port 0", "serve,http"),
        ("gateway --server localhost:50051", "serve,http"),
    ],
)
def test_a_command_of_another_extra_names_it(
    with_serve: Environment, tiny_bundle: Path, command: str, extra: str
) -> None:
    files = {"BUNDLE": tiny_bundle, "SOURCE": ROOT / "tests/data/train.en"}
    arguments = [files.get(word, word) for word in command.split()]
    assert f"pip install 'jumok[{extra}]'" in with_serve.run("jumok", *arguments, code=1)


def test_the_images_list_of_packages_is_complete(with_serve: Environment, tmp_path: Path) -> None:
    commands = re.findall(r"cyclonedx-py (\S+ .*)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    (command,) = set(commands)
    assert len(commands) == 2  # of both environments
    written = tmp_path / "sbom.cdx.json"
    places = {"/opt/jumok/sbom.cdx.json": written, "/opt/jumok": with_serve.folder}
    tool = install(tmp_path / "tool", "--require-hashes", "--requirement", str(ROOT / "deploy/locks/build.txt"))
    tool.run("cyclonedx-py", *(places.get(argument, argument) for argument in command.split()))
    listed = json.loads(written.read_text(encoding="utf-8"))
    assert listed["bomFormat"] == "CycloneDX"
    found = {re.sub(r"[-_.]+", "-", one["name"]).lower(): one for one in listed["components"]}
    assert found.keys() == with_serve.packages
    assert all(one["version"] for one in found.values())
    assert found["onnxruntime"]["purl"] == f"pkg:pypi/onnxruntime@{found['onnxruntime']['version']}"
    assert found["jumok"]["licenses"][0]["license"]["id"] == "Apache-2.0"


@pytest.mark.skipif(
    "JUMOK_TEST_SERVE_GPU" not in os.environ, reason="set JUMOK_TEST_SERVE_GPU to install onnxruntime-gpu"
)
def test_serve_gpu_translates_on_the_cpu_too(
    wheel: Path, tmp_path: Path, tiny_bundle: Path, expected: list[str]
) -> None:
    environment = install(tmp_path / "serve-gpu", f"{wheel}[serve-gpu]")
    assert "onnxruntime-gpu" in environment.packages
    assert "onnxruntime" not in environment.packages
    with environment.serve(tiny_bundle, "--device", "cpu") as address:
        assert environment.run("jumok", "translate", "--server", address, *TEXTS).splitlines() == expected
