"""TLS for the server, with certificates that may be replaced while it runs."""

import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc

from jumok_serve.errors import CredentialsError
from jumok_serve.service.auth.tokens import ReloadedFiles, read_file


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files.

    Attributes:
        certificate: the server's certificate, followed by intermediate ones.
        key: private key of the certificate, without a password.
        client_ca: authority that must have signed clients' certificates; None: clients need none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials of a secure port; new connections use the current files.

        Raises:
            CredentialsError: the files are unusable.
        """
        files = ReloadedFiles(self._paths, self._read)
        served = files.get()

        def changed_configuration() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            current = files.get()
            if current is served:
                return None
            served = current
            return current

        return grpc.dynamic_ssl_server_credentials(
            served,
            # gRPC's types leave out that the function may return None, for no change.
            cast("Callable[[], grpc.ServerCertificateConfiguration]", changed_configuration),
            require_client_authentication=self.client_ca is not None,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """Context of a port without gRPC; new connections use the current files.

        Raises:
            CredentialsError: the files are unusable.
        """
        contexts = ReloadedFiles(self._paths, self._read_context)
        first = self._read_context([read_file(path) for path in self._paths])

        def use_current(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
            connection.context = contexts.get()

        first.sni_callback = use_current  # called at every handshake, with or without a name
        return first

    @property
    def _paths(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.client_ca) if path is not None]

    def _read(self, contents: Sequence[bytes]) -> grpc.ServerCertificateConfiguration:
        # gRPC accepts a key that does not match the certificate, and then fails every connection.
        self._read_context(contents)
        certificate, key, *authority = contents
        return grpc.ssl_server_certificate_configuration(
            [(key, certificate)], root_certificates=authority[0] if authority else None
        )

    def _read_context(self, contents: Sequence[bytes]) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password=_refuse_password)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (ssl.SSLError, ValueError) as error:
            raise CredentialsError(
                f"certificate {self.certificate}, key {self.key}"
                f"{f' and authority {self.client_ca}' if self.client_ca else ''} cannot be used: "
                f"{self._wrong_content(contents) or error}"
            ) from error
        if [read_file(path) for path in self._paths] != contents:
            raise CredentialsError(f"{self.certificate} or {self.key} was being replaced")
        return context

    def _wrong_content(self, contents: Sequence[bytes]) -> str:
        """Name the first file that is no PEM file of its kind; empty if all are."""
        kinds = (b"CERTIFICATE", b"PRIVATE KEY", b"CERTIFICATE")
        for path, content, kind in zip(self._paths, contents, kinds, strict=False):
            if not re.search(rb"^-----BEGIN [A-Z ]*" + kind + b"-----", content, re.MULTILINE):
                return f"{path} has no {kind.decode().lower()} in PEM"
        return ""


def _refuse_password() -> str:
    """Refuse an encrypted key; without this callback OpenSSL prompts on the terminal."""
    raise ValueError("the key has a password: give one without")
