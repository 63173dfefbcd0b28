"""Errors of the server, and the texts that errors of a part name.

JumokError
├── BundleError (ValueError)
├── DuplicateModelError (ValueError)
├── DeviceError
├── ListenError
├── ConfigurationError (ValueError)
├── CredentialsError (ValueError)
└── InternalError
    ├── ModelFailedError
    └── ForeignCodeError
"""

from collections.abc import Sequence
from os import PathLike, fspath

from jumok_proto.errors import InternalError, JumokError, printable


class BundleError(JumokError, ValueError):
    """A bundle cannot be used; ``problems`` lists all that is wrong with it.

    Names of files may hold any bytes, so path and problems are made printable.
    """

    def __init__(self, path: str | PathLike[str], problems: Sequence[str]) -> None:
        self.path = printable(fspath(path))
        self.problems = tuple(map(printable, problems))
        listing = self.problems[0] if len(problems) == 1 else "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"bundle {self.path}: {listing}")


class DuplicateModelError(JumokError, ValueError):
    """Two bundles of one server have the same model name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"two bundles are named {name!r}: a server holds one model of a name; leave one out")
        self.name = name


class DeviceError(JumokError):
    """The device does not exist or cannot run the model."""


class ListenError(JumokError):
    """The server cannot listen on its address."""


class ConfigurationError(JumokError, ValueError):
    """The settings of a server are unusable; ``problems`` lists the reasons."""

    def __init__(self, problems: Sequence[str]) -> None:
        listing = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"the server cannot be configured like this:{listing}")
        self.problems = tuple(problems)


class CredentialsError(JumokError, ValueError):
    """A file of certificates, keys or tokens cannot be used."""


class ModelFailedError(InternalError):
    """The model computed NaN; a retry gives the same."""


class ForeignCodeError(InternalError):
    """A native library failed in a way that it does not document; a retry gives the same."""
