"""A server of jumok on Ray Serve, in a Ray cluster of its own; serves until SIGTERM."""

import argparse
import signal
import tempfile
from pathlib import Path

import ray
from ray import serve

from benchmarks.http_load import free_port
from jumok_serve.ray import app


def main() -> None:
    """Serve a bundle with a number of replicas of one core each, and print the address as ``jumok serve`` does."""
    parser = argparse.ArgumentParser(description="Serve a bundle with Ray Serve.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--replicas", type=int, required=True)
    options = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:  # paths of sockets are short
        ray.init(
            num_cpus=options.replicas,
            include_dashboard=False,
            object_store_memory=200 * 2**20,
            _temp_dir=folder,
            log_to_driver=False,
            logging_level="error",
        )
        serve.start(
            grpc_options={"port": port, "grpc_servicer_functions": ["jumok_serve.ray.add_services"]},
            http_options={"port": free_port()},
        )
        serve.run(app({"bundles": str(options.bundle), "num_replicas": options.replicas, "trusted_bundles": True}))
        print(f"serving on 127.0.0.1:{port}: {options.bundle.name}", flush=True)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
