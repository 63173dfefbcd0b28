"""Backend of the HTTP APIs: the gRPC services, of this process or of others."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from jumok_serve.manifest.languages import tag_key

TRANSLATE = "/jumok.v1.TranslationService/TranslateText"
DETECT = "/jumok.v1.TranslationService/DetectLanguage"
STREAM = "/jumok.v1.TranslationService/StreamTranslateText"
LIST_MODELS = "/jumok.v1.ModelService/ListModels"

Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Sender of a request.

    Attributes:
        peer: address in gRPC's notation.
        request_id: id in logs, traces and errors.
        token: bearer token; empty: none.
        timeout_s: time for the response, in seconds.
    """

    peer: str
    request_id: str
    token: str
    timeout_s: float


MAX_COUNTED = 2**16
"""Keys whose characters are counted; those of the one that is idle for longest go first."""


class CharacterCounts:
    """Translated characters by key; event loop only."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, key: str, texts: Iterable[str]) -> None:
        """Count the characters of texts."""
        count = self._counts.pop(key, 0) + sum(map(len, texts))
        self._counts[key] = count  # as the last
        if len(self._counts) > MAX_COUNTED:
            del self._counts[next(iter(self._counts))]

    def of(self, key: str) -> int:
        """Return the characters of a key since the start."""
        return self._counts[key]


class Directions:
    """Directions of translation, in the models' spelling, of each language the first.

    Args:
        pairs: source and target language of each direction, sorted.

    Attributes:
        targets: target languages of each source language.
        all_targets: target languages of all of them.
    """

    def __init__(self, pairs: tuple[tuple[str, str], ...] = ()) -> None:
        self.pairs = pairs
        first: dict[str, str] = {}
        spelled = {tag: first.setdefault(tag_key(tag), tag) for tag in dict.fromkeys(chain.from_iterable(pairs))}
        self.targets: dict[str, dict[str, None]] = {}
        for source, target in pairs:
            self.targets.setdefault(spelled[source], {})[spelled[target]] = None
        self.all_targets = sorted(set(chain.from_iterable(self.targets.values())))


class Backend(Protocol):
    """Services behind the HTTP APIs.

    All errors are JumokErrors, as a gRPC client gets them.
    """

    async def identify(self, method: str, sender: Sender) -> str:
        """Find the caller of a method by its token, before the request is read.

        Returns:
            The key of the caller's shares.
        """

    async def call(self, method: str, request: Message, sender: Sender, kind: type[Response]) -> Response:
        """Call a method with one response, which is of the given type."""

    async def stream(
        self, method: str, request: Message, sender: Sender, write: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Call a method with several responses; each is written before the next is made.

        A method that reads a stream of requests gets one.
        """

    async def directions(self, sender: Sender) -> Directions:
        """Return the directions of all models and routes, the same until they change; the sender needs no token."""

    async def usage(self, sender: Sender) -> int:
        """Return the characters that a token has had translated over HTTP since the start; without tokens, of all."""

    @property
    def serving(self) -> bool:
        """True if requests can be answered."""

    @property
    def needs_token(self) -> bool:
        """True if calls need a token."""
