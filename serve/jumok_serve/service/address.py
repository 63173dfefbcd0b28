"""Addresses to listen on: how they are written, and whether they can be had."""

import errno
import socket

from jumok_serve.errors import ListenError


def joined(host: str, port: int) -> str:
    """``host:port``, with brackets around an address of IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_address(host: str, port: int, setting: str) -> None:
    """Try an address: gRPC tells the reason why it cannot listen only in a log line for programmers.

    Args:
        host: address to listen on.
        port: 0: any free.
        setting: what says which port.

    Raises:
        ListenError: the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except UnicodeError as error:
        raise ListenError(f"cannot listen on {joined(host, port)}: not a host name") from error
    except OSError as error:
        way_out = f"; another program has it, so choose another {setting}" if error.errno == errno.EADDRINUSE else ""
        raise ListenError(f"cannot listen on {joined(host, port)}: {error.strerror}{way_out}") from error
