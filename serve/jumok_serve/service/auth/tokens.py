"""Tokens of callers, in a file that is read again after changes.

A line is a name, scopes and the SHA-256 of a token: ``reports translate sha256:9f86...``. Empty lines, and lines that
begin with ``#``, are ignored. A token has 256 random bits, so guessing cannot find it from its hash. A slow hash, as
passwords need, would only slow down every call.
"""

import hmac
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from jumok_serve.errors import CredentialsError
from jumok_serve.files import RegularFile, UnusableFileError

logger = logging.getLogger(__name__)

Content = TypeVar("Content")

MAX_BYTES = 4 * 2**20
"""Largest file: 30,000 tokens."""
RACY_NS = 2 * 10**9
"""Age in ns from which a file's times tell its changes apart; the coarsest file systems count in 2 s."""


class _FileState(NamedTuple):
    """Status of a file; `changed` is in ns, and no user can set it."""

    changed: int
    modified: int
    size: int
    inode: int
    device: int
    mode: int


class ReloadedFiles(Generic[Content]):
    """Content of files, checked for changes at every ``get``; thread-safe.

    If changed files are unusable, e.g. a certificate without its new key, the previous content stays in force. A file
    that was changed less than two seconds ago is read at every ``get``, as its times may not show another change.

    Args:
        read: makes the content of the files' bytes, in their order; raises CredentialsError if they are unusable.

    Raises:
        CredentialsError: the files are unusable now.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[Sequence[bytes]], Content]) -> None:
        self._paths = paths
        self._read = read
        self._lock = threading.Lock()
        self._states = self._current_states()
        self._racy = False
        self._bytes = self._read_files()
        self._content = read(self._bytes)
        self._warn_if_writable()

    def get(self) -> Content:
        """Current content, or the last usable one."""
        with self._lock:
            states = self._current_states()
            if states != self._states or self._racy:
                self._reload(states)
            return self._content

    def _reload(self, states: tuple[_FileState | None, ...]) -> None:
        new, self._states = states != self._states, states
        try:
            found = self._read_files()
            if found != self._bytes:
                self._bytes = found
                self._content = self._read(found)
                logger.info("read %s again", ", ".join(map(str, self._paths)))
        except CredentialsError as error:
            logger.warning("%s; the previous content stays in force", error)
        if new:
            self._warn_if_writable()

    def _read_files(self) -> list[bytes]:
        self._racy = False  # an unusable file is read again after a change alone
        now = time.time_ns()  # noqa: TID251 - compared with the times of files
        found = [read_file(path) for path in self._paths]
        self._racy = any(state is not None and now - state.changed < RACY_NS for state in self._states)
        return found

    def _warn_if_writable(self) -> None:
        for path, state in zip(self._paths, self._states, strict=True):
            if state is not None and state.mode & stat.S_IWOTH:
                logger.warning("%s can be changed by every user of this machine; run chmod o-w %s", path, path)

    def _current_states(self) -> tuple[_FileState | None, ...]:
        return tuple(map(_state, self._paths))


def _state(path: Path) -> _FileState | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return _FileState(found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev, found.st_mode)


def read_file(path: Path) -> bytes:
    """Read a regular file of at most `MAX_BYTES`; others, such as a named pipe, could block.

    Raises:
        CredentialsError: the file cannot be read, is no regular file, or is larger.
    """
    try:
        with RegularFile(path) as file:
            return file.read(MAX_BYTES)
    except UnusableFileError as error:
        raise CredentialsError(f"{path} {error}: put a file of tokens, keys or certificates in its place") from error
    except OSError as error:
        raise CredentialsError(f"cannot read {path}: {error.strerror}") from error


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
