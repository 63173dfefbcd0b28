"""Addresses of servers, and channels to them with their credentials."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from jumok._validation import invalid_field

MAX_MESSAGE_BYTES = 32 * 2**20

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # an answer can be larger than its request
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A name with several addresses stands for several servers.
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    # In a rolling restart a client finds the restarted server before the next one stops.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
ADDRESS_LISTS = ("ipv4:", "ipv6:")
"""Prefixes of gRPC targets that contain commas."""


@dataclass(frozen=True, kw_only=True)
class Tls:
    """TLS settings; files are in PEM and are read when a client is made.

    Args:
        root_certificates: certificates that the server's is signed by; None: the public authorities of gRPC.
        client_certificate: certificate of the client, for mutual TLS.
        client_key: private key of the client's certificate.
        override_name: name in the server's certificate, if it differs from the address.
    """

    root_certificates: str | Path | None = None
    client_certificate: str | Path | None = None
    client_key: str | Path | None = field(default=None, repr=False)
    override_name: str | None = None

    def __post_init__(self) -> None:
        if (self.client_certificate is None) != (self.client_key is None):
            raise ValueError("client_certificate and client_key need each other: give both, or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        """Make gRPC credentials; raise OSError for a file that cannot be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.root_certificates),
            private_key=_read(self.client_key),
            certificate_chain=_read(self.client_certificate),
        )


def addresses(server: str | Sequence[str]) -> tuple[str, ...]:
    """Split the addresses of servers; raise InvalidArgumentError if there is none."""
    if isinstance(server, str):
        found = [server] if server.startswith(ADDRESS_LISTS) else [part.strip() for part in server.split(",")]
    else:
        found = list(server)
    if not found or not all(isinstance(address, str) and address for address in found):
        raise invalid_field("server", f"must be an address such as localhost:50051, or several, got {server!r}")
    return tuple(dict.fromkeys(found))


def open_channel(address: str, *, tls: Tls | None = None, token: str | None = None) -> grpc.Channel:
    """Open a channel to a server.

    Raises:
        ValueError: a token without TLS.
        OSError: a file cannot be read.
    """
    credentials = _credentials(tls, token)
    if credentials is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(address, credentials, options=_options(tls))


def open_async_channel(address: str, *, tls: Tls | None = None, token: str | None = None) -> grpc.aio.Channel:
    """Open a channel for asyncio; see ``open_channel``."""
    credentials = _credentials(tls, token)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=_options(tls))


def _credentials(tls: Tls | None, token: str | None) -> grpc.ChannelCredentials | None:
    if token is None:
        return None if tls is None else tls.credentials()
    if not token.isascii() or not token.isprintable() or not token.strip():
        raise ValueError("token: must be printable ASCII characters")  # a secret: not part of the message
    if tls is None:
        raise ValueError("token: the network could read it without TLS; give tls too")
    return grpc.composite_channel_credentials(tls.credentials(), grpc.access_token_call_credentials(token))


def _options(tls: Tls | None) -> Sequence[tuple[str, str | int]]:
    if tls is None or tls.override_name is None:
        return CHANNEL_OPTIONS
    return (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", tls.override_name))


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
