"""Ray Serve in a cluster of its own, with proxies for gRPC and HTTP."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.hang import HANG_S
from tests.support.ports import free_port
from tests.support.ray_cluster import RayCluster, ray_cluster


@dataclass(frozen=True)
class Cluster:
    """A cluster with Serve.

    Attributes:
        address: address of its gRPC proxy.
        http: URL of its HTTP proxy.
    """

    address: str
    http: str
    processes: RayCluster

    def run(self, bundle: Path, **settings: Any) -> None:
        """Run the application, or change it, and wait until all replicas run.

        A replica that stops waits for its calls, however long they take.
        """
        from ray import serve

        from jumok_serve.ray import app

        serve.run(app({"bundles": str(bundle), "trusted_bundles": True, "grace_s": HANG_S, **settings}))

    def running(self) -> int:
        """Number of replicas that run, and do not stop."""
        from ray import serve

        return int(serve.status().applications["default"].deployments["jumok"].replica_states.get("RUNNING", 0))

    def wait_for(self, replicas: int) -> None:
        """Wait until Ray has scaled the application to a number of replicas, and none stops any more."""
        end = time.monotonic() + HANG_S
        while self.running() != replicas or len(self.replicas()) != replicas:
            assert time.monotonic() < end, (self.running(), self.replicas())
            time.sleep(0.1)

    def replicas(self) -> list[int]:
        """Process ids of the replicas."""
        return self.processes.processes("ServeReplica:default:jumok")

    def kill(self, replica: int) -> None:
        """Kill a replica."""
        os.kill(replica, signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    from ray import serve

    port, http_port = free_port(), free_port()
    with ray_cluster() as processes:
        ray.init(processes.address, log_to_driver=False, logging_level="error")
        try:
            serve.start(
                grpc_options={"port": port, "grpc_servicer_functions": ["jumok_serve.ray.add_services"]},
                http_options={"port": http_port},
            )
            yield Cluster(f"127.0.0.1:{port}", f"http://127.0.0.1:{http_port}", processes)
        finally:
            ray.shutdown()
