"""TLS for the server: certificates from files that may be replaced while it runs."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc

from jumok_serve.errors import CredentialsError
from jumok_serve.service.auth.reloaded_files import Watched


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """Where certificates are, in PEM.

    Attributes:
        certificate: the server's, and those between it and its authority's.
        key: its private key, without a password.
        client_ca: what clients' certificates must be signed by; None: clients need none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """What a secure port needs; every new connection gets what the files hold then.

        Raises:
            CredentialsError: the files cannot be used.
        """
        watched = Watched(self._paths, self._read)
        served = watched.get()

        def changed() -> grpc.ServerCertificateConfiguration | None:
            """What a new connection is to have, where it is not what the last one had."""
            nonlocal served
            now = watched.get()
            if now is served:
                return None
            served = now
            return now

        return grpc.dynamic_ssl_server_credentials(
            served,
            cast("Callable[[], grpc.ServerCertificateConfiguration]", changed),  # None, gRPC says, is no change
            require_client_authentication=self.client_ca is not None,
        )

    @property
    def _paths(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.client_ca) if path is not None]

    def _read(self) -> grpc.ServerCertificateConfiguration:
        contents = [path.read_bytes() for path in self._paths]
        # gRPC would say nothing of a key that is another certificate's, and fail every connection.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password=_refuse_password)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (ssl.SSLError, ValueError) as error:
            raise CredentialsError(
                f"certificate {self.certificate}, key {self.key}"
                f"{f' and authority {self.client_ca}' if self.client_ca else ''} cannot be used: {error}"
            ) from error
        if [path.read_bytes() for path in self._paths] != contents:
            raise CredentialsError(f"{self.certificate} or {self.key} was being replaced")
        certificate, key, *authority = contents
        return grpc.ssl_server_certificate_configuration(
            [(key, certificate)], root_certificates=authority[0] if authority else None
        )


def _refuse_password() -> str:
    """Instead of asking for it on the terminal."""
    raise ValueError("the key has a password: give one without")
