"""Ask a server for its health again and again, and write the longest wait so far, in seconds, for each line read."""

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

TIMEOUT_S = 300.0


class HealthWaits:
    """Waits of health checks that another process makes without a pause."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def longest_s(self) -> float:
        """Longest wait since this was asked before, the check that is open now included."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


@contextmanager
def health_waits(address: str) -> Iterator[HealthWaits]:
    """Check the health of ``host:port`` in another process, within this context."""
    command = [sys.executable, "-m", __name__, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield HealthWaits(process)
        finally:
            process.kill()


def main() -> None:
    """Check health until standard input ends."""
    with grpc.insecure_channel(sys.argv[1]) as channel:
        check = HealthStub(channel).Check
        longest_s = 0.0
        while True:
            began = time.monotonic()
            check(HealthCheckRequest(), timeout=TIMEOUT_S)
            longest_s = max(longest_s, time.monotonic() - began)
            if select.select([sys.stdin], [], [], 0)[0]:
                if not sys.stdin.readline():
                    return
                print(longest_s, flush=True)
                longest_s = 0.0


if __name__ == "__main__":
    main()
