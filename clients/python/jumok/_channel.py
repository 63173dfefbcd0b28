"""How clients reach a server: plain text or TLS, and with which credentials."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

Options = Sequence[tuple[str, str | int]]


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Speak TLS with a server.

    All files are in PEM, and read when a client is made. ``root_certificates`` are what the server's certificate must
    be signed by; left out, the public authorities that gRPC knows. ``client_certificate`` and ``client_key`` show a
    server with mutual TLS who calls. ``override_name`` is the name in the server's certificate, where it is not the
    name that the client calls it by.
    """

    root_certificates: str | Path | None = None
    client_certificate: str | Path | None = None
    client_key: str | Path | None = field(default=None, repr=False)
    override_name: str | None = None

    def __post_init__(self) -> None:
        if (self.client_certificate is None) != (self.client_key is None):
            raise ValueError("client_certificate and client_key need each other: give both, or none")

    def credentials(self) -> grpc.ChannelCredentials:
        """What gRPC needs of this; raise OSError for a file that cannot be read."""
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.root_certificates),
            private_key=_read(self.client_key),
            certificate_chain=_read(self.client_certificate),
        )


def open_channel(server: str, *, tls: Tls | None, token: str | None, options: Options) -> grpc.Channel:
    """Open a channel; raise ValueError for a token without TLS, and OSError for files that cannot be read."""
    credentials = _credentials(tls, token)
    if credentials is None:
        return grpc.insecure_channel(server, options=options)
    return grpc.secure_channel(server, credentials, options=_named(tls, options))


def open_async_channel(server: str, *, tls: Tls | None, token: str | None, options: Options) -> grpc.aio.Channel:
    """The same for asyncio."""
    credentials = _credentials(tls, token)
    if credentials is None:
        return grpc.aio.insecure_channel(server, options=options)
    return grpc.aio.secure_channel(server, credentials, options=_named(tls, options))


def _credentials(tls: Tls | None, token: str | None) -> grpc.ChannelCredentials | None:
    if token is None:
        return None if tls is None else tls.credentials()
    if not token.isascii() or not token.isprintable() or not token.strip():
        raise ValueError("token: must be printable ASCII characters")  # and is not repeated, being a secret
    if tls is None:
        raise ValueError("token: without TLS anybody on the way could read it; give tls too")
    return grpc.composite_channel_credentials(tls.credentials(), grpc.access_token_call_credentials(token))


def _named(tls: Tls | None, options: Options) -> Options:
    if tls is None or tls.override_name is None:
        return options
    return (*options, ("grpc.ssl_target_name_override", tls.override_name))


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
