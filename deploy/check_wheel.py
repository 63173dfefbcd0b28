"""Check an installation without compiler and network: ``python deploy/check_wheel.py FILE... [--image IMAGE]``.

A FILE is a wheel or the source distribution. It is installed with its extra ``serve`` into a new environment of this
Python, from the wheelhouse alone, with no program in PATH but the environment's. A committed model is then served: with
native kernels from a wheel that has them, else without, which the log must say. The exit code is then 0. Needs nothing
but Python, so that it runs in a bare container. ``--image`` starts one that fills a wheelhouse, and checks in a second
one without network.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUNDLE = ROOT / "models/multi30k-en-de-transformer"
SENTENCE = "A man in a red jacket is riding a bicycle through the snow."
LIBRARY = "jumok_serve/kernels/libjumok_kernels.so"
WITH, WITHOUT = "native kernels are used", "native kernels are not used"
TIMEOUT_S = 600.0


class CheckError(Exception):
    """A failed check."""


def run(*command: str | Path, environment: dict[str, str] | None = None) -> str:
    """Run a program; return its output.

    Raises:
        CheckError: the program fails.
    """
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise CheckError(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout.strip()}")
    return done.stdout


def fill(wheelhouse: Path, distribution: Path) -> None:
    """Download what an installation with this Python needs, and what a build of the source distribution needs.

    The folder has its name only when it is complete.
    """
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    part = wheelhouse.with_name(f"{wheelhouse.name}.part")
    download = (sys.executable, "-m", "pip", "download", "--quiet", "--dest", part, f"{distribution}[serve]", *build)
    run(*download, environment=os.environ | {"JUMOK_NATIVE": "off"})  # pip builds a wheel to know what it needs
    part.rename(wheelhouse)


def without_compiler(folder: Path) -> dict[str, str]:
    """Return the variables of a process that finds the programs of an environment, and no others."""
    ours = ("PYTHON", "PIP_", "JUMOK_", "CXX")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PATH": str(folder / "bin"), "PIP_CONFIG_FILE": os.devnull}


def install(distribution: Path, wheelhouse: Path, folder: Path) -> tuple[float, float]:
    """Install a distribution with its extra ``serve`` into a new environment; return pip's seconds and CPU seconds."""
    venv.create(folder, with_pip=True)
    start, before = time.monotonic(), os.times()
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--no-index", "--find-links", str(wheelhouse)]
    run(*pip, f"{distribution}[serve]", environment=without_compiler(folder))
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return time.monotonic() - start, cpu_s


def check_serving(folder: Path, *, kernels: bool) -> str:
    """Serve the committed model, and return a translation; check that the kernels are used, or that the log warns."""
    jumok = folder / "bin/jumok"
    variables = without_compiler(folder)
    command = [jumok, "serve", BUNDLE, "--port", "0", "--threads", "1", "--replicas", "1"]
    log = folder / "log"
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            list(map(str, command)), env=variables, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as server,
    ):
        late = threading.Timer(TIMEOUT_S, server.kill)
        late.start()
        try:
            assert server.stdout is not None
            serving = re.match(r"serving on (\S+): ", server.stdout.readline())
            written = log.read_text(encoding="utf-8")
            if serving is None:
                raise CheckError(f"the server did not start:\n{written}")
            wanted, other = (WITH, WITHOUT) if kernels else (WITHOUT, WITH)
            if wanted not in written or other in written:
                raise CheckError(f"the server did not log {wanted!r}:\n{written}")
            translation = run(jumok, "translate", "--server", serving[1], SENTENCE, environment=variables).strip()
            server.terminate()
            if server.wait(TIMEOUT_S) != 0:
                raise CheckError(f"the server ended with exit code {server.returncode}")
        finally:
            late.cancel()
            server.kill()
    return translation


def check(distribution: Path, wheelhouse: Path) -> None:
    """Install a distribution from a wheelhouse, serve with it, and print the seconds and the translation."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "environment")
        took_s, cpu_s = install(distribution, wheelhouse, folder)
        used = f"{took_s:.1f} s, of a processor {cpu_s:.1f} s"
        print(f"installed in {used}: {distribution.name}, Python {platform.python_version()}", flush=True)
        kernels = distribution.suffix == ".whl" and LIBRARY in zipfile.ZipFile(distribution).namelist()
        translation = check_serving(folder, kernels=kernels)
        print(
            f"served {'with' if kernels else 'without'} native kernels, and the log says so: {translation}", flush=True
        )


def check_in_container(engine: str, image: str, distributions: list[Path]) -> None:
    """Fill a wheelhouse in a container of an image, and check the distributions in a second one without network."""
    if shutil.which(engine) is None:
        raise CheckError(f"no engine {engine!r}; name another with --engine")
    print(f"{image}:", flush=True)
    name = f"jumok-check-{os.getpid()}"
    mounts = [f"--volume={path}:/dist/{path.name}:ro" for path in distributions]
    checked = [f"/dist/{path.name}" for path in distributions]
    program = ["python", "/source/deploy/check_wheel.py", *checked, "--wheelhouse", "/wheelhouse/packages"]
    try:
        volumes = ["--volume=/wheelhouse", f"--volume={ROOT}:/source:ro", *mounts]
        run(engine, "run", "--name", name, *volumes, image, *program, "--fill")
        print(run(engine, "run", "--rm", "--network=none", "--volumes-from", name, image, *program), end="", flush=True)
    finally:
        remove = [engine, "rm", "--force", "--volumes", name]
        subprocess.run(remove, capture_output=True, timeout=TIMEOUT_S, check=False)


def main() -> None:
    """Run the check; exit with code 1 and a reason if any part fails."""
    parser = argparse.ArgumentParser(description="Install and serve without compiler and network.")
    parser.add_argument("distributions", type=Path, nargs="+", metavar="FILE", help="wheel or source distribution")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--wheelhouse", type=Path, help="folder of packages; is filled if it is missing; default: a temporary one"
    )
    where.add_argument(
        "--image", action="append", default=[], help="image of a container to check in; may be given more than once"
    )
    parser.add_argument("--engine", default="docker", help="command of the containers' engine; default: %(default)s")
    parser.add_argument("--fill", action="store_true", help="fill the wheelhouse, and check nothing")
    options = parser.parse_args()
    distributions = [path.resolve() for path in options.distributions]
    try:
        for image in options.image:
            check_in_container(options.engine, image, distributions)
        if options.image:
            return
        with tempfile.TemporaryDirectory() as temporary:
            wheelhouse = (options.wheelhouse or Path(temporary, "wheelhouse")).resolve()
            if not wheelhouse.exists():
                fill(wheelhouse, distributions[0])
            for distribution in [] if options.fill else distributions:
                check(distribution, wheelhouse)
    except (CheckError, OSError, zipfile.BadZipFile, subprocess.TimeoutExpired) as error:
        sys.exit(f"check failed: {error}")


if __name__ == "__main__":
    main()
