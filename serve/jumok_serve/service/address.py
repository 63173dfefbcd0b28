"""Listening addresses: their notation, and a check that they can be bound."""

import errno
import socket

from jumok_serve.errors import ListenError


def format_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_address(host: str, port: int, setting: str) -> None:
    """Bind an address once, because gRPC logs failures instead of raising them.

    Raises:
        ListenError: the address cannot be bound.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except UnicodeError as error:
        raise ListenError(f"cannot listen on {format_address(host, port)}: not a host name") from error
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        remedy = f"; another program uses it, so choose another {setting}" if in_use else ""
        raise ListenError(f"cannot listen on {format_address(host, port)}: {error.strerror}{remedy}") from error
