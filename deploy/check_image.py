"""Check a container image: ``python deploy/check_image.py [--engine docker] [--image jumok]``.

The container runs with a read-only root, no capabilities, and the bundles of models/ mounted. Its health check must
pass, and calls from outside must succeed, also a call that is open when SIGTERM arrives. The exit code is then 0.
"""

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jumok

MODELS = Path(__file__).resolve().parents[1] / "models"
SENTENCE = "A man in a red jacket is riding a bicycle through the snow."
BEAM_SIZE = 16
FEW_TEXTS, MOST_TEXTS = 32, 1024
"""Texts of a call; the most is the server's default limit."""
RUN_S = 10.0
"""Target duration of the call at SIGTERM: longer than sending the signal, shorter than the grace period."""
USER = "10001"
PACKAGES = "/opt/jumok/sbom.cdx.json"
LIST_PACKAGES = "from importlib.metadata import *; [print(d.metadata['Name'], d.version) for d in distributions()]"
START_S = 120.0
CALL_S = 120.0
POLL_S = 0.2


class CheckError(Exception):
    """A failed check of the image."""


@dataclass(frozen=True)
class Container:
    """A container of an engine with Docker's command line."""

    engine: str
    name: str

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the engine, successful or not."""
        command = [self.engine, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)

    def must(self, *arguments: str) -> str:
        """Run a command of the engine that must succeed; return its output."""
        done = self.call(*arguments)
        if done.returncode != 0:
            raise CheckError(f"{self.engine} {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout.strip()

    @property
    def healthy(self) -> bool:
        """True if the image's own health check passes."""
        if "podman" in Path(self.engine).name:  # which runs it by itself only where there is systemd
            return self.call("healthcheck", "run", self.name).returncode == 0
        return self.must("inspect", "--format", "{{.State.Health.Status}}", self.name) == "healthy"

    @property
    def ended(self) -> bool:
        """True if the container has stopped."""
        return self.must("inspect", "--format", "{{.State.Running}}", self.name) == "false"


def free_port() -> int:
    """A free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def running(container: Container, image: str, port: int, metrics_port: int, *, host_network: bool) -> Iterator[None]:
    """Run the image in a locked-down container; raise with its log if that fails."""
    if host_network:
        network = ["--network", "host"]
        network += ["--env", f"JUMOK_PORT={port}", "--env", f"JUMOK_SERVER=localhost:{port}"]
        network += ["--env", f"JUMOK_METRICS_PORT={metrics_port}"]
    else:
        network = ["--publish", f"127.0.0.1:{port}:50051", "--publish", f"127.0.0.1:{metrics_port}:9464"]
        network += ["--env", "JUMOK_METRICS_PORT=9464"]
    locked = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp"]
    mounted = ["--volume", f"{MODELS}:/models:ro", "--env", "JUMOK_THREADS=1", "--env", "JUMOK_REPLICAS=1"]
    served = ["serve", "/models/multi30k-en-de-transformer"]
    try:
        container.must("run", "--detach", "--name", container.name, *locked, *network, *mounted, image, *served)
        yield
    except (CheckError, jumok.JumokError) as error:
        logs = container.call("logs", container.name)
        raise CheckError(f"{error}\nit wrote:\n{logs.stdout}{logs.stderr}") from error
    finally:
        container.call("rm", "--force", container.name)


def wait_until_healthy(container: Container) -> float:
    """Wait for the health check; return the seconds waited."""
    start = time.monotonic()
    while not container.healthy:
        if container.ended:
            raise CheckError("the server ended before it was healthy")
        if time.monotonic() - start > START_S:
            raise CheckError(f"the health check has not passed within {START_S:g} s")
        threading.Event().wait(POLL_S)
    return time.monotonic() - start


def check_confinement(container: Container) -> None:
    """Check the user, the read-only root and the absence of build tools."""
    user = container.must("exec", container.name, "id", "-u")
    if user != USER:
        raise CheckError(f"the server's user is {user}, not {USER}")
    if container.call("exec", container.name, "touch", "/opt/jumok/written").returncode == 0:
        raise CheckError("the server can write to its own code")
    found = container.must(
        "exec", container.name, "sh", "-c", "ls -d /dist /source $HOME/.cache/pip 2>/dev/null; command -v cc gcc; true"
    )
    if found:
        raise CheckError(f"the image holds what only building needs: {', '.join(found.splitlines())}")


def check_packages(container: Container) -> int:
    """Check that the list of packages has every installed one; return their number."""
    installed = container.must("exec", container.name, "python", "-c", LIST_PACKAGES).splitlines()
    listed = json.loads(container.must("exec", container.name, "cat", PACKAGES))
    missing = {*installed} - {f"{one['name']} {one['version']}" for one in listed["components"]}
    if missing:
        raise CheckError(f"{PACKAGES} lacks {', '.join(sorted(missing))}")
    return len(installed)


def wait_until_called(metrics: str) -> None:
    """Wait for an open call in the server's metrics."""
    start = time.monotonic()
    while time.monotonic() - start < START_S:
        try:
            with urllib.request.urlopen(metrics, timeout=CALL_S) as answer:
                if b"\njumok_open_requests 1.0\n" in answer.read():
                    return
        except urllib.error.URLError as error:
            raise CheckError(f"{metrics}: {error.reason}") from error
    raise CheckError(f"{metrics}: no call was open within {START_S:g} s")


def check_drain(container: Container, client: jumok.Client, metrics: str) -> int:
    """Check that an open call survives SIGTERM, with exit code 0; return its number of texts."""
    start = time.monotonic()
    client.translate([SENTENCE] * FEW_TEXTS, beam_size=BEAM_SIZE)
    texts = int(FEW_TEXTS * RUN_S / (time.monotonic() - start))
    texts = min(MOST_TEXTS, max(FEW_TEXTS, texts))
    with ThreadPoolExecutor(1) as caller:
        call = caller.submit(client.translate, [SENTENCE] * texts, beam_size=BEAM_SIZE)
        wait_until_called(metrics)
        container.must("kill", "--signal", "TERM", container.name)
        if call.done():
            raise CheckError(f"{texts} texts were translated before SIGTERM was sent: nothing ran that could be lost")
        answered = len(call.result(CALL_S))
    if answered != texts:
        raise CheckError(f"{answered} of {texts} texts were answered after SIGTERM")
    code = container.must("wait", container.name)
    if code != "0":
        raise CheckError(f"the exit code after SIGTERM is {code}")
    return texts


def main() -> None:
    """Run the check; exit with code 1 and a reason if any part fails."""
    parser = argparse.ArgumentParser(description="Check an image as it is run.")
    parser.add_argument("--engine", default="docker", help="docker, podman, or a path; default: %(default)s")
    parser.add_argument("--image", default="jumok", help="default: %(default)s")
    parser.add_argument("--host-network", action="store_true", help="for an engine that cannot publish ports")
    options = parser.parse_args()
    port, metrics_port = free_port(), free_port()
    container = Container(options.engine, f"jumok-check-{port}")
    try:
        size = int(container.must("image", "inspect", "--format", "{{.Size}}", options.image))
        print(f"{options.image}: {size / 1e6:.0f} MB")
        with (
            running(container, options.image, port, metrics_port, host_network=options.host_network),
            jumok.Client(f"127.0.0.1:{port}", timeout_s=CALL_S) as client,
        ):
            print(f"healthy after {wait_until_healthy(container):.1f} s")
            check_confinement(container)
            print(f"{check_packages(container)} packages, all in {PACKAGES}")
            print(f"user {USER}, read-only root: {client.translate(SENTENCE).text}")
            texts = check_drain(container, client, f"http://127.0.0.1:{metrics_port}/metrics")
            print(f"SIGTERM during a call: {texts} texts answered, exit code 0")
    except FileNotFoundError as error:
        sys.exit(f"check failed: no engine {error.filename!r}; name another with --engine")
    except (CheckError, jumok.JumokError, subprocess.TimeoutExpired) as error:
        sys.exit(f"check failed: {error}")


if __name__ == "__main__":
    main()
