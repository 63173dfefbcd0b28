"""The exceptions of jumok: one tree for servers and in-process translators.

JumokError
├── InvalidArgumentError (ValueError)
├── NotFoundError (LookupError)
│   ├── ModelNotFoundError
│   ├── BundleNotFoundError
│   ├── GlossaryNotFoundError
│   └── LanguageNotFoundError
├── FailedPreconditionError
│   ├── AttentionUnavailableError
│   ├── ScoringUnavailableError
│   ├── SamplingUnavailableError
│   ├── GlossariesUnavailableError
│   └── BundleNotLoadedError
├── ResourceExhaustedError           also a message that is too large
│   ├── OverloadedError
│   └── RateLimitedError
├── UnavailableError (ConnectionError)
│   └── EngineFailedError
├── DeadlineExceededError (TimeoutError)
├── CallCancelledError
├── UnauthenticatedError
├── PermissionDeniedError
├── UnimplementedError
└── InternalError

Each class states the gRPC status code and the reason that stand for it on the wire.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

import grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldViolation:
    """A wrong field of a request: its path, such as ``contents[3]``, and the problem."""

    field: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource that was not found, and a list of available ones."""

    type: str
    name: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """The details of an error beyond its status code and message."""

    reason: str = ""
    request_id: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    field_violations: tuple[FieldViolation, ...] = ()
    resource: Resource | None = None
    retry_after_s: float | None = None


class JumokError(Exception):
    """The base of all jumok errors; the message is fit for users.

    Args:
        message: the problem and its remedy.
        field: path of the wrong field in the request message, such as ``contents[3]`` or ``options.beam_size``.
        retry_after_s: seconds after which the same request can succeed.
        details: the details that a server sent; ``field`` and ``retry_after_s`` default to those in it.
        code: status code, if it is not the one of the class.

    Attributes:
        code: gRPC status code.
        reason: cause in capitals, stable between versions, such as ``MODEL_NOT_FOUND``; empty if unknown.
        field: path of the wrong field, or empty.
        retry_after_s: seconds to wait before a retry; None: unknown.
        request_id: id of the request in the server's log, or empty.
        metadata: further facts that the server sent.
        details: all that the server sent.
    """

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN
    reason: str = ""

    def __init__(
        self,
        message: str = "",
        *,
        field: str = "",
        retry_after_s: float | None = None,
        details: Details | None = None,
        code: grpc.StatusCode | None = None,
    ) -> None:
        super().__init__(message)
        self.details = details or NO_DETAILS
        violations = self.details.field_violations
        self.field = field or (violations[0].field if violations else "")
        self.retry_after_s = self.details.retry_after_s if retry_after_s is None else retry_after_s
        if details is not None:
            self.reason = details.reason
        if code is not None:
            self.code = code

    @property
    def request_id(self) -> str:
        """Id of the request in the server's log, or empty."""
        return self.details.request_id

    @property
    def metadata(self) -> Mapping[str, str]:
        """Further facts that the server sent."""
        return self.details.metadata

    @property
    def retryable(self) -> bool:
        """True if the same request can succeed later."""
        return False


NO_DETAILS = Details()


class InvalidArgumentError(JumokError, ValueError):
    """A text or an option, named by ``field``, is wrong; retries fail too."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_REQUEST"


class NotFoundError(JumokError, LookupError):
    """The model, bundle, glossary or language does not exist; ``details.resource`` lists those available."""

    code = grpc.StatusCode.NOT_FOUND

    @classmethod
    def _missing(cls, problem: str, kind: str, name: str, available: Sequence[str]) -> Self:
        listing = f"available: {', '.join(available) or 'none'}"
        resource = Resource(type=kind, name=name, description=listing)
        return cls(f"{problem}; {listing}", details=Details(reason=cls.reason, resource=resource))


class ModelNotFoundError(NotFoundError):
    """The named model is not loaded, or no model is."""

    reason = "MODEL_NOT_FOUND"

    @classmethod
    def of(cls, name: str, available: Sequence[str]) -> Self:
        """Make the error from a name (maybe empty) and the loaded models' names."""
        problem = f"model {name!r} is not loaded" if name else "no model is loaded"
        return cls._missing(problem, "jumok.v1.Model", name, available)


class BundleNotFoundError(NotFoundError):
    """The model root has no such bundle."""

    reason = "BUNDLE_NOT_FOUND"

    @classmethod
    def of(cls, name: str, available: Sequence[str]) -> Self:
        """Make the error from a name and the model root's bundle names."""
        return cls._missing(f"the model root has no bundle {name!r}", "jumok.v1.BundleSummary", name, available)


class GlossaryNotFoundError(NotFoundError):
    """The caller has no such stored glossary."""

    reason = "GLOSSARY_NOT_FOUND"

    @classmethod
    def of(cls, name: str, available: Sequence[str]) -> Self:
        """Make the error from an id or a name, and the names of the caller's glossaries."""
        return cls._missing(f"no glossary {name!r} is stored", "jumok.v1.StoredGlossary", name, available)


class LanguageNotFoundError(NotFoundError):
    """The model lacks the language or pair; the message lists available ones."""

    reason = "LANGUAGE_NOT_FOUND"


class FailedPreconditionError(JumokError):
    """The model or bundle cannot do what the request needs."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class AttentionUnavailableError(FailedPreconditionError):
    """The bundle has no aligner, or not the requested kind of attention."""

    reason = "ATTENTION_UNAVAILABLE"

    @classmethod
    def of(cls, model: str, missing: str = "") -> Self:
        """Make the error for a model without this kind of attention, or without any."""
        if missing:
            return cls(f"model {model!r} has no {missing}")
        return cls(
            f"model {model!r} has no attention to show: it decodes without, or has no aligner, which computes it"
        )


class ScoringUnavailableError(FailedPreconditionError):
    """The bundle has no scorer, the graph that scores given translations."""

    reason = "SCORING_UNAVAILABLE"

    @classmethod
    def of(cls, model: str) -> Self:
        """Make the error for a model without a scorer."""
        return cls(f"model {model!r} was exported without a scorer, the graph that scores given translations")


class SamplingUnavailableError(FailedPreconditionError):
    """The bundle has no sampler, the graph that draws tokens."""

    reason = "SAMPLING_UNAVAILABLE"

    @classmethod
    def of(cls, model: str) -> Self:
        """Make the error for a model without a sampler."""
        return cls(f"model {model!r} was exported without a sampler, the graph that draws tokens; search instead")


class GlossariesUnavailableError(FailedPreconditionError):
    """The server or translator keeps no glossaries, or cannot use their folder."""

    reason = "GLOSSARIES_UNAVAILABLE"

    @classmethod
    def of_server(cls) -> Self:
        """Make the error of a server without a folder of glossaries."""
        return cls("this server keeps no glossaries: start it with --glossaries FOLDER")

    @classmethod
    def of_folder(cls, problem: str) -> Self:
        """Make the error of a folder that cannot be read or written, as of a full disk."""
        return cls(
            f"the server cannot use its folder of glossaries: {problem}; make room there, or let the server read and "
            "write it, and try again"
        )


class BundleNotLoadedError(FailedPreconditionError):
    """The server cannot load the bundle."""

    reason = "BUNDLE_UNUSABLE"


class ResourceExhaustedError(JumokError):
    """The server is overloaded, the caller too fast, or a message too large.

    Retryable if ``retry_after_s`` is known, which it never is for a message that is too large.
    """

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    @property
    def retryable(self) -> bool:
        """True if the same request can succeed later."""
        return self.retry_after_s is not None


class OverloadedError(ResourceExhaustedError):
    """The queue is full, or too many calls are open."""

    reason = "OVERLOADED"


class RateLimitedError(ResourceExhaustedError):
    """The caller exceeds its rate limit."""

    reason = "RATE_LIMITED"


class UnavailableError(JumokError, ConnectionError):
    """No server can be reached, or the server or model is stopping."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"

    @property
    def retryable(self) -> bool:
        """True if the same request can succeed later."""
        return True


class EngineFailedError(UnavailableError):
    """The engine failed while it decoded, or is restarting."""

    reason = "ENGINE_FAILED"


class DeadlineExceededError(JumokError, TimeoutError):
    """The deadline passed before the result was complete."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class CallCancelledError(JumokError):
    """The call was cancelled, for example because its client was closed."""

    code = grpc.StatusCode.CANCELLED


class UnauthenticatedError(JumokError):
    """The server needs a token, or does not accept this one."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class PermissionDeniedError(JumokError):
    """The token lacks the scope that the call needs."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "NOT_ALLOWED"


class UnimplementedError(JumokError):
    """The server lacks this method: it is older than this client, or not jumok."""

    code = grpc.StatusCode.UNIMPLEMENTED


class InternalError(JumokError):
    """The server failed; its log has the cause under ``request_id``."""

    code = grpc.StatusCode.INTERNAL
    reason = "INTERNAL"


def printable(text: str) -> str:
    r"""Replace line ends, control characters and lone surrogates by escapes such as ``\n``; keep other text."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


_PARAMETERS = {
    "contents": "texts",
    "content": "text",
    "target_prefixes": "target_prefix",
    "dictionaries[0].tsv": "entries",
    "glossary.stored": "stored_glossary",
    "source_language_code": "source_language",
    "target_language_code": "target_language",
}
"""Parameters of Python methods, by the fields of requests that they fill."""


def parameter_name(field: str) -> str:
    """Give the parameter that fills a field: ``texts[3]`` for ``contents[3]``."""
    if field in _PARAMETERS:
        return _PARAMETERS[field]
    name, bracket, index = field.removeprefix("options.").partition("[")
    return f"{_PARAMETERS.get(name, name)}{bracket}{index}"


def name_parameter(error: JumokError) -> None:
    """Replace the field by the parameter in an error's message; ``field`` itself stays."""
    message = str(error)
    if error.field and error.field in message:
        error.args = (message.replace(error.field, parameter_name(error.field)),)


@contextmanager
def naming_parameters() -> Iterator[None]:
    """Name parameters instead of fields in the messages of errors."""
    try:
        yield
    except JumokError as error:
        name_parameter(error)
        raise
