"""Bearer tokens: random secrets, with hashes in a file that may change.

A line is a name, scopes and the SHA-256 of a token: ``reports translate sha256:9f86...``. Empty lines, and lines that
begin with ``#``, are ignored. A token has 256 random bits, so guessing cannot find it from its hash. A slow hash, as
passwords need, would only slow down every call.
"""

import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from jumok_serve.errors import CredentialsError
from jumok_serve.service.auth.reloaded_files import ReloadedFiles

SCOPES = frozenset({"translate", "admin"})
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret: name, scopes and hash."""

    name: str
    scopes: frozenset[str]
    digest: bytes

    def line(self) -> str:
        """Line of the token file."""
        return f"{self.name} {','.join(sorted(self.scopes))} sha256:{self.digest.hex()}"


def make_token(name: str, scopes: Iterable[str]) -> tuple[str, Token]:
    """Make a secret and its entry for the token file.

    Raises:
        CredentialsError: the name or a scope is invalid.
    """
    secret = f"jumok_{secrets.token_urlsafe(32)}"
    return secret, Token(_check_name(name), _check_scopes(scopes), _digest(secret))


class TokenFile:
    """Tokens of a file.

    Raises:
        CredentialsError: the file is unusable; lists all wrong lines.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens = ReloadedFiles([path], self._read)

    def find(self, secret: str) -> Token | None:
        """Return the token of a secret, or None, in constant time."""
        digest = _digest(secret)
        found = None
        for token in self._tokens.get():
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    def _read(self, contents: Sequence[bytes]) -> list[Token]:
        try:
            lines = contents[0].decode("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise CredentialsError(f"{self._path} is no file of tokens: byte {error.start + 1} is not UTF-8") from error
        tokens, problems = [], []
        for number, line in enumerate(lines, start=1):
            if line.strip() and not line.startswith("#"):
                try:
                    tokens.append(_parse(line))
                except CredentialsError as error:
                    problems.append(f"line {number}: {error}")
        names = [token.name for token in tokens]
        problems += [f"two tokens are named {name!r}" for name in sorted(set(names)) if names.count(name) > 1]
        if problems:
            raise CredentialsError(f"{self._path}: {'; '.join(problems)}")
        return tokens


def _parse(line: str) -> Token:
    parts = line.split()
    if len(parts) != 3:
        raise CredentialsError("must be a name, scopes and a hash, as 'jumok token' writes it")
    name, scopes, hashed = parts
    found = _HASH.fullmatch(hashed)
    if found is None:
        raise CredentialsError("the hash must be 'sha256:' and 64 hexadecimal digits")
    return Token(_check_name(name), _check_scopes(scopes.split(",")), bytes.fromhex(found[1]))


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise CredentialsError(f"the name {name!r} must be 1 to 64 letters, digits or any of '_.@-'")
    return name


def _check_scopes(scopes: Iterable[str]) -> frozenset[str]:
    checked = frozenset(scopes)
    if not checked or not checked <= SCOPES:
        unknown = ", ".join(sorted(checked - SCOPES)) or "none"
        raise CredentialsError(f"scopes must be any of {', '.join(sorted(SCOPES))}, got {unknown}")
    return checked


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()
