"""A Ray cluster of processes on this machine, apart from the test's own process."""

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.hang import HANG_S
from tests.support.ports import free_port

MARK = "JUMOK_TEST_CLUSTER"
"""Variable that all processes of the cluster inherit."""
VARIABLES = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Counts of open calls reach the autoscaler at once.
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.2",
}


@dataclass(frozen=True)
class RayCluster:
    """A cluster.

    Attributes:
        address: address for drivers.
        mark: value of `MARK` in its processes.
    """

    address: str
    mark: str

    def processes(self, title: str) -> list[int]:
        """Return the ids of the cluster's processes with a title."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                mine = f"{MARK}={self.mark}".encode() in (process / "environ").read_bytes().split(b"\0")
                if mine and title.encode() in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        return found


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Run a cluster with two cores until the block ends."""
    port, mark = free_port(), uuid.uuid4().hex
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # paths of sockets are short
    options = ("--port", str(port), "--num-cpus", "2", "--object-store-memory", str(100 * 2**20), "--temp-dir", folder)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            "--include-dashboard=false",
            *options,
        ],
        env=os.environ | VARIABLES | {MARK: mark, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if "--block" in line:
                break
        assert process.poll() is None, said
        yield RayCluster(f"127.0.0.1:{port}", mark)
    finally:
        process.kill()  # Ray's reaper then ends the others, without waiting for calls
        process.communicate(timeout=HANG_S)
        shutil.rmtree(folder, ignore_errors=True)
