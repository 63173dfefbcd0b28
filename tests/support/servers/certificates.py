"""Certificates of a test authority."""

import os
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Authority:
    """Signs certificates into a folder: ``ca.pem``, and ``NAME.pem`` and ``NAME.key`` for each."""

    folder: Path
    ca: trustme.CA

    @classmethod
    def make(cls, folder: Path) -> "Authority":
        folder.mkdir(parents=True, exist_ok=True)
        ca = trustme.CA()
        ca.cert_pem.write_to_path(str(folder / "ca.pem"))
        return cls(folder, ca)

    @property
    def root(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, name: str, host: str = "localhost") -> tuple[Path, Path]:
        """Issue a certificate for a host, replacing the files of that name; returns certificate and key."""
        issued = self.ca.issue_cert(host)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        for path, content in (
            (certificate, b"".join(blob.bytes() for blob in issued.cert_chain_pems)),
            (key, issued.private_key_pem.bytes()),
        ):
            new = path.with_suffix(".new")
            new.write_bytes(content)
            os.replace(new, path)
        return certificate, key
