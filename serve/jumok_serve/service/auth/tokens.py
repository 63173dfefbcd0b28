"""Bearer tokens: made at random, kept as hashes in a file, read again when it changes.

A line is a name, scopes and the SHA-256 of a token: ``reports translate sha256:9f86...``. Empty lines, and lines that
begin with ``#``, say nothing. A token has 256 random bits, so that no number of guesses finds one by its hash: a slow
hash, which passwords need, would only slow down every call.
"""

import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from jumok_serve.errors import CredentialsError
from jumok_serve.service.auth.reloaded_files import Watched

SCOPES = frozenset({"translate", "admin"})
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the server knows it: not the secret, but its hash."""

    name: str
    scopes: frozenset[str]
    digest: bytes

    def line(self) -> str:
        """What the file has of it."""
        return f"{self.name} {','.join(sorted(self.scopes))} sha256:{self.digest.hex()}"


def make_token(name: str, scopes: Iterable[str]) -> tuple[str, Token]:
    """Make a secret, and what is to be kept of it.

    Raises:
        CredentialsError: the name or a scope cannot be used.
    """
    secret = f"jumok_{secrets.token_urlsafe(32)}"
    return secret, Token(_checked_name(name), _checked_scopes(scopes), _digest(secret))


class TokenFile:
    """The tokens of a file.

    Args:
        path: of the file.

    Raises:
        CredentialsError: it cannot be used; lists all lines that are wrong.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens = Watched([path], self._read)

    def find(self, secret: str) -> Token | None:
        """The token of a secret; how long this takes does not tell which it is, or how close to one."""
        digest = _digest(secret)
        found = None
        for token in self._tokens.get():
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    def _read(self) -> list[Token]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise CredentialsError(f"{self._path}: {error}") from error
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
    return Token(_checked_name(name), _checked_scopes(scopes.split(",")), bytes.fromhex(found[1]))


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise CredentialsError(f"the name {name!r} must be 1 to 64 letters, digits or any of '_.@-'")
    return name


def _checked_scopes(scopes: Iterable[str]) -> frozenset[str]:
    checked = frozenset(scopes)
    if not checked or not checked <= SCOPES:
        unknown = ", ".join(sorted(checked - SCOPES)) or "none"
        raise CredentialsError(f"scopes must be any of {', '.join(sorted(SCOPES))}, got {unknown}")
    return checked


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()
