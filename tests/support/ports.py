"""Ports for programs that cannot choose a free one themselves."""

import contextlib
import random
import socket


def free_port() -> int:
    """Return a free port that no other process gets by chance: systems assign ports from 32768 up."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")
