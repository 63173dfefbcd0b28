"""What can go wrong in this room, as one tree of exceptions.

JumokError
├── InvalidArgumentError (ValueError)      the caller's texts or options
├── ModelNotFoundError (LookupError)      no such model is loaded
├── BundleNotFoundError (LookupError)     no such bundle in the model root
├── LanguageNotFoundError (LookupError)   the model does not have that language
├── AttentionUnavailableError             the model computes no such attention, or has no graph that tells of it
├── ScoringUnavailableError               the bundle has no graph that scores given translations
├── SamplingUnavailableError              the bundle has no graph that draws tokens
├── BundleError (ValueError)         a bundle that cannot be used
│   └── BundleNotLoadedError              one that a running server was asked to load
├── DuplicateModelError (ValueError)      two bundles of one name in a server
├── DeviceError                      a device that is not there
├── ListenError                      an address that cannot be listened on
├── ConfigurationError (ValueError)  settings of a server that cannot be used
├── CredentialsError (ValueError)    files of certificates or tokens that cannot be used
├── UnauthenticatedError                  a call without a token that the server knows
├── PermissionDeniedError                       a token whose scopes do not allow the call
├── OverloadedError                       the queue is full
│   └── RateLimitedError                  the caller has called too often
├── ModelFailedError                      the model computed no number
├── DeadlineExceededError (TimeoutError)  the caller's deadline passed
└── UnavailableError                      the model or the server is being stopped
    └── EngineFailedError                 the engine failed while it decoded, or is being started anew
"""

from collections.abc import Sequence
from os import PathLike, fspath

from jumok_proto.errors import JumokError

__all__ = [
    "AttentionUnavailableError",
    "BundleError",
    "BundleNotFoundError",
    "BundleNotLoadedError",
    "ConfigurationError",
    "CredentialsError",
    "DeadlineExceededError",
    "DeviceError",
    "DuplicateModelError",
    "EngineFailedError",
    "InvalidArgumentError",
    "JumokError",
    "LanguageNotFoundError",
    "ListenError",
    "ModelFailedError",
    "ModelNotFoundError",
    "OverloadedError",
    "PermissionDeniedError",
    "RateLimitedError",
    "SamplingUnavailableError",
    "ScoringUnavailableError",
    "UnauthenticatedError",
    "UnavailableError",
]


class InvalidArgumentError(JumokError, ValueError):
    """The request itself is wrong; sending it again cannot help.

    ``field`` is the path of the offending part: ``contents[3]``, ``options.beam_size``.
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class ModelNotFoundError(JumokError, LookupError):
    """The named model is not loaded; ``available`` lists those that are. No name asks for the only one."""

    def __init__(self, name: str, available: Sequence[str]) -> None:
        missing = f"model {name!r} is not loaded" if name else "no model is loaded"
        super().__init__(f"{missing}; available: {', '.join(available) or 'none'}")
        self.name = name
        self.available = tuple(available)


class BundleNotFoundError(JumokError, LookupError):
    """The model root has no such bundle; ``available`` lists those that it has."""

    def __init__(self, name: str, available: Sequence[str]) -> None:
        super().__init__(f"the model root has no bundle {name!r}; available: {', '.join(available) or 'none'}")
        self.name = name
        self.available = tuple(available)


class LanguageNotFoundError(JumokError, LookupError):
    """The model does not read or write that language, or not this pair of them; the message lists those it has.

    ``field`` is ``source_language_code`` or ``target_language_code``.
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class AttentionUnavailableError(JumokError):
    """Attention was asked of a bundle that has no aligner, or of a kind that its model does not have.

    ``missing`` names that kind; None: there is no aligner.
    """

    def __init__(self, model: str, missing: str | None = None) -> None:
        super().__init__(
            f"model {model!r} has no attention to show: it decodes without, or has no aligner, which computes it"
            if missing is None
            else f"model {model!r} has no {missing}"
        )


class ScoringUnavailableError(JumokError):
    """Scores of given translations were asked of a bundle that has no scorer."""

    def __init__(self, model: str) -> None:
        super().__init__(f"model {model!r} was exported without a scorer, the graph that scores given translations")


class SamplingUnavailableError(JumokError):
    """Sampling was asked of a bundle that has no sampler."""

    def __init__(self, model: str) -> None:
        super().__init__(f"model {model!r} was exported without a sampler, the graph that draws tokens; search instead")


class BundleError(JumokError, ValueError):
    """A bundle cannot be used; ``problems`` lists all that is wrong with it."""

    def __init__(self, path: str | PathLike[str], problems: Sequence[str]) -> None:
        listing = problems[0] if len(problems) == 1 else "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"bundle {fspath(path)}: {listing}")
        self.path = fspath(path)
        self.problems = tuple(problems)


class BundleNotLoadedError(BundleError):
    """A bundle of the model root that a server was asked to load cannot be used; ``path`` is its folder's name."""


class DuplicateModelError(JumokError, ValueError):
    """A server was given two models of the same name, and requests could not tell them apart."""

    def __init__(self, name: str) -> None:
        super().__init__(f"two bundles are named {name!r}: a server holds one model of a name")
        self.name = name


class DeviceError(JumokError):
    """The requested device cannot run the model."""


class ListenError(JumokError):
    """The server cannot listen on the address it was given."""


class ConfigurationError(JumokError, ValueError):
    """The settings of a server cannot be used; ``problems`` lists all that is wrong with them."""

    def __init__(self, problems: Sequence[str]) -> None:
        listing = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"the server cannot be configured like this:{listing}")
        self.problems = tuple(problems)


class CredentialsError(JumokError, ValueError):
    """Certificates, keys or tokens are not what their files should hold."""


class UnauthenticatedError(JumokError):
    """A call has no token, or one that the server does not know."""


class PermissionDeniedError(JumokError):
    """A token does not have the scope that a call needs."""


class OverloadedError(JumokError):
    """The queue has no room; the same request can succeed after ``retry_after_s`` seconds."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimitedError(OverloadedError):
    """The caller has made more calls than it may; the next can succeed after ``retry_after_s`` seconds."""


class ModelFailedError(JumokError):
    """The model computed something that is no number; trying again gives the same."""


class DeadlineExceededError(JumokError, TimeoutError):
    """The caller's deadline passed while the request waited or was decoded."""


class UnavailableError(JumokError):
    """Not able to answer now; the same request can succeed after ``retry_after_s`` seconds."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineFailedError(UnavailableError):
    """The engine failed while it decoded, or is being started anew; trying again after ``retry_after_s`` can help."""
